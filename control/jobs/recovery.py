"""Goes on with jobs from their saved steps: by itself after a loss, or by hand.

A job that lost a stage waits, holding its fellows, until the others have let go. Then in this
order: the same split on the same fellows, the same split with a standby, and, as the job's
on_node_loss says, a new split over those that are left.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from control.clock import Clock
from control.fellows.condition import status_of
from control.fellows.registry import Member, Registry
from control.job_states import ACTIVE
from control.jobs.going_on import (
    Place,
    may_split,
    new_place,
    nothing_saved,
    pinned,
    refused,
    resumed,
    same_place,
)
from control.jobs.losing import Loss
from control.jobs.ready_plans import ReadyPlans
from control.planning.plan import Plan, plan_of_text
from control.snapshots.keeper import Snapshots
from control.store import jobs, stages
from control.store.database import Database, Tx
from control.store.jobs import Job
from control.store.snapshots import Saved
from control.store.stages import Stage
from transport.api.job_config import JobConfig
from transport.errors import SwarmError
from transport.units import human_seconds

log = logging.getLogger(__name__)

LET_GO_S = 20.0
"""A fellow that has not ended a lost attempt's stage by then is not waited for."""
FEATURE = "resume"


class Planner(Protocol):
    """What going on asks of planning; a job's own fellows count as free."""

    async def plan_again(self, job: Job, config: JobConfig, without: str = "") -> Plan:
        """A plan for a job that goes on."""

    async def changes_for(self, job: Job, plan: Plan) -> list[str]:
        """What keeps a job from going on by its plan; [] when nothing does."""


@dataclass(frozen=True)
class RecoveryTools:
    """What going on works with."""

    database: Database
    registry: Registry
    planner: Planner
    snapshots: Snapshots
    clock: Clock
    may_recover: bool = True
    """Jobs that lose a stage go on by themselves."""


@dataclass(frozen=True)
class _Found:
    place: Place | None
    why_not: str = ""
    is_final: bool = False


