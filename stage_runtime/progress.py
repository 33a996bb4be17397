"""What a stage says in its log for people: what it holds, how far it is, what it waits for.

Reports carry the numbers; these lines tell the story. Does not know how they travel.
"""

import logging
import time
from collections.abc import Callable

from stage_runtime.step import StepOutcome
from transport.orders import StageOrder
from transport.units import human_bytes, human_seconds

log = logging.getLogger(__name__)

LINE_EVERY_S = 5.0
"""Steps are told at most so often, but the first and the last always."""


def tell_share(order: StageOrder, held_bytes: int, num_trained: int, load_s: float) -> None:
    """The stage's share of the model is in memory."""
    log.info(
        "stage %d of %d holds layers %d-%d of %d in %s: %s loaded in %s, %d tensors to train",
        order.stage,
        order.num_stages,
        order.first_layer,
        order.last_layer,
        order.num_layers,
        order.settings.dtype,
        human_bytes(held_bytes),
        human_seconds(load_s),
        num_trained,
    )


def tell_data(order: StageOrder) -> None:
    """How the data meets the steps; only the first stage tells it."""
    if not order.is_first:
        return
    settings = order.settings
    batches = order.tokens.train_sequences // settings.batch_size
    log.info(
        "the data holds %d batch(es) of %d x %d tokens: %d steps go over it %.2f times",
        batches,
        settings.batch_size,
        settings.seq_len,
        settings.steps,
        settings.steps * settings.batch_size / order.tokens.train_sequences,
    )


class StepLog:
    """Tells steps, but not so many that nobody reads them."""

    def __init__(self, steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._steps = steps
        self._clock = clock
        self._told_at = float("-inf")

    def tell(self, outcome: StepOutcome) -> None:
        """One line, if it is time for one."""
        now = self._clock()
        if outcome.step < self._steps and now - self._told_at < LINE_EVERY_S:
            return
        self._told_at = now
        log.info(
            "step %d of %d: loss %.4f, %s (computed %s, waited %s)",
            outcome.step,
            self._steps,
            outcome.loss,
            human_seconds(outcome.step_s),
            human_seconds(outcome.compute_s),
            human_seconds(outcome.wait_s),
        )
