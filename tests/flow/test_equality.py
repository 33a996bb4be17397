"""A split run equals one process: a spread of tests/oracle/equality_table.py."""

import pytest

from tests.oracle.grid import TOLERANCE, Ground, Point, measure
from tests.oracle.stages import Workers, run_to_end
from transport.reports import StepDone

SPREAD = [
    Point("llama", 1, 1),
    Point("llama", 2, 4),
    Point("llama", 3, 4, layout="ragged"),
    Point("llama", 3, 2, clips=False),  # GPipe: fewer micro-batches than stages
    Point("llama-untied-72", 5, 4),  # as many stages as layers
    Point("llama-untied-72", 2, 4, method="full", layout="ragged"),
    Point("llama-untied-72", 3, 2, method="full", clips=False),
    Point("llama", 1, 2, method="full", layout="ragged"),  # tied, alone: one shared parameter
    Point("llama", 3, 4, method="full", layout="ragged"),  # tied over three
    Point("gemma2", 2, 2, method="full", clips=False),
    Point("qwen3", 2, 1, layout="ragged", clips=False),
    Point("qwen3", 3, 4),
    Point("gpt2", 2, 2),
    Point("gpt2", 3, 4, layout="ragged", clips=False),
    Point("gemma3", 2, 4, layout="ragged"),
    Point("gemma3", 3, 1),
    Point("mistral", 3, 4),
    Point("qwen2", 2, 4),
    Point("gpt_neox", 2, 2),
    Point("phi", 3, 4),
    Point("gemma2", 3, 4, layout="ragged"),
    Point("mixtral", 2, 4),
    Point("qwen3_moe", 3, 4, layout="ragged"),
    Point("qwen3_moe", 2, 2, method="full"),
    Point("gpt_oss", 3, 4, layout="ragged", clips=False),
    Point("llama", 3, 4, dropout=0.2, changes=(("recompute", True),)),
    Point("llama", 2, 4, changes=(("schedule", "gpipe"),)),
]


@pytest.mark.parametrize("point", SPREAD, ids=str)
def test_twenty_steps_over_stages_equal_one_process(
    workers: Workers, ground: Ground, point: Point
) -> None:
    found = measure(workers, ground, point)
    assert found.loss <= TOLERANCE
    assert found.norm <= TOLERANCE
    assert found.held_out <= TOLERANCE
    if point.layout == "ragged" and point.micro_batches == 4:
        assert found.empty_micro_batches > 0


@pytest.mark.parametrize("method", ["lora", "full"])
def test_float16_with_a_scaled_loss_stays_near_float32_and_skips_nothing_here(
    workers: Workers, ground: Ground, method: str
) -> None:
    point = Point("llama", 2, 4, method=method, changes=(("dtype", "float16"), ("steps", 8)))
    run = run_to_end(workers, ground.case(point), point.stages)
    told = ground.reference(point)  # in float32
    steps = run.workers[0].of(StepDone)
    assert not any(step.skipped for step in steps)
    assert max(abs(a.loss - b) for a, b in zip(steps, told.losses, strict=True)) < 1e-3
    norms = [(a.grad_norm or 0.0, b) for a, b in zip(steps, told.norms, strict=True)]
    assert max(abs(a - b) / b for a, b in norms) < 1e-2
