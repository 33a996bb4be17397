"""The story a stage tells in its log."""

import logging

import pytest

from stage_runtime.progress import LINE_EVERY_S, StepLog
from stage_runtime.step import StepOutcome


def outcome(step: int) -> StepOutcome:
    return StepOutcome(
        step=step,
        loss=2.5,
        grad_norm=0.1,
        learning_rate=1e-3,
        supervised_tokens=100,
        step_s=0.5,
        compute_s=0.3,
        wait_s=0.2,
        skipped=False,
        empty_micro_batches=0,
    )


def test_the_first_and_the_last_step_are_told_and_others_at_most_every_five_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    told = StepLog(100, lambda: now[0])
    with caplog.at_level(logging.INFO):
        for step in range(1, 101):
            told.tell(outcome(step))
            now[0] += 1.0
    steps = [int(record.message.split()[1]) for record in caplog.records]
    assert steps[0] == 1
    assert steps[-1] == 100
    assert steps[1] - steps[0] == LINE_EVERY_S
    assert len(steps) == 21
