"""A split run on weights in 4 or 8 bits equals peft with bitsandbytes in one process.

A spread of `python -m tests.oracle.equality_table nf4 int8`.
"""

import pytest

from tests.oracle.grid import TOLERANCE, Ground, Point, measure
from tests.oracle.stages import Workers

NF4, INT8 = ("quantization", "nf4"), ("quantization", "int8")
AGAIN, GPIPE = ("recompute", True), ("schedule", "gpipe")
SPREAD = [
    Point("llama-64", 3, 4, layout="ragged", changes=(NF4,)),
    Point("gpt2-64", 2, 2, changes=(NF4,)),  # its projections are turned
    Point("gemma3-64", 2, 4, changes=(NF4, AGAIN)),
    Point("mixtral-64", 2, 4, changes=(NF4, AGAIN)),  # fused experts in 4 bits
    Point("qwen2-64", 2, 4, layout="ragged", changes=(INT8, AGAIN)),
    Point("phi-64", 3, 4, changes=(INT8, GPIPE)),
]


@pytest.mark.parametrize("point", SPREAD, ids=str)
def test_twenty_steps_on_packed_weights_equal_one_process(
    workers: Workers, ground: Ground, point: Point
) -> None:
    found = measure(workers, ground, point)
    assert found.loss <= TOLERANCE
    assert found.norm <= TOLERANCE
    assert found.held_out <= TOLERANCE
