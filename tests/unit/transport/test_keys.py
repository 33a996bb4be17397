"""CURVE keys: made, checked, never shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.errors import SwarmError
from transport.keys import check_public_key, new_key_pair


def test_a_fresh_pair_is_valid_and_no_two_are_alike() -> None:
    one, other = new_key_pair(), new_key_pair()
    assert check_public_key(one.public) == one.public
    assert len({one.public, one.secret, other.public, other.secret}) == 4


def test_the_secret_half_is_in_no_repr() -> None:
    pair = new_key_pair()
    assert pair.secret not in repr(pair)
    assert pair.public in repr(pair)


@pytest.mark.parametrize(
    "text",
    ["", "a" * 39, "a" * 41, "a" * 39 + "\n", "a" * 39 + '"', "é" * 40, "#" * 40],
    ids=["empty", "short", "long", "newline", "quote", "not ascii", "overflow"],
)
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(SwarmError) as refusal:
        check_public_key(text)
    assert refusal.value.code == "invalid-input"


@given(st.text(max_size=60))
def test_any_text_is_a_key_or_a_refusal(text: str) -> None:
    try:
        key = check_public_key(text)
    except SwarmError:
        return
    assert len(key) == 40
