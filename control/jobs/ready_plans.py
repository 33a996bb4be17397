"""What a running job would go on with if it lost one of its fellows: a plan for each, kept ready.

In memory only. Planned anew when the pool has changed, off the event loop; a plan that is used is
held against the pool of that moment first. Decides nothing: recovery does.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from control.clock import Clock
from control.fellows.condition import status_of
from control.fellows.registry import Member
from control.jobs.going_on import may_split, pinned
from control.planning.plan import Plan
from control.store.jobs import Job
from control.store.stages import Stage
from transport.api.job_config import JobConfig
from transport.api.jobs import IfLost
from transport.errors import SwarmError

log = logging.getLogger(__name__)

REST_S = 30.0
"""How long a job's plans are kept although the pool changes: a pool that flaps is not followed."""
SETTLE_S = 10.0
"""How long a job runs before anything is planned: many a loss comes right at the start."""
FREE_STEP = 512_000_000
"""Free memory that moves by less is no change."""


class Planner(Protocol):
    """What keeping plans ready asks of planning."""

    async def plan_again(self, job: Job, config: JobConfig, without: str = "") -> Plan:
        """A plan for a job that goes on, without one fellow."""


@dataclass(frozen=True)
class Ready:
    """What follows the loss of one fellow."""

    told: IfLost
    plan: Plan | None
    """With a standby, or split again; None when there is none."""


@dataclass(frozen=True)
class _Kept:
    attempt: int
    pool: tuple[Any, ...]
    """As the pool was when they were made."""
    at: float
    by_fellow: dict[str, Ready]


Rows = Sequence[Stage]


class ReadyPlans:
    """The plans of all running jobs, by fellow."""

    def __init__(self, planner: Planner, clock: Clock, *, may_recover: bool) -> None:
        self._planner = planner
        self._clock = clock
        self._may_recover = may_recover
        self._kept: dict[str, _Kept] = {}
        self._began: dict[str, tuple[int, float]] = {}
        """Job -> (attempt, when it was first seen running)."""

    def told(self, job_id: str, attempt: int) -> list[IfLost]:
        """What a job would do, by fellow in order of stages; [] when that is not known yet."""
        kept = self._kept.get(job_id)
        if kept is None or kept.attempt != attempt:
            return []
        return [one.told for one in kept.by_fellow.values()]

    def plan_without(self, job: Job, lost: Iterable[str]) -> tuple[str, Plan] | None:
        """(standby or split, the plan) that was made for the loss of this one fellow."""
        kept, names = self._kept.get(job.job_id), set(lost)
        if kept is None or kept.attempt != job.attempt or len(names) != 1:
            return None
        ready = kept.by_fellow.get(names.pop())
        return (ready.told.then, ready.plan) if ready is not None and ready.plan else None

    async def renew(
        self, active: Sequence[tuple[Job, Rows]], pool: Callable[[str], Sequence[Member]]
    ) -> list[Job]:
        """Plan for the jobs with stages; returns those whose plans were made anew. Of one without,
        which has lost a fellow just now, they are kept as they are.
        """
        names = {job.job_id for job, _ in active}
        for kept in (self._kept, self._began):
            for gone in kept.keys() - names:
                del kept[gone]
        renewed = []
        for job, rows in active:
            seen, now = _seen(pool(job.pool)), self._clock.monotonic()
            if not rows or not self._has_settled(job, now) or self._holds(job, seen, now):
                continue
            by_fellow = {row.fellow_id: await self._ready(job, rows, row.fellow_id) for row in rows}
            self._kept[job.job_id] = _Kept(job.attempt, seen, now, by_fellow)
            renewed.append(job)
        return renewed

    def _has_settled(self, job: Job, now: float) -> bool:
        began = self._began.get(job.job_id)
        if began is None or began[0] != job.attempt:
            began = self._began[job.job_id] = (job.attempt, now)
        return now - began[1] >= SETTLE_S

    def _holds(self, job: Job, seen: tuple[Any, ...], now: float) -> bool:
        kept = self._kept.get(job.job_id)
        if kept is None or kept.attempt != job.attempt:
            return False
        return kept.pool == seen or now - kept.at < REST_S

    async def _ready(self, job: Job, rows: Rows, lost: str) -> Ready:
        try:
            return await self._found(job, rows, lost)
        except SwarmError as error:
            return _none(lost, "unknown", error.message)
        except Exception:
            log.exception("no plan for a loss", extra={"job": job.job_id, "without": lost})
            return _none(lost, "unknown", "the leader failed to plan it; its log has the reason")

    async def _found(self, job: Job, rows: Rows, lost: str) -> Ready:
        train = job.config.train
        if not self._may_recover:
            return _none(lost, "fail", "going on by itself is turned off")
        settings = rows[0].work.settings
        cuts = [row.work.first_layer for row in rows]
        standby = await self._planner.plan_again(job, pinned(job.config, settings, cuts), lost)
        if standby.fits:
            return _made(lost, "standby", standby)
        if train.on_node_loss == "fail":
            return _none(lost, "fail", f"no standby can take its stage: {standby.reason}")
        if not may_split(job.config):
            return _none(lost, "wait", "its learned bottleneck belongs to its boundary")
        other = await self._planner.plan_again(job, pinned(job.config, settings, None), lost)
        if not other.fits:
            return _none(lost, "wait", f"it does not fit those that are left: {other.reason}")
        wait_s = train.recovery_wait_s if train.on_node_loss == "wait" else 0.0
        return _made(lost, "split", other, wait_s)


def _made(lost: str, then: Any, plan: Plan, wait_s: float = 0.0) -> Ready:
    fellows = [stage.fellow_id for stage in plan.stages]
    told = IfLost(fellow_id=lost, then=then, fellows=fellows, after_s=wait_s)
    return Ready(told, plan)


def _none(lost: str, then: Any, why: str) -> Ready:
    return Ready(IfLost(fellow_id=lost, then=then, why=why), None)


def _seen(members: Iterable[Member]) -> tuple[Any, ...]:
    """What of a pool a plan depends on, roughly."""
    return tuple(
        (
            member.fellow_id,
            status_of(member),
            tuple(
                (card.uuid, None if card.free_bytes is None else card.free_bytes // FREE_STEP)
                for card in (member.beat.cards if member.beat is not None else [])
            ),
        )
        for member in members
    )