class Recovery:
    """Finds places for jobs that go on."""

    def __init__(self, tools: RecoveryTools) -> None:
        self._tools = tools
        self._database = tools.database
        self._waits: dict[str, tuple[int, float]] = {}
        """Job -> (the attempt that lost a stage, since which monotonic second it waits)."""
        self.ready = ReadyPlans(tools.planner, tools.clock, may_recover=tools.may_recover)

    # --- beforehand --------------------------------------------------------------------------

    async def keep_ready(self) -> list[Job]:
        """Have a plan for the loss of each fellow of each running job; those planned anew."""
        return await self.ready.renew(
            await self._database.read(_active), self._tools.registry.of_pool
        )

    async def _made_ready(self, job: Job, rows: Sequence[Stage], then: str) -> Plan | None:
        """The plan that was made for this loss, if it still holds."""
        away = [row.fellow_id for row in rows if not self._is_there(row.fellow_id)]
        found = self.ready.plan_without(job, away)
        if found is None or found[0] != then:
            return None
        return None if await self._tools.planner.changes_for(job, found[1]) else found[1]

    def _is_there(self, fellow_id: str) -> bool:
        member = self._tools.registry.find(fellow_id)
        return member is not None and member.online

    # --- by itself ---------------------------------------------------------------------------

    async def try_to_go_on(self, job: Job) -> bool:
        """Start the next attempt of a job that lost a stage, if it can be. Whether rows changed."""
        loss = Loss.of(job)
        assert loss is not None
        rows = await self._database.read(lambda tx: stages.of_job(tx, job.job_id, job.attempt))
        waited = self._waited(job)
        if any(self._holds(row) for row in rows) and waited < LET_GO_S:
            return False
        saved = await self._tools.snapshots.newest_whole(job.job_id)
        try:
            found = await self._find(job, rows, saved, waited)
        except SwarmError as error:
            found = _Found(None, error.message)
        if found.place is None:
            return await self._wait_or_fail(job, loss, found, waited)
        place, now = found.place, self._tools.clock.now()

        def change(tx: Tx) -> bool:
            fresh = jobs.find(tx, job.job_id)
            if fresh is None or fresh.loss_of is None or fresh.attempt != job.attempt:
                return False
            if taken_by_other(tx, fresh, place):
                return False
            start_again(tx, fresh, place, ("itself", loss.why), now)
            return True

        return await self._database.write(change)

    def _waited(self, job: Job) -> float:
        """For how long this leader has looked for a place. The date may be wrong, or be put right
        meanwhile; and while there was no leader no fellow could come back.
        """
        now = self._tools.clock.monotonic()
        known = self._waits.get(job.job_id)
        if known is None or known[0] != job.attempt:
            known = self._waits[job.job_id] = (job.attempt, now)
        return now - known[1]

    def _holds(self, row: Stage) -> bool:
        """Whether a fellow that is there still runs a lost attempt's stage."""
        member = self._tools.registry.find(row.fellow_id)
        if member is None or not member.online or member.beat is None:
            return False
        told = ((s.job_id, s.attempt) for s in member.beat.stages)
        return (row.job_id, row.attempt) in told

    async def _find(
        self, job: Job, rows: Sequence[Stage], saved: Sequence[Saved], waited: float
    ) -> _Found:
        assert job.plan is not None
        plan = plan_of_text(job.plan)
        if not await self._tools.planner.changes_for(job, plan):
            return _Found(same_place(rows, saved))
        settings = rows[0].work.settings
        cuts = [row.work.first_layer for row in rows]
        standby = await self._made_ready(job, rows, "standby")
        if standby is None:
            config = pinned(job.config, settings, cuts)
            standby = await self._tools.planner.plan_again(job, config)
        if standby.fits:
            return _Found(new_place(standby, rows, saved))
        train = job.config.train
        if train.on_node_loss == "fail":
            return _Found(None, f"no standby can take its stage: {standby.reason}", is_final=True)
        is_late = waited >= train.recovery_wait_s
        if not may_split(job.config):
            why = "its learned bottleneck belongs to its boundary, so only a standby will do"
            return _Found(None, why, is_final=is_late)
        if train.on_node_loss == "wait" and not is_late:
            left = human_seconds(train.recovery_wait_s - waited)
            return _Found(None, f"waits up to {left} for its fellow or a standby")
        other = await self._made_ready(job, rows, "split")
        if other is None:
            config = pinned(job.config, settings, None)
            other = await self._tools.planner.plan_again(job, config)
        if other.fits:
            return _Found(new_place(other, rows, saved))
        return _Found(None, f"it does not fit those that are left: {other.reason}", is_late)

    async def _wait_or_fail(self, job: Job, loss: Loss, found: _Found, waited: float) -> bool:
        words = f"{loss.why}; {found.why_not}"
        # The time that is left changes with every look; a reason is written anew only by minutes.
        changed = job.reason.partition(" up to ")[0] != words.partition(" up to ")[0]
        if not found.is_final and not changed:
            return False
        now = self._tools.clock.now()

        def change(tx: Tx) -> bool:
            fresh = jobs.find(tx, job.job_id)
            if fresh is None or fresh.loss_of is None:
                return False
            changes: dict[str, Any] = {"reason": words}
            if found.is_final:
                changes |= {"state": "failed", "ended_at": now, "loss_of": None}
            jobs.update(tx, job.job_id, **changes)
            return True

        return await self._database.write(change)

    # --- by hand -----------------------------------------------------------------------------

    async def place_by_hand(self, job: Job, *, again: bool) -> Place:
        """Where a job goes on that somebody resumes.

        Raises:
            SwarmError: conflict with facts["reason"]; cannot-fit when it is placed anew.
        """
        self._refuse_state(job, again=again)
        saved = await self._tools.snapshots.newest_whole(job.job_id)
        if not saved:
            raise nothing_saved(job)
        rows = await self._database.read(lambda tx: stages.of_job(tx, job.job_id, job.attempt))
        if again:
            return await self._placed_anew(job, rows, saved)
        for row in rows:
            self._refuse_fellow(job, row)
        other = await self._database.read(lambda tx: taken_by_other(tx, job, Place(rows, None)))
        if other:
            fellow_id, job_id = other
            words = f"another job is active on its fellows: {fellow_id} runs {job_id}"
            hint = "wait for it, or resume with place_again"
            raise refused(job, "another-job-active", words, hint)
        assert job.plan is not None
        changes = await self._tools.planner.changes_for(job, plan_of_text(job.plan))
        if changes:
            hint = "free the card, or resume with place_again"
            raise refused(job, "fellow-changed", f"it cannot go on as it was: {changes[0]}", hint)
        return same_place(rows, saved)

    async def _placed_anew(self, job: Job, rows: Sequence[Stage], saved: Sequence[Saved]) -> Place:
        settings = rows[0].work.settings
        cuts = [row.work.first_layer for row in rows]
        plan = await self._tools.planner.plan_again(job, pinned(job.config, settings, cuts))
        if not plan.fits and may_split(job.config):
            plan = await self._tools.planner.plan_again(job, pinned(job.config, settings, None))
        if not plan.fits:
            raise SwarmError(
                "cannot-fit",
                f"job {job.job_id} cannot go on now: {plan.reason}",
                hint="free memory, or add a fellow; then resume again",
                facts={"reason": "does-not-fit"},
            )
        return new_place(plan, rows, saved)

    def _refuse_state(self, job: Job, *, again: bool) -> None:
        if job.state in ("pending", "completed"):
            words = f"job {job.job_id} is {job.state}: there is nothing to go on with"
            raise refused(job, "wrong-state", words, "look at it with jobs_get")
        if job.state == "recovering" and not (again and job.loss_of is not None):
            words = f"job {job.job_id} is going on already, as attempt {job.attempt}"
            hint = "wait for it with jobs_wait"
            raise refused(job, "already-recovering", words, hint)
        if job.state in ("starting", "running") and not self.is_lost(job):
            words = f"job {job.job_id} is still {job.state} on its fellows"
            raise refused(job, "still-running", words, "stop it first with jobs_cancel")

    def is_lost(self, job: Job) -> bool:
        """Whether a job that should run has no fellow left that runs it."""
        members = self._tools.registry.of_pool(job.pool)
        runs = (
            stage.job_id == job.job_id and stage.phase != "failed"
            for member in members
            if member.online and member.beat is not None
            for stage in member.beat.stages
        )
        was_heard = any(
            member.heard_at is not None for member in members if _has_stage(member, job)
        )
        return was_heard and not any(runs)

    def _refuse_fellow(self, job: Job, row: Stage) -> None:
        member = self._tools.registry.find(row.fellow_id)
        who = f"{row.fellow_id}, which ran stage {row.stage},"
        hint = "bring it back, or resume with place_again"
        if member is None or member.pool != job.pool:
            raise refused(job, "fellow-no-member", f"{who} is no longer in the pool", hint)
        if not member.online or member.beat is None:
            raise refused(job, "fellow-offline", f"{who} is offline", hint)
        if FEATURE not in member.beat.machine.features:
            version = member.beat.machine.version
            words = f"{who} runs Swarm {version}, which cannot go on from a saved step"
            raise refused(job, "fellow-too-old", words, "update Swarm on that machine")
        running = [stage for stage in member.beat.stages if stage.job_id != job.job_id]
        if member.is_measuring or any(s.phase not in ("done", "failed") for s in running):
            words = f"{who} is not idle: it is {status_of(member)}"
            raise refused(job, "fellow-not-idle", words, "wait until it is ready")


