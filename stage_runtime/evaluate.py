"""Held-out loss and next-token accuracy, forward only, through the whole pipeline."""

from dataclasses import dataclass

import torch

from stage_runtime.batches import Batch, Seams, Sequences
from stage_runtime.step import RunningStage
from transport.orders import StageOrder


@dataclass(frozen=True)
class HeldOut:
    """The last stage's figures."""

    loss: float
    accuracy: float
    tokens: int
    sequences: int


def num_evaluated(order: StageOrder) -> int:
    """Sequences of one evaluation: what the settings ask for, as far as the file has them."""
    return min(order.settings.eval_sequences, order.tokens.held_out_sequences)


def evaluate(stage: RunningStage, sequences: Sequences | Seams | None, step: int) -> HeldOut | None:
    """Run the held-out sequences through; the last stage gets the figures, others None.

    All stages must call it at the same place. A last batch that is not full is filled with empty
    rows, which have no target.
    """
    order = stage.order
    count, size = num_evaluated(order), order.settings.batch_size
    if stage.loss is not None:
        stage.loss.begin(1, evaluating=True)
    stage.module.eval()
    stage.group.begin_step(step)
    with torch.no_grad():
        for first in range(0, count, size):
            stage.module.moment.begin_step(0)
            forward_batch(stage, _batch(stage, sequences, first, min(size, count - first)))
    if stage.loss is None:
        return None
    tally = stage.loss.tally
    tokens = max(1, tally.tokens)
    return HeldOut(tally.loss_sum / tokens, tally.correct / tokens, tally.tokens, count)


def _batch(
    stage: RunningStage, sequences: Sequences | Seams | None, first: int, count: int
) -> Batch | None:
    if sequences is None:
        return None
    settings = stage.order.settings
    indices = sequences.held_out(first + count)[first:]
    indices += [-1] * (settings.batch_size - len(indices))
    return sequences.batch(indices, settings.seq_len)


def forward_batch(stage: RunningStage, batch: Batch | None) -> None:
    """All micro-batches forward, without gradients."""
    with torch.no_grad():
        _forward(stage, batch)


def _forward(stage: RunningStage, batch: Batch | None) -> None:
    given: tuple[torch.Tensor, ...] = ()
    target: dict[str, torch.Tensor] = {}
    stage.module.positions = None if batch is None else batch.positions
    if batch is not None:
        given = (batch.tokens.to(stage.device),) if stage.order.is_first else ()
        target = {"target": batch.targets} if stage.loss is not None else {}
    stage.schedule.eval(*given, **target, return_outputs=False)
