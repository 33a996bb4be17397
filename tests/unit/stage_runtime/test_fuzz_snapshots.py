"""A short run of the files' fuzzer; `python -m tests.oracle.fuzz_snapshots` runs a long one."""

import random

from tests.oracle.fuzz_snapshots import fuzzed


def test_no_mutated_saved_state_or_result_breaks_a_check_or_brings_in_what_is_no_number() -> None:
    outcome = fuzzed(300, random.Random(5))
    assert outcome.wrong == []
    assert all(count > 2 for count in outcome.taken.values())
    assert outcome.refused.total() > 300