def _has_stage(member: Member, job: Job) -> bool:
    return any(one.order.job_id == job.job_id for one in member.assignments)


def taken_by_other(tx: Tx, job: Job, place: Place) -> tuple[str, str] | None:
    """(fellow, job) of a fellow of the place that another job holds by now."""
    held = stages.busy(tx, place.fellows)
    return next(((f, j) for f, j in held.items() if j != job.job_id), None)


def start_again(tx: Tx, job: Job, place: Place, how: tuple[str, str], now: float) -> None:
    """Make a place the next attempt of a job."""
    for row in place.rows:
        stages.add(tx, row)
    record = resumed(job, place, how, now)
    changes: dict[str, Any] = {
        "state": "recovering",
        "reason": f"goes on after step {record.step}" if record.step else "starts anew",
        "attempt": place.rows[0].attempt,
        "loss_of": None,
        "error": None,
        "error_is_echo": False,
        "ended_at": None,
        "saving_paused": "",
        "resumes": [*job.resumes, record.model_dump(mode="json")],
    }
    if place.plan is not None:
        changes |= {"plan": place.plan.model_dump_json(), "plan_id": place.plan.plan_id}
    jobs.update(tx, job.job_id, **changes)
    jobs.count(tx, job, **{"recoveries" if how[0] == "itself" else "resumes": 1})


def _active(tx: Tx) -> list[tuple[Job, Sequence[Stage]]]:
    """Active jobs; those that run, and have lost nobody, with their stages."""
    return [
        (job, stages.of_job(tx, job.job_id, job.attempt) if job.state == "running" else [])
        for job in jobs.in_states(tx, ACTIVE)
    ]


def waiting(tx: Tx) -> list[Job]:
    """Jobs that look for a place to go on, in order of submission."""
    return [job for job in jobs.in_states(tx, ACTIVE) if job.loss_of is not None]
