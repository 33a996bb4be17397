"""Training in bfloat16 over stages strays from float32 no further than one process does.

A spread of `python -m tests.oracle.half_precision`.
"""

import pytest

from tests.oracle.grid import Ground, Point
from tests.oracle.half_precision import FURTHEST, stray
from tests.oracle.stages import Workers

SPREAD = [
    Point("gpt2", 2, 4),
    Point("phi", 1, 4),  # its head has a bias, which must not be rounded by itself
    Point("llama-64", 3, 4, changes=(("quantization", "nf4"),)),
]


@pytest.mark.parametrize("point", SPREAD, ids=str)
def test_sixteen_bits_over_stages_stray_as_in_one_process(
    workers: Workers, ground: Ground, point: Point
) -> None:
    found = stray(workers, ground, point)
    assert found.one_process > 1e-5  # it does stray
    assert found.ratio <= FURTHEST
