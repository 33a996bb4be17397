"""What a stage needs of its pipeline's process group, and PyTorch's own groups as one.

`process_group` has the group over Swarm's links; here are gloo and NCCL, for a cluster whose
launcher (torchrun) has set the rendezvous variables, one stage a rank.
"""

import os
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from stage_runtime.codecs.crossing import Crossing
from stage_runtime.marks import WAIT, Marks
from transport.errors import SwarmError
from transport.orders import StageOrder

LAUNCHER_VARIABLES = ("MASTER_ADDR", "MASTER_PORT")
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"


class StageGroup(Protocol):
    """The pipeline's group as one stage sees it."""

    marks: Marks
    """The stage's clock: the group marks what it waits and moves."""

    @property
    def engine_mark(self) -> str:
        """What the engine's time outside the layers is, as far as the group does not mark it."""

    @property
    def wait_s(self) -> float:
        """Seconds spent waiting for neighbours since the group was made."""

    @property
    def sent_bytes(self) -> int:
        """To neighbours."""

    @property
    def received_bytes(self) -> int:
        """From neighbours."""

    def begin_step(self, step: int) -> None:
        """Frames belong to this step from now on; before every schedule.step and .eval."""

    def check(self) -> None:
        """Raise when the pipeline has failed; takes microseconds."""

    def fail(self, error: SwarmError) -> None:
        """From any thread: make every wait and check raise this."""

    def exchange(self, values: Sequence[float], timeout_s: float | None = None) -> list[float]:
        """Sum each value over all stages, in order of stages; the same result on every stage."""

    def close(self, drain_s: float = 2.0) -> None:
        """Let what is on its way arrive, then leave."""


class CodingGroup(StageGroup, Protocol):
    """A group whose tensors can cross as codes: Swarm's own, not torch's."""

    def cross(self, neighbour: int, crossing: Crossing) -> None:
        """From now on what crosses to and from this neighbour does so in this way."""

    def swap(
        self, given: Mapping[int, Sequence[Tensor]], taken: Mapping[int, Sequence[Tensor]]
    ) -> None:
        """Send tensors to neighbours, and fill those that they send here, before the first step."""

    def crossed(self, neighbour: int) -> tuple[int, int, int]:
        """Bytes without frame headers: (sent in steps, received in steps, both before those)."""


class LauncherGroup:
    """gloo or NCCL: torch's own group. Nobody else's stop reaches it but by a broken connection."""

    engine_mark = WAIT
    """torch waits inside its own works, unseen: all that is not computing is told as waiting."""

    def __init__(self, order: StageOrder) -> None:
        self.marks = Marks()
        self._size = order.num_stages
        self._device = "cuda" if order.settings.backend == "nccl" else "cpu"
        self._failure: SwarmError | None = None
        self.wait_s = 0.0
        self.sent_bytes = 0
        self.received_bytes = 0
        dist.init_process_group(
            order.settings.backend,
            store=self._store(order),
            rank=order.stage,
            world_size=order.num_stages,
            timeout=timedelta(seconds=order.settings.link_timeout_s),
        )

    @staticmethod
    def _store(order: StageOrder) -> Any:
        if order.num_stages == 1:
            return dist.HashStore()  # type: ignore[attr-defined]
        missing = [name for name in LAUNCHER_VARIABLES if name not in os.environ]
        if missing:
            raise SwarmError(
                "invalid-input",
                f"backend {order.settings.backend} needs a launcher that sets {missing[0]}",
                hint="use backend swarm, or start the stages with torchrun",
            )
        return dist.TCPStore(  # type: ignore[attr-defined]
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            order.num_stages,
            # torchrun keeps the store itself; a plain job script leaves it to the first stage.
            is_master=order.is_first and os.environ.get(AGENT_STORE) != "True",
            timeout=timedelta(seconds=order.settings.link_timeout_s),
        )

    def begin_step(self, step: int) -> None:
        """torch's groups do not number their messages."""

    def check(self) -> None:
        """Raise what `fail` left."""
        if self._failure is not None:
            raise self._failure

    def fail(self, error: SwarmError) -> None:
        """Seen at the next block; a wait inside gloo ends with its own time-out."""
        self._failure = self._failure or error

    def exchange(self, values: Sequence[float], timeout_s: float | None = None) -> list[float]:
        """Gather every stage's values and add them in order of stages."""
        self.check()
        started = time.monotonic()
        with self.marks.of(WAIT):
            total = self._gathered(values)
        self.wait_s += time.monotonic() - started
        return total

    def _gathered(self, values: Sequence[float]) -> list[float]:
        mine = torch.tensor(list(values), dtype=torch.float64, device=self._device)
        parts = [torch.empty_like(mine) for _ in range(self._size)]
        dist.all_gather(parts, mine)
        total = [0.0] * len(values)
        for part in parts:
            total = [a + float(b) for a, b in zip(total, part.cpu(), strict=True)]
        return total

    def close(self, drain_s: float = 2.0) -> None:
        """Wait for the others, then leave."""
        dist.destroy_process_group()


def torch_group(group: StageGroup) -> dist.ProcessGroup:
    """What PipelineStage sends and receives on: the group itself, or torch's default one."""
    found = group if isinstance(group, dist.ProcessGroup) else dist.group.WORLD
    assert found is not None
    return found
