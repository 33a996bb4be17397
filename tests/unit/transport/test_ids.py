"""Names of things."""

import random
import re

from hypothesis import given
from hypothesis import strategies as st

from transport.ids import mint


@given(st.integers())
def test_a_minted_id_matches_its_pattern_and_follows_the_seed(seed: int) -> None:
    made = mint("j", random.Random(seed).randbytes)
    assert re.fullmatch(r"j-[a-z2-9]{8}", made)
    assert made == mint("j", random.Random(seed).randbytes)
