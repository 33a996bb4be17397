"""Every card is usable, or left out with its reason."""

from typing import Any

import pytest

from control.planning.usable import FellowNow, Wanted, examine
from stage_runtime.places import Device
from tests.unit.control.planning.pools import GB, a_card, a_fellow
from transport.cards import Holder
from transport.errors import SwarmError


def _wanted(**changes: Any) -> Wanted:
    return Wanted(**({"floor_bytes": lambda _: 4 * GB} | changes))


def _reason(fellow: FellowNow, **changes: Any) -> str:
    return examine([fellow], _wanted(**changes))[0].reason


def test_a_ready_card_above_the_floor_is_usable() -> None:
    assert _reason(a_fellow("a", a_card(gb=4))) == ""


@pytest.mark.parametrize(
    ("standing", "reason"),
    [("offline", "not connected"), ("training", "training"), ("draining", "no new work")],
)
def test_a_fellow_that_is_away_or_busy_is_left_out(standing: Any, reason: str) -> None:
    assert reason in _reason(a_fellow("a", standing=standing))


def test_too_little_memory_is_told_with_both_numbers() -> None:
    assert _reason(a_fellow("a", a_card(gb=1))) == "1 GB free, below the 4 GB floor"


def test_another_program_is_named_when_the_card_would_do_without_it() -> None:
    held = Holder(name="/app/llama-server", held_bytes=23_400_000_000)
    card = a_card(gb=24, free_gb=0.6, kind="cuda", holders=[held])
    assert _reason(a_fellow("a", card)) == "23.4 GB held by /app/llama-server (not Swarm)"


def test_unknown_free_memory_is_not_taken_for_zero_or_for_all() -> None:
    card = a_card(gb=24, kind="cuda", free_bytes=None)
    assert "does not tell" in _reason(a_fellow("a", card))


def test_a_format_a_feature_and_the_callers_wish_leave_cards_out() -> None:
    fellow = a_fellow("a", a_card(gb=8))
    assert _reason(fellow, number_format="float16") == "does not run float16"
    assert "update it" in _reason(fellow, features=frozenset({"rotation"}))
    assert "has not proved nf4 weights" in _reason(fellow, stored="nf4")
    assert _reason(a_fellow("a", a_card(gb=8, formats=["float32", "nf4"])), stored="nf4") == ""
    assert _reason(fellow, exclude=frozenset({"f-aaaaaaaa:0"})) == "left out by you"


def test_a_card_without_room_is_left_out_for_that_whatever_format_the_others_chose() -> None:
    fellow = a_fellow("a", a_card(gb=1))
    assert _reason(fellow, number_format="float16") == "1 GB free, below the 4 GB floor"


def test_a_card_to_leave_out_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SwarmError) as refusal:
        examine([a_fellow("a")], _wanted(exclude=frozenset({"f-zzzzzzzz:3"})))
    assert refusal.value.code == "invalid-input"
    assert "f-zzzzzzzz:3" in refusal.value.message


def test_cards_come_in_the_same_order_however_the_pool_is_listed() -> None:
    pool = [a_fellow("b", a_card(1), a_card(0)), a_fellow("a")]
    ids = [card.id for card in examine(pool, _wanted())]
    assert ids == ["f-aaaaaaaa:0", "f-bbbbbbbb:0", "f-bbbbbbbb:1"]
    assert ids == [card.id for card in examine(pool[::-1], _wanted())]


def test_a_cuda_card_without_bfloat16_is_priced_as_an_old_one() -> None:
    old = a_card(0, kind="cuda", formats=["float32", "float16"])
    cards = examine([a_fellow("a", old, a_card(1, kind="cuda"))], _wanted())
    assert [card.device for card in cards] == [Device("cuda", flash=False), Device("cuda")]
