"""Documents that share a sequence, kept apart: the run equals one process that has them alone."""

from dataclasses import replace

import pytest

from tests.oracle.grid import TOLERANCE, Ground, Point, measure
from tests.oracle.stages import Workers, run_to_end
from transport.reports import StepDone

APART, SHORT = ("document_mask", True), ("steps", 8)
SPREAD = [
    Point("llama", 3, 4, layout="documents", changes=(APART, SHORT, ("recompute", True))),
    Point("gpt2", 3, 2, layout="documents", changes=(APART, SHORT)),  # learned positions, and GPipe
    Point("mistral", 2, 4, layout="documents", changes=(APART, SHORT)),  # a window within documents
    Point("gemma2", 3, 4, layout="documents", changes=(APART, SHORT)),  # whole scores
]


@pytest.mark.parametrize("point", SPREAD, ids=str)
def test_steps_equal_one_process_that_has_each_document_alone(
    workers: Workers, ground: Ground, point: Point
) -> None:
    found = measure(workers, ground, point)
    assert found.loss <= TOLERANCE
    assert found.norm <= TOLERANCE
    assert found.held_out <= TOLERANCE


def test_without_the_mask_the_same_documents_give_other_losses(
    workers: Workers, ground: Ground
) -> None:
    point = replace(SPREAD[0], changes=(("steps", 1), ("eval_sequences", 0)))
    seen = run_to_end(workers, ground.case(point), 1).workers[0].of(StepDone)[0]
    assert abs(seen.loss - ground.reference(SPREAD[0]).losses[0]) > 1e-3
