"""Finds jobs whose stages all stand still although every machine answers: by progress, not pings.

Fed with heartbeats. A stage that is slow is not taken for one that hangs: how long a job may stand
still follows from how long its steps take and how long it stood still before.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from control.clock import Clock
from control.fellows.registry import Member
from transport.cards import StageStatus
from transport.units import human_seconds

STILL_S = 60.0
STEPS_OF_PATIENCE, GAPS_OF_PATIENCE = 10.0, 8.0
Name = tuple[str, int, int]
"""(job, attempt, stage)."""


@dataclass
class _Seen:
    moved: int
    since: float
    longest_s: float = 0.0
    waits_for: str = ""
    phase: str = ""
    fellow_id: str = ""


@dataclass(frozen=True)
class Stuck:
    """A job that stands still."""

    still_s: float
    words: str
    """Ids and numbers only."""
    waits: tuple[str, ...]
    """What each stage says that it waits for: text of fellows."""


class Movement:
    """What each stage's progress was, and since when it is the same."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[Name, _Seen] = {}

    def note(self, members: Iterable[Member]) -> None:
        """Look at everybody's last heartbeat."""
        now = self._clock.monotonic()
        told: dict[Name, _Seen] = {}
        for member in members:
            if not member.online or member.beat is None:
                continue
            for stage in member.beat.stages:
                if stage.moved is not None:
                    name = (stage.job_id, stage.attempt, stage.stage)
                    told[name] = self._one(name, stage, member.fellow_id, now)
        self._seen = told

    def _one(self, name: Name, told: StageStatus, fellow_id: str, now: float) -> _Seen:
        assert told.moved is not None
        seen = self._seen.get(name)
        if seen is None:
            seen = _Seen(told.moved, now)
        elif seen.moved != told.moved:
            seen.longest_s = max(seen.longest_s, now - seen.since)
            seen.moved, seen.since = told.moved, now
        seen.waits_for, seen.phase, seen.fellow_id = told.waits_for, told.phase, fellow_id
        return seen

    def any_still(self) -> bool:
        """Whether it is worth a look at the jobs: some stage has not moved for long."""
        now = self._clock.monotonic()
        return any(now - one.since >= STILL_S for one in self._seen.values())

    def stuck(
        self, attempt: tuple[str, int], num_stages: int, step_s: float | None
    ) -> Stuck | None:
        """Whether all stages of an attempt (job_id, number) stand still for too long."""
        now = self._clock.monotonic()
        stages = [self._seen.get((*attempt, stage)) for stage in range(num_stages)]
        known = [one for one in stages if one is not None]
        if len(known) < num_stages or any(one.phase != "training" for one in known):
            return None
        still = min(now - one.since for one in known)
        patience = max(
            STILL_S,
            STEPS_OF_PATIENCE * (step_s or 0.0),
            GAPS_OF_PATIENCE * max(one.longest_s for one in known),
        )
        return None if still < patience else _told(known, still)


def _told(stages: Sequence[_Seen], still_s: float) -> Stuck:
    # A stage that waits for nobody is the one that the others wait for.
    number = next((n for n, one in enumerate(stages) if not one.waits_for), 0)
    words = (
        f"stage {number} of {len(stages)} on {stages[number].fellow_id} has made no progress for "
        f"{human_seconds(still_s)}, although its fellow answers"
    )
    waits = tuple(
        f"stage {n} on {one.fellow_id} waits for {one.waits_for}"
        for n, one in enumerate(stages)
        if one.waits_for
    )
    return Stuck(still_s, words, waits)
