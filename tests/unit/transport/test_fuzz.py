"""A short run of the frame fuzzer; `python -m tests.oracle.fuzz_frames` runs a long one."""

import random

from tests.oracle.fuzz_frames import decoded, live


def test_no_mutated_frame_breaks_a_link_in_memory() -> None:
    outcome = decoded(6000, random.Random(5))
    assert outcome.wrong == []
    assert outcome.taken > 100
    assert outcome.refused.total() > 1000


def test_no_mutated_frame_from_a_peer_with_the_right_key_breaks_a_live_link() -> None:
    outcome = live(6000, random.Random(6))
    assert outcome.wrong == []
    assert outcome.taken > 100
    assert outcome.refused.total() > 1000
