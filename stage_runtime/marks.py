"""Where a stage's time goes: every moment of the stage's thread belongs to exactly one mark.

Marks nest, and an inner one interrupts the outer, so the marks of a step add up to the step by
construction. What nobody marked is "control": the engine's own Python, reports, guards. One thread
owns them; a backward that runs in a thread of autograd's own counts as long as the owner waits.

    marks = group.marks
    with marks.of("snapshot"):
        ...                     # of this step, and no longer part of whatever called it
    told = marks.lap()          # {"forward": s, ...} since the last lap; sums to the lap's time
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Final, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

FORWARD: Final = "forward"
LOSS: Final = "loss"
"""The head and the loss, whose gradients are made in the same pass."""
RECOMPUTE: Final = "recompute"
"""Layers run forward once more for their backward."""
BACKWARD: Final = "backward"
OPTIMIZER: Final = "optimizer"
"""Norm, clip, update."""
DATA: Final = "data"
"""Reading the step's batch: nothing of the leader or the neighbours is in it."""
TRANSFER: Final = "transfer"
"""Packing, copying and handing over what crosses a boundary, and unpacking what came."""
WAIT: Final = "wait"
"""For a neighbour: it still computes, or its bytes are still on their way."""
SNAPSHOT: Final = "snapshot"
CONTROL: Final = "control"
COMPUTED: Final = (FORWARD, LOSS, RECOMPUTE, BACKWARD, OPTIMIZER)


class Marks:
    """The clock of one stage.

    Args:
        clock: monotonic seconds.
        settle: waits until the device has done what was asked of it. A device that computes
            while Python goes on is settled at the end of a mark that names computing, or its time
            would be told of whoever waits for it next.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        settle: Callable[[], None] | None = None,
    ) -> None:
        self._clock = clock
        self._settle = settle
        self._now = CONTROL
        self._since = clock()
        self._spent: dict[str, float] = {}

    @property
    def sees_blocks(self) -> bool:
        """Whether a mark inside a forward or backward is truly timed (not on a device that runs
        behind Python: there recompute is part of backward).
        """
        return self._settle is None

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Time spent inside is of this name, but for what another mark inside it takes."""
        outer = self._switch(name)
        try:
            yield
            if self._settle is not None and name in COMPUTED:
                self._settle()
        finally:
            self._switch(outer)

    def timed(self, name: str, call: Callable[P, R]) -> Callable[P, R]:
        """The same function, marked."""

        @wraps(call)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with self.of(name):
                return call(*args, **kwargs)

        return run

    def lap(self) -> dict[str, float]:
        """Seconds of each mark since the last lap. Their sum is the time between the laps."""
        self._switch(self._now)
        spent, self._spent = self._spent, {}
        return spent

    def _switch(self, name: str) -> str:
        at, outer = self._clock(), self._now
        self._spent[outer] = self._spent.get(outer, 0.0) + at - self._since
        self._now, self._since = name, at
        return outer


def marks_on(device: torch.device) -> Marks:
    """Marks for a stage whose first card is this device."""
    if device.type == "cuda":
        return Marks(settle=lambda: torch.cuda.synchronize(device))
    return Marks()
