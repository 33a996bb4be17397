"""One optimizer step of a stage, and what the whole pipeline must agree on in it.

All stages learn the same loss, norm and verdict from one exchange, so an update is made by all of
them or by none. Does not know where batches come from.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from stage_runtime.agreement import refuse_without_gradient
from stage_runtime.batches import Batch
from stage_runtime.loss import StageLoss
from stage_runtime.loss_scale import LossScale
from stage_runtime.marks import COMPUTED, OPTIMIZER, WAIT
from stage_runtime.optim import (
    clip_share,
    learning_rate,
    scale_gradients,
    set_rate,
    squared_norm,
)
from stage_runtime.snapshot import Saver
from stage_runtime.stage import StageModule
from stage_runtime.stage_group import StageGroup
from stage_runtime.tied import TiedTable
from transport.errors import SwarmError
from transport.orders import StageOrder


@dataclass
class RunningStage:
    """Everything of a stage that trains."""

    order: StageOrder
    module: StageModule
    group: StageGroup
    schedule: Any
    loss: StageLoss | None
    """On the last stage."""
    trained: dict[str, nn.Parameter]
    optimizer: torch.optim.Optimizer
    device: torch.device
    """Of the stage's first block: where its input goes."""
    last_loss: float | None = None
    saver: Saver | None = None
    """Saves the stage's state; None when nothing is saved."""
    savers_busy: int = 0
    """Stages whose last saved copy was still on its way when this step ended."""
    tied: TiedTable | None = None
    """When the first and the last stage train one table."""
    scale: LossScale = field(default_factory=LossScale)
    is_checked: bool = False
    """Whether every trained tensor was seen to have a gradient."""


@dataclass(frozen=True)
class StepOutcome:
    """What a step came to; loss, norm, tokens and verdict are the same on every stage."""

    step: int
    loss: float
    grad_norm: float | None
    learning_rate: float
    supervised_tokens: int
    step_s: float
    compute_s: float
    wait_s: float
    skipped: bool
    empty_micro_batches: int
    marks: dict[str, float] = field(default_factory=dict)
    """Where step_s went, by stage_runtime.marks: they add up to it."""


@dataclass(frozen=True)
class _Verdict:
    """Sums over the pipeline."""

    squared_norm: float
    bad_gradients: bool
    loss_sum: float
    bad_loss: bool
    tokens: int
    empty: int


def run_step(stage: RunningStage, step: int, batch: Batch | None) -> StepOutcome:
    """Forward and backward of all micro-batches, the exchange, and the update.

    batch: on the first and the last stage; None between.

    Raises:
        SwarmError: stage-failed when the loss is not finite (facts["echo"] on all stages but the
            last), or whatever the group raises.
    """
    marks = stage.group.marks
    stage.group.begin_step(step)
    stage.module.moment.begin_step(step)
    stage.module.train()
    with marks.of(stage.group.engine_mark):
        run_batch(stage, batch)
        if stage.tied is not None:
            stage.tied.gather()
    if not stage.is_checked:
        refuse_without_gradient(stage.group, stage.trained)
        stage.is_checked = True
    with marks.of(OPTIMIZER):
        own = squared_norm(stage.trained) / stage.scale.value**2
    verdict = _exchange(stage, own)
    _stop_on_bad_loss(stage, step, verdict)
    skipped = verdict.bad_gradients or verdict.tokens == 0
    norm = math.sqrt(verdict.squared_norm)
    rate = learning_rate(stage.order.settings, step)
    with marks.of(OPTIMIZER):
        if not skipped:
            _update(stage, rate, math.sqrt(own), norm)
        stage.optimizer.zero_grad(set_to_none=True)
    stage.scale.took(overflowed=verdict.bad_gradients)
    stage.last_loss = verdict.loss_sum / max(1, verdict.tokens)
    spent = marks.lap()
    return StepOutcome(
        step=step,
        loss=stage.last_loss,
        grad_norm=None if skipped else norm,
        learning_rate=rate,
        supervised_tokens=verdict.tokens,
        step_s=sum(spent.values()),
        compute_s=sum(spent.get(name, 0.0) for name in COMPUTED),
        wait_s=spent.get(WAIT, 0.0),
        skipped=skipped,
        empty_micro_batches=verdict.empty,
        marks=spent,
    )


def run_batch(stage: RunningStage, batch: Batch | None) -> None:
    """Forward and backward of all micro-batches; gradients are left on the weights."""
    stage.module.positions = None if batch is None else batch.positions
    if stage.loss is not None and batch is not None:
        stage.loss.begin(batch.num_targets)
        stage.loss.scale = stage.scale.value
    stage.schedule.step(*_inputs(stage, batch), **_targets(stage, batch), return_outputs=False)


def _inputs(stage: RunningStage, batch: Batch | None) -> tuple[torch.Tensor, ...]:
    if not stage.order.is_first:
        return ()
    assert batch is not None
    return (batch.tokens.to(stage.device),)


def _targets(stage: RunningStage, batch: Batch | None) -> dict[str, torch.Tensor]:
    return {"target": batch.targets} if stage.loss is not None and batch is not None else {}


def _exchange(stage: RunningStage, own_squared_norm: float) -> _Verdict:
    """Sum over the pipeline; what is not finite travels as a flag, never as a number."""
    tally = stage.loss.tally if stage.loss is not None else None
    loss_sum = tally.loss_sum if tally is not None else 0.0
    good_norm, good_loss = math.isfinite(own_squared_norm), math.isfinite(loss_sum)
    totals = stage.group.exchange(
        [
            own_squared_norm if good_norm else 0.0,
            float(not good_norm),
            loss_sum if good_loss else 0.0,
            float(not good_loss),
            float(tally.tokens if tally is not None else 0),
            float(tally.empty_micro_batches if tally is not None else 0),
            float(stage.saver is not None and stage.saver.is_busy),
        ]
    )
    stage.savers_busy = int(totals[6])
    return _Verdict(
        totals[0], totals[1] > 0, totals[2], totals[3] > 0, int(totals[4]), int(totals[5])
    )


def _stop_on_bad_loss(stage: RunningStage, step: int, verdict: _Verdict) -> None:
    if not verdict.bad_loss:
        return
    told = stage.last_loss
    last = "there was none before" if told is None else f"the last finite one was {told:.4f}"
    raise SwarmError(
        "stage-failed",
        f"the loss of step {step} is not a finite number; {last}",
        hint="lower the learning rate"
        + (", or train in bfloat16" if stage.order.settings.dtype == "float16" else ""),
        # The last stage computed it and says so; the others only heard of it.
        facts={"step": step, "last_finite_loss": told, "echo": stage.loss is None},
    )


def _update(stage: RunningStage, rate: float, own_norm: float, pipeline_norm: float) -> None:
    settings = stage.order.settings
    norm = pipeline_norm if settings.clip == "pipeline" else own_norm
    share = clip_share(norm, settings.max_grad_norm) / stage.scale.value
    scale_gradients(stage.trained.values(), share)
    set_rate(stage.optimizer, rate)
    stage.optimizer.step()
    if stage.tied is not None:
        stage.tied.spread()
