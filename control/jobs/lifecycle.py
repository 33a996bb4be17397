"""The life of jobs: submitted, waiting, started, told of, ended.

Every move is one transaction; what follows from it (orders, events, files) is derived from the
rows again, so that a leader that restarts goes on where it was. Placing is asked of the Planner.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from control.clock import Clock, wait_for_event
from control.fellows.registry import Registry
from control.job_states import ACTIVE, check_move, has_ended
from control.jobs.dispatch import Dispatch
from control.jobs.going_on import refused
from control.jobs.intake import Taken, fail, take_batch
from control.jobs.losing import Loss, lose
from control.jobs.moving import Movement, Stuck
from control.jobs.placing import Placed, Placing, Planner, as_found, plan_changed
from control.jobs.recovery import Recovery, RecoveryTools, start_again, waiting
from control.jobs.relaying import RelayTerms
from control.jobs.results import Results
from control.jobs.starting import Attempt, stages_of
from control.jobs.verdict import record_of
from control.jobs.views import job_view, median_step_s
from control.records.events import Events
from control.records.job_files import JobFiles
from control.snapshots.keeper import SnapshotKey, Snapshots
from control.store import jobs, records, stages
from control.store.database import Database, Tx
from control.store.files import StoredFile
from control.store.jobs import Job
from transport.api.jobs import JobsSubmit, JobView, ShownStage
from transport.errors import SwarmError, not_found
from transport.ids import RandomBytes, mint
from transport.orders import TokenFile
from transport.reports import ReportBatch, ReportsTaken

log = logging.getLogger(__name__)

Commit = Callable[[Callable[[Tx], JobView]], Awaitable[JobView]]
"""Runs a change in a transaction, once for each request_id, and answers after the commit."""
Seen = Callable[[JobView], Awaitable[None]]
PASSES = ("unavailable", "storage-full", "rate-limited", "internal")
"""Codes of trouble that may pass: what meets it is tried again."""
TOKENIZING = "its data is being tokenized"


@dataclass(frozen=True)
class Until:
    """What jobs_wait waits for: the end, or a step, at most so long."""

    step: int | None
    timeout_s: float


@dataclass(frozen=True)
class Tools:
    """What the life of a job works with."""

    database: Database
    registry: Registry
    planner: Planner
    events: Events
    files: JobFiles
    results: Results
    snapshots: Snapshots
    clock: Clock
    random_bytes: RandomBytes
    relay: RelayTerms | None = None
    """Where stages meet that cannot dial each other; None: nowhere."""
    auto_replace: bool = True
    """Jobs that lose a stage go on by themselves."""


class Jobs:
    """All jobs of all pools."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._database = tools.database
        self._registry = tools.registry
        self._dispatch = Dispatch(tools.database, tools.registry, tools.clock, tools.relay)
        self._plans = Placing(tools.database, tools.planner, tools.clock)
        self._recovery = Recovery(
            RecoveryTools(
                tools.database,
                tools.registry,
                tools.planner,
                tools.snapshots,
                tools.clock,
                tools.auto_replace,
            )
        )
        self._movement = Movement(tools.clock)
        self._placing = asyncio.Lock()
        self._moved: dict[str, asyncio.Event] = {}
        self._finishing: dict[str, asyncio.Task[None]] = {}

    async def load(self) -> None:
        """Go on where an earlier life of this leader was: orders again, ends that were cut off."""
        active = await self._database.read(lambda tx: jobs.in_states(tx, ACTIVE))
        for job in active:
            await self.follow(job.job_id, job.pool)

    async def close(self) -> None:
        """Let results that are being joined come to an end."""
        await asyncio.gather(*self._finishing.values(), return_exceptions=True)

    # --- asked for ---------------------------------------------------------------------------

    async def submit(self, ask: JobsSubmit, who: str, commit: Commit) -> JobView:
        """Accept a job: it starts at once or waits with the reason.

        Raises:
            SwarmError: plan-changed, expired, not-found or cannot-fit for a pinned plan; whatever
                the planner refuses for good.
        """
        await self._tools.planner.warm(ask.pool, ask.config)
        async with self._placing:
            placed = await self._plans.submitted(ask)
            job = self._new_job(ask, who, placed)

            def change(tx: Tx) -> JobView:
                self._insert(tx, job, placed)
                return job_view(tx, job.job_id)

            view = await commit(change)
        await self.follow(view.job_id, view.pool)
        return view

    async def cancel(self, job_id: str, commit: Commit) -> JobView:
        """Stop a job for good. One that is cancelled already stays so.

        Raises:
            SwarmError: not-found; conflict when it has completed or failed.
        """

        def change(tx: Tx) -> JobView:
            job = jobs.find(tx, job_id)
            if job is None:
                raise not_found("job", job_id, hint="list them with jobs_list")
            if job.state != "cancelled":
                check_move(job_id, job.state, "cancelled")
                now = self._tools.clock.now()
                jobs.update(tx, job_id, state="cancelled", reason="cancelled by hand", ended_at=now)
            return job_view(tx, job_id)

        view = await commit(change)
        await self.follow(job_id, view.pool)
        return view

    async def resume(self, job_id: str, commit: Commit, *, place_again: bool = False) -> JobView:
        """Go on with a job from its newest saved step.

        Raises:
            SwarmError: conflict with facts["reason"]; cannot-fit when it is placed again.
        """
        async with self._placing:
            job = await self._database.read(lambda tx: jobs.find(tx, job_id))
            if job is None:
                raise not_found("job", job_id, hint="list them with jobs_list")
            place = await self._recovery.place_by_hand(job, again=place_again)
            before, now = (job.attempt, job.state), self._tools.clock.now()

            def change(tx: Tx) -> JobView:
                fresh = jobs.find(tx, job_id)
                assert fresh is not None
                if (fresh.attempt, fresh.state) != before:
                    words = f"job {job_id} has moved on meanwhile"
                    raise refused(fresh, "already-recovering", words, "look at it with jobs_get")
                start_again(tx, fresh, place, ("hand", "resumed by hand"), now)
                return job_view(tx, job_id)

            view = await commit(change)
        await self.follow(job_id, view.pool)
        return view

    async def view(self, job_id: str) -> JobView:
        """A job as it is now, and what its stages wait for."""
        view = await self._database.read(lambda tx: job_view(tx, job_id))
        shown = [self._with_wait(view, stage) for stage in view.stages]
        ready = self._recovery.ready.told(job_id, view.attempt) if view.state == "running" else []
        return view.model_copy(update={"stages": shown, "if_lost": ready})

    def _with_wait(self, view: JobView, stage: ShownStage) -> ShownStage:
        member = self._registry.find(stage.fellow_id)
        told = member.beat.stages if member is not None and member.beat is not None else []
        name = (view.job_id, view.attempt, stage.stage)
        waits = (s.waits_for for s in told if (s.job_id, s.attempt, s.stage) == name)
        found = next(waits, "")
        return stage.model_copy(update={"untrusted_waits_for": found}) if found else stage

    async def wait(self, job_id: str, until: Until, seen: Seen | None = None) -> JobView:
        """A job once it has ended or done a step, or when the time is over.

        `seen` is called with the job each time it has moved on the way.
        """
        deadline = self._tools.clock.monotonic() + until.timeout_s
        while True:
            moved = self._moved.setdefault(job_id, asyncio.Event())
            view = await self.view(job_id)
            if seen is not None:
                await seen(view)
            reached = until.step is not None and view.step >= until.step
            left = deadline - self._tools.clock.monotonic()
            if reached or has_ended(view.state) or left <= 0:
                return view
            await wait_for_event(moved, left, self._tools.clock)

    # --- told by fellows ---------------------------------------------------------------------

    async def take_reports(self, fellow_id: str, batch: ReportBatch) -> ReportsTaken:
        """Store a batch for good, then let follow what follows.

        Raises:
            SwarmError: forbidden when it speaks for another fellow.
        """
        if batch.fellow_id != fellow_id:
            raise SwarmError(
                "forbidden", "a fellow can only report itself", hint="use its own credential"
            )
        self._registry.get(fellow_id)
        now, files = self._tools.clock.now(), self._tools.files
        may_recover = self._tools.auto_replace
        taken = await self._database.write(
            lambda tx: take_batch(tx, batch, files, now, may_recover=may_recover)
        )
        self._registry.note_committed(fellow_id, taken.committed)
        await self._after_reports(fellow_id, taken)
        return ReportsTaken(committed=taken.committed, refused=taken.refused)

    async def take_snapshot(self, key: SnapshotKey, file: StoredFile) -> None:
        """Keep a stage's saved state; tell when the step counts from now on."""
        saved = await self._tools.snapshots.take(key, file)
        if saved is not None:
            job = await self._database.read(lambda tx: jobs.find(tx, key.job_id))
            assert job is not None
            self._tell(key.job_id, job.pool, "saved")

    async def lose_fellow(self, fellow_id: str, why: str) -> None:
        """Let the jobs that a fellow was running a stage of go on without it, or fail."""

        def change(tx: Tx) -> list[Job]:
            lost = []
            for job in jobs.in_states(tx, ACTIVE):
                rows = stages.of_job(tx, job.job_id, job.attempt)
                row = next((r for r in rows if r.fellow_id == fellow_id), None)
                if row is not None and row.phase != "done":
                    at = f" at step {job.step}" if job.step else " before its first step"
                    words = f"stage {row.stage} of {len(rows)} was lost{at}: {fellow_id} {why}"
                    loss = Loss(self._tools.clock.now(), words)
                    lose(tx, job, loss, may_recover=self._tools.auto_replace)
                    lost.append(job)
            return lost

        if self._dispatch.is_working(fellow_id):
            for job in await self._database.write(change):
                await self.follow(job.job_id, job.pool)

    async def look_for_stuck(self) -> None:
        """Let jobs go on whose stages stand still although their fellows answer."""
        self._movement.note(self._registry.every())
        if not self._movement.any_still():
            return
        for job, num_stages, step_s in await self._database.read(_running):
            stuck = self._movement.stuck((job.job_id, job.attempt), num_stages, step_s)
            if stuck is not None and await self._database.write(
                lambda tx, j=job, s=stuck: self._lose_stuck(tx, j, s)  # type: ignore[misc]
            ):
                await self.follow(job.job_id, job.pool)

    def _lose_stuck(self, tx: Tx, job: Job, stuck: Stuck) -> bool:
        fresh = jobs.find(tx, job.job_id)
        if fresh is None or (fresh.attempt, fresh.state) != (job.attempt, "running"):
            return False
        at = f" at step {job.step}" if job.step else ""
        loss = Loss(self._tools.clock.now(), f"{stuck.words}{at}")
        lose(tx, fresh, loss, may_recover=self._tools.auto_replace)
        if stuck.waits:
            jobs.update(tx, job.job_id, error="; ".join(stuck.waits)[:2000])
        return True

    # --- by itself ---------------------------------------------------------------------------

    async def keep_ready(self) -> None:
        """Have a plan for the loss of each single fellow of each running job."""
        for job in await self._recovery.keep_ready():
            self._tell(job.job_id, job.pool, "planned")

    async def schedule(self) -> None:
        """Start what can start, in order of submission; one that waits blocks no later one."""
        self._dispatch.expire()
        for job_id in self._dispatch.done_but_active():
            self._begin_finish(job_id)  # its end could not be written when its last stage told
        async with self._placing:
            await self._go_on()
            for job in await self._database.read(lambda tx: jobs.in_states(tx, ["pending"])):
                try:
                    await self._try_start(job)
                except SwarmError as error:
                    await self._give_up(job, error)
                except Exception:
                    log.exception("a waiting job could not be planned", extra={"job": job.job_id})

    async def _go_on(self) -> None:
        """Find a place for jobs that lost a stage."""
        for job in await self._database.read(waiting):
            try:
                if await self._recovery.try_to_go_on(job):
                    await self.follow(job.job_id, job.pool)
            except SwarmError as error:
                log.warning("not gone on yet: %s", error.message, extra={"job": job.job_id})
            except Exception:
                log.exception("a job could not go on", extra={"job": job.job_id})

    async def _try_start(self, job: Job) -> None:
        placed, reason = await self._plans.waiting(job)

        def change(tx: Tx) -> bool:
            fresh = jobs.find(tx, job.job_id)
            if fresh is None or fresh.state != "pending":
                return False
            if reason or placed is None or placed.tokens is None:
                words = reason or (placed.waits if placed else "") or TOKENIZING
                if words != fresh.reason:
                    jobs.update(tx, job.job_id, reason=words)
                return words != fresh.reason
            return self._start(tx, fresh, placed, placed.tokens)

        if await self._database.write(change):
            await self.follow(job.job_id, job.pool)

    async def _give_up(self, job: Job, error: SwarmError) -> None:
        """A waiting job that can never run fails; trouble that may pass is the reason it waits."""
        passes = error.code in PASSES

        def change(tx: Tx) -> None:
            fresh = jobs.find(tx, job.job_id)
            if fresh is None or fresh.state != "pending":
                return
            if passes:
                jobs.update(tx, job.job_id, reason=error.message)
            else:
                fail(tx, fresh, error.message, self._tools.clock.now())

        await self._database.write(change)
        await self.follow(job.job_id, job.pool)

    # --- parts -------------------------------------------------------------------------------

    def _new_job(self, ask: JobsSubmit, who: str, placed: Placed) -> Job:
        plan, view = placed.plan, placed.plan.view
        return Job(
            number=0,
            job_id=mint("j", self._tools.random_bytes),
            pool=ask.pool,
            made_by=who,
            name=ask.config.name,
            config=as_found(ask.config, plan),
            state="pending",
            reason=(placed.waits or TOKENIZING) if plan.fits else plan.reason,
            plan_id=ask.plan_id,
            pinned=ask.plan_id is not None,
            plan=plan.model_dump_json(),
            model_id=view.model_id,
            revision=view.model.revision if view.model else None,
            attempt=0,
            steps=ask.config.train.steps,
            created_at=self._tools.clock.now(),
        )

    def _insert(self, tx: Tx, job: Job, placed: Placed) -> None:
        jobs.add(tx, job)
        if not placed.plan.fits or placed.tokens is None:
            return
        if not self._start(tx, job, placed, placed.tokens) and job.pinned:
            raise plan_changed(placed.plan, ["a fellow of the plan has started another job"])

    def _start(self, tx: Tx, job: Job, placed: Placed, tokens: TokenFile) -> bool:
        """Make a pending job an attempt on fellows. False when one of them is taken by now."""
        plan = placed.plan
        taken = stages.busy(tx, (stage.fellow_id for stage in plan.stages))
        if taken:
            other = next(iter(taken.values()))
            jobs.update(tx, job.job_id, reason=f"its fellows are taken by job {other}")
            return False
        attempt = Attempt(job.job_id, job.attempt + 1, plan, tokens)
        for row in stages_of(attempt):
            stages.add(tx, row)
        assert plan.view.model is not None
        jobs.update(
            tx,
            job.job_id,
            state="starting",
            reason="",
            attempt=attempt.number,
            plan=plan.model_dump_json(),
            plan_id=plan.plan_id,
            config=as_found(job.config, plan),
            revision=plan.view.model.revision,
            started_at=self._tools.clock.now(),
        )
        return True

    async def _after_reports(self, fellow_id: str, taken: Taken) -> None:
        rows: dict[str, list[dict[str, object]]] = {}
        for pool, job_id, step in taken.progress:
            self._registry.note_progress(fellow_id, step.step, step.loss)
            rows.setdefault(job_id, []).append(step.model_dump(exclude={"kind"}))
            self._tell(job_id, pool, "step")
        for job_id, new in rows.items():
            await self._append_records(job_id, new)
        self._registry.take_link_figures(taken.link_figures)
        for tested in taken.tested:
            self._registry.note_tested(fellow_id, tested)
        for told in taken.measured:
            self._registry.take_speeds(fellow_id, told.card_index, list(told.speeds))
            self._registry.note_measured(fellow_id, told.token, told.card_index)
        for job_id, pool in taken.logged.items():
            self._tools.events.publish("logs", pool, "lines", job_id)
        for job_id, pool in taken.touched.items():
            await self.follow(job_id, pool)

    async def _append_records(self, job_id: str, new: list[dict[str, object]]) -> None:
        """The file follows the database, and is written anew from it when the job is done."""
        try:
            await asyncio.to_thread(self._tools.files.append_records, job_id, new)
        except SwarmError as error:
            log.warning("steps are not in their file yet: %s", error, extra={"job": job_id})

    async def follow(self, job_id: str, pool: str) -> None:
        """Do what the rows of a job ask for: orders, its end, word to those who wait."""
        job, rows = await self._dispatch.send(job_id)
        if job.state in ACTIVE and rows and all(row.phase == "done" for row in rows):
            self._begin_finish(job_id)
        if has_ended(job.state) or job.loss_of is not None:
            self._registry.heard.set()
        self._tell(job_id, pool, "state")

    def _tell(self, job_id: str, pool: str, what: str) -> None:
        moved = self._moved.pop(job_id, None)
        if moved is not None:
            moved.set()
        self._tools.events.publish("jobs", pool, what, job_id)

    def _begin_finish(self, job_id: str) -> None:
        if job_id not in self._finishing:
            task = asyncio.create_task(self._finish(job_id), name=f"finish {job_id}")
            self._finishing[job_id] = task
            task.add_done_callback(lambda _: self._finishing.pop(job_id, None))

    async def _finish(self, job_id: str) -> None:
        """Join what the stages sent; complete, or fail with the reason."""
        job, rows, steps = await self._database.read(lambda tx: _all_of(tx, job_id))
        clock = self._tools.clock
        changes: dict[str, Any]
        try:
            await asyncio.to_thread(self._tools.files.rewrite_records, job_id, steps)
            adapter = await self._tools.results.join(rows, is_wanted=job.probe_of is None)
            changes = {"state": "completed", "reason": "", "adapter": adapter}
        except SwarmError as error:
            # A full disk is no reason to lose what was trained: the next turn tries again.
            changes = {"reason": error.message}
            if error.code not in PASSES:
                changes["state"] = "failed"
        except Exception as error:
            log.exception("a result could not be joined", extra={"job": job_id})
            words = f"its result could not be joined ({type(error).__name__})"
            changes = {"state": "failed", "reason": words}

        def change(tx: Tx) -> None:
            fresh = jobs.find(tx, job_id)
            if fresh is not None and fresh.state in ACTIVE:
                ended_at = clock.now() if "state" in changes else None
                jobs.update(tx, job_id, **changes, ended_at=ended_at)

        try:
            await self._database.write(change)
        except SwarmError as error:
            log.warning("an end is not written yet: %s", error, extra={"job": job_id})
        else:
            if "state" in changes:
                await self.follow(job_id, job.pool)


def _running(tx: Tx) -> list[tuple[Job, int, float | None]]:
    """Running jobs, their stages, and how long their steps take."""
    found = jobs.in_states(tx, ["running"])
    every = [(job, stages.of_job(tx, job.job_id, job.attempt)) for job in found]
    return [(job, len(rows), median_step_s(tx, job, rows)) for job, rows in every]


def _all_of(tx: Tx, job_id: str) -> tuple[Job, list[stages.Stage], Sequence[dict[str, object]]]:
    job = jobs.find(tx, job_id)
    assert job is not None
    told = [*records.every_step(tx, job_id), *record_of(tx, job_id)]
    return job, stages.of_job(tx, job_id, job.attempt), told
