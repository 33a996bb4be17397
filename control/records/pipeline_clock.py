"""Plays one step of a pipeline from the times of its stages: when each micro-batch is where.

Pure, event by event, in the order of torch's own schedules. A link carries one tensor after
another in each direction. Recompute counts as part of backward.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class StageWork:
    """Seconds that a stage needs."""

    forward_s: float
    """Of one micro-batch; the last stage's loss included."""
    backward_s: float
    once_s: float = 0.0
    """Once a step, before its first micro-batch: data, update, whatever is of no micro-batch."""


@dataclass(frozen=True)
class Course:
    """How the micro-batches run."""

    micro_batches: int
    schedule: str
    """1f1b or gpipe."""


Action = tuple[bool, int]
"""(whether forward, micro-batch)."""


def actions(stage: int, stages: int, course: Course) -> list[Action]:
    """What a stage does in a step, in order (1F1B: Narayanan et al. 2021)."""
    parts = course.micro_batches
    forwards = [(True, part) for part in range(parts)]
    backwards = [(False, part) for part in range(parts)]
    if course.schedule == "gpipe" or parts < stages:
        return forwards + backwards
    warm = min(parts, stages - stage)
    told = forwards[:warm]
    for part in range(parts):
        told.append(backwards[part])
        told += forwards[warm + part : warm + part + 1]
    return told


def step_s(stages: Sequence[StageWork], course: Course, hop_s: float = 0.0) -> float:
    """Seconds of a step: from the last step's end until every stage has done its part.

    hop_s: how long one tensor holds a link.
    """
    player = _Player(stages, course, hop_s)
    return player.play()


class _Player:
    def __init__(self, stages: Sequence[StageWork], course: Course, hop_s: float) -> None:
        self.stages, self.hop_s = stages, hop_s
        self.todo = [actions(k, len(stages), course) for k in range(len(stages))]
        self.at = [stage.once_s for stage in stages]
        self.next = [0] * len(stages)
        self.came: dict[tuple[int, bool, int], float] = {}
        """When the tensor that an action needs has arrived."""
        self.free: dict[tuple[int, bool], float] = {}

    def play(self) -> float:
        left = sum(map(len, self.todo))
        while left:
            moved = sum(self._run(k) for k in range(len(self.stages)))
            assert moved, "the schedule cannot go on"
            left -= moved
        return max(self.at)

    def _run(self, k: int) -> int:
        """Do all that a stage can do now; returns how much that was."""
        began = self.next[k]
        while self.next[k] < len(self.todo[k]):
            forward, part = self.todo[k][self.next[k]]
            ready = self._ready(k, forward, part)
            if ready is None:
                break
            work = self.stages[k]
            needs = work.forward_s if forward else work.backward_s
            self.at[k] = max(self.at[k], ready) + needs
            self._send(k, forward, part)
            self.next[k] += 1
        return self.next[k] - began

    def _ready(self, k: int, forward: bool, part: int) -> float | None:
        starts = k == 0 if forward else k == len(self.stages) - 1
        return 0.0 if starts else self.came.get((k, forward, part))

    def _send(self, k: int, forward: bool, part: int) -> None:
        to = k + 1 if forward else k - 1
        if 0 <= to < len(self.stages):
            began = max(self.at[k], self.free.get((k, forward), 0.0))
            self.free[k, forward] = self.came[to, forward, part] = began + self.hop_s
