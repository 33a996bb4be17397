"""What the stages of one attempt do together, without torch: steps in lock step, and a model.

The model is a chain of digests: its value after a step is a function of the value before and the
step's number alone, as training is when nothing is lost. Its losses and its adapters are derived
from it, so that a step left out, done twice or done from the wrong state shows in them for good.
"""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.simulation.virtual_time import passed

NOTICED_S = 5.0
"""How long the neighbours of a dead stage wait for it to come back."""


class NeighbourLost(Exception):
    """A stage of the attempt is gone; the argument is its number."""


def model_after(seed: int, step: int) -> bytes:
    """The model of an undisturbed run after so many steps."""
    state = hashlib.sha256(f"start {seed}".encode()).digest()
    for number in range(1, step + 1):
        state = trained(state, number)
    return state


def trained(state: bytes, step: int) -> bytes:
    """The model after one step more."""
    return hashlib.sha256(state + step.to_bytes(8, "little")).digest()


def loss_of(state: bytes) -> float:
    """A loss between 1 and 2 that tells the model's states apart."""
    return 1.0 + int.from_bytes(state[:4], "little") / 2**32


@dataclass
class Pipeline:
    """The stages of one attempt that run now."""

    num_stages: int
    at_step: dict[int, int] = field(default_factory=dict)
    """Stage -> the step it has come to; a stage that is not here does not run."""
    gone: set[int] = field(default_factory=set)
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    on_gone: dict[int, Callable[[], None]] = field(default_factory=dict)
    """Stage -> how its machine hears that a neighbour's connection closed."""

    def join(self, stage: int) -> None:
        """A stage runs."""
        self.at_step[stage] = -1
        self._tell()

    def leave(self, stage: int) -> None:
        """A stage has ended, by itself or not."""
        if self.at_step.pop(stage, None) is not None:
            self.gone.add(stage)
            self.on_gone.pop(stage, None)
            for beside in (stage - 1, stage + 1):
                self.on_gone.get(beside, lambda: None)()
            self._tell()

    def is_gone(self, stage: int) -> bool:
        """Whether the connection to a stage has closed."""
        return stage in self.gone

    async def meet(self, stage: int, step: int) -> None:
        """Return when every stage has come to this step.

        Raises:
            NeighbourLost: one of them has ended before.
        """
        self.at_step[stage] = step
        self._tell()
        while any(self.at_step.get(one, -2) < step for one in range(self.num_stages)):
            late = [one for one in self.gone if self.at_step.get(one, -2) < step]
            if late:
                await passed(NOTICED_S)
                raise NeighbourLost(min(late))
            await self.moved.wait()

    def _tell(self) -> None:
        self.moved.set()
        self.moved = asyncio.Event()
