"""How fast a stage stops once it was told to: in a wait at once, else after the block it computes.

Only measures; `process_group` does the stopping.
"""

import time
from dataclasses import dataclass

from stage_runtime.process_group import SwarmGroup
from stage_runtime.stage_group import StageGroup


@dataclass(frozen=True)
class Told:
    """The moment at which the word to stop came, and what the stage did then."""

    at: float
    """Monotonic."""
    was_waiting: bool

    @classmethod
    def now(cls, group: StageGroup | None) -> "Told":
        """It has come just now. Any thread."""
        waits = isinstance(group, SwarmGroup) and bool(group.waits_for())
        return cls(time.monotonic(), waits)

    def words(self, group: StageGroup | None) -> str:
        """How long it took until this call, for the job's log; benchmarks read it there."""
        stopped = f"stopped {(time.monotonic() - self.at) * 1000:.1f} ms after the word came"
        if self.was_waiting:
            return f"{stopped}, in a wait"
        if isinstance(group, SwarmGroup):
            return f"{stopped}, at work; its longest block took {group.block_s * 1000:.1f} ms"
        return f"{stopped}, before its first step"
