"""Runs whose boundaries carry codes: equal to one process with the same codes, counted as planned.

A spread; `python -m tests.oracle.compression_equality` runs more of it.
"""

import pytest

from tests.oracle.compression_equality import CodedPoint, measure
from tests.oracle.grid import Ground
from tests.oracle.stages import Workers

SPREAD = [
    CodedPoint("fixed_int8", "llama", 3, 4),
    CodedPoint("fixed_int4", "gpt2", 2, 2, schedule="gpipe", recompute=True),
    CodedPoint("rotation", "qwen3", 3, 4, recompute=True),
    CodedPoint("learned", "llama-untied-72", 3, 4),
]


@pytest.mark.parametrize("point", SPREAD, ids=str)
def test_a_run_with_codes_has_the_losses_of_one_process_and_the_bytes_of_the_plan(
    workers: Workers, ground: Ground, point: CodedPoint
) -> None:
    found = measure(workers, ground, point)
    assert found.own == 0.0  # to the last bit
    assert found.plain <= point.tolerance
    assert found.as_planned, found
