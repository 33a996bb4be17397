"""Verifications: a job's split run held against one process on a small probe.

The probe is a job of its own on the stages of the verified one; when it has completed, a fellow
whose memory holds the whole model trains the same in one process. A fellow is told by its desired
state, so a lost message or a restart changes nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from control.clock import Clock
from control.fellows.clean_text import clean, clean_code
from control.fellows.registry import Member, Registry
from control.job_states import ACTIVE
from control.jobs import verdict
from control.jobs.lifecycle import PASSES
from control.jobs.planner import PoolPlanner
from control.records.job_files import JobFiles
from control.store import jobs, stages, verifications
from control.store.database import Database, Tx
from control.store.jobs import Job
from control.store.stages import Stage
from control.store.verifications import Verification
from stage_runtime.model_facts import ModelFacts
from stage_runtime.places import Device
from stage_runtime.quantized_costs import NF4_BLOCK
from stage_runtime.reference_costs import reference_bytes
from transport.api.operation import Next
from transport.api.verify import VerifyView
from transport.cards import CardReport
from transport.errors import SwarmError
from transport.ids import RandomBytes, mint
from transport.orders import CardShare, ReferenceOrder, StageOrder, TrainSettings
from transport.reports import ReferenceFailed, ReferenceTrained
from transport.units import human_bytes

log = logging.getLogger(__name__)

FEATURE = "reference"
"""Fellows of versions before verifications lack it."""
KEEP_S = 60.0
"""A fellow that has been silent for less keeps its order: it may only have lost its network."""
LONGEST_S = 6 * 3600.0
"""A run in one process that hangs must not keep its fellow for good."""
TURN_S = 1.0
"""How often a caller who waits looks."""
Commit = Callable[[Callable[[Tx], VerifyView]], Awaitable[VerifyView]]


@dataclass(frozen=True)
class VerifyTools:
    """What verifications work with."""

    database: Database
    registry: Registry
    planner: PoolPlanner
    files: JobFiles
    has_tokens: Callable[[str], bool]
    """Whether a token file is still kept, by its digest."""
    follow: Callable[[str, str], Awaitable[None]]
    """job_id, pool: its rows have changed."""
    clock: Clock
    random_bytes: RandomBytes


@dataclass(frozen=True)
class Seat:
    """A card that holds the whole model for a probe."""

    member: Member
    card: CardReport
    needed_bytes: int


class Verifications:
    """Verifications of all jobs."""

    def __init__(self, tools: VerifyTools) -> None:
        self._tools = tools
        self._database = tools.database
        self._lock = asyncio.Lock()

    async def ask(self, job: Job, commit: Commit, *, again: bool) -> VerifyView:
        """Begin, or tell of the one that is there.

        Raises:
            SwarmError: conflict while the job or its fellows train, or when it never started;
                not-found when its data is gone; cannot-fit when no card holds the whole model.
        """
        before = await self._database.read(lambda tx: verifications.of_job(tx, job.job_id))
        may_begin = before is not None and before.state != "probing"
        wanted = before is None or before.state == "failed" or (again and may_begin)
        fresh = await self._prepared(job) if wanted else None

        def change(tx: Tx) -> VerifyView:
            if fresh is not None:
                _begin(tx, *fresh)
            return view_of(tx, job.job_id)

        async with self._lock:
            view = await commit(change)
        if fresh is not None:
            if before is not None:
                self._take_back(before)
            await self._tools.follow(view.verification.probe_job_id, job.pool)
            await self._tools.follow(job.job_id, job.pool)
        return view

    async def wait(self, job_id: str, timeout_s: float) -> VerifyView:
        """The verification once it is over, or when the time is."""
        clock = self._tools.clock
        deadline = clock.monotonic() + timeout_s
        while True:
            await self.turn()
            view = await self._database.read(lambda tx: view_of(tx, job_id))
            left = deadline - clock.monotonic()
            if left <= 0 or view.verification.state in ("done", "failed"):
                return view
            await clock.wait(min(TURN_S, left))

    async def _prepared(self, job: Job) -> tuple[Verification, Job, list[Stage]]:
        """The verification, its probe and the probe's stages, as they would be stored."""
        rows = await self._database.read(lambda tx: stages.of_job(tx, job.job_id, job.attempt))
        _refuse(job, rows)
        work = rows[0].work
        if not self._tools.has_tokens(work.tokens.digest):
            raise SwarmError(
                "not-found",
                f"the tokens of job {job.job_id} are not kept any more: its data was removed",
                hint="submit the job again, and verify that one",
            )
        for row in rows:
            member = self._tools.registry.find(row.fellow_id)
            if member is None or not member.online:
                raise SwarmError(
                    "unavailable",
                    f"{row.fellow_id} of the job's plan is not connected",
                    hint="start it, or verify a job of fellows that are there",
                )
        settings, differs = verdict.probe_settings(work.settings)
        facts = await self._tools.planner.facts(job.model_id)
        _refuse_without_seat(self._seats(job.pool, facts, settings), job.job_id)
        return self._probe(job, rows, settings, differs)

    def _probe(
        self, job: Job, rows: list[Stage], settings: TrainSettings, differs: list[str]
    ) -> tuple[Verification, Job, list[Stage]]:
        now, random_bytes = self._tools.clock.now(), self._tools.random_bytes
        probe_id = mint("j", random_bytes)
        train = job.config.train.model_copy(
            update={
                "steps": settings.steps,
                "batch_size": settings.batch_size,
                "snapshot_every_steps": 0,
            }
        )
        probe = Job(
            number=0,
            job_id=probe_id,
            pool=job.pool,
            made_by=job.made_by,
            name=f"verify {job.job_id}",
            config=job.config.model_copy(update={"train": train}),
            state="starting",
            reason="",
            plan_id=job.plan_id,
            pinned=True,
            plan=job.plan,
            model_id=job.model_id,
            revision=job.revision,
            attempt=1,
            steps=settings.steps,
            created_at=now,
            started_at=now,
            probe_of=job.job_id,
        )
        parts = [
            Stage(probe_id, 1, row.stage, row.fellow_id, row.hostname, _work(row, probe, settings))
            for row in rows
        ]
        verify_id = mint("v", random_bytes)
        one = Verification(job.job_id, verify_id, probe_id, "probing", "", now, differs)
        return one, probe, parts

    # --- the one process -----------------------------------------------------------------------

    async def turn(self) -> None:
        """Move on every verification whose probe has ended."""
        async with self._lock:
            for one in await self._database.read(verifications.unfinished):
                try:
                    await self._move_on(one)
                except SwarmError as error:
                    await self._stumble(one, error)

    async def _stumble(self, one: Verification, error: SwarmError) -> None:
        """Trouble that may pass is waited for; any other ends it."""
        if error.code in PASSES:
            await self._note(one, reason=error.message)
        else:
            await self._end(one, state="failed", reason=error.message)

    async def _move_on(self, one: Verification) -> None:
        probe, rows = await self._database.read(lambda tx: _probe_of(tx, one))
        if probe.state in ACTIVE:
            return
        if probe.state != "completed":
            words = f"the stages' probe {probe.job_id} is {probe.state}"
            words += f": {probe.reason}" if probe.reason else ""
            await self._end(one, state="failed", reason=words, error=probe.error)
            return
        if self._tools.clock.now() - one.asked_at > LONGEST_S:
            words = f"it took more than {LONGEST_S / 3600:.0f} h"
            await self._end(one, state="failed", reason=words)
            return
        member = self._kept(one)
        if member is not None and one.work is not None:
            self._tools.registry.order_reference(member.fellow_id, one.work)
            return
        self._take_back(one)
        facts = await self._tools.planner.facts(probe.model_id)
        seats = self._seats(probe.pool, facts, rows[0].work.settings)
        free = [seat for seat in seats if _is_free(seat)]
        if not free:
            words = "no fellow that holds the whole model is free"
            await self._note(one, state="waiting", reason=words, fellow_id=None, work=None)
            return
        of_plan = {row.fellow_id for row in rows}
        seat = max(free, key=lambda s: (s.member.fellow_id in of_plan, s.card.free_bytes or 0))
        order = _order(one, rows[0].work, seat, facts.num_layers)
        name = seat.member.fellow_id
        await self._note(one, state="comparing", reason="", fellow_id=name, work=order)
        self._tools.registry.order_reference(name, order)

    def _seats(self, pool: str, facts: ModelFacts, settings: TrainSettings) -> list[Seat]:
        """Every card of the pool that could compute it, and what it would need there."""
        found = []
        for member in self._tools.registry.of_pool(pool):
            if member.beat is None or FEATURE not in member.beat.machine.features:
                continue
            for card in member.cards():
                if member.online and _computes(card, facts, settings):
                    needed = reference_bytes(facts, settings, Device(card.kind))
                    found.append(Seat(member, card, needed))
        return found

    def _kept(self, one: Verification) -> Member | None:
        """Who has it already and is still there."""
        registry = self._tools.registry
        member = registry.find(one.fellow_id) if one.fellow_id is not None else None
        return member if member is not None and registry.silent_s(member) < KEEP_S else None

    def _take_back(self, one: Verification) -> None:
        for member in self._tools.registry.every():
            if member.reference is not None and member.reference.verify_id == one.verify_id:
                self._tools.registry.order_reference(member.fellow_id, None)

    async def take(self, fellow_id: str, told: ReferenceTrained | ReferenceFailed) -> None:
        """What the one process found, or why it could not. Said again it changes nothing."""
        one = await self._database.read(lambda tx: verifications.find(tx, told.verify_id))
        if one is None or one.fellow_id != fellow_id or one.state != "comparing":
            return
        if isinstance(told, ReferenceFailed):
            words = clean(f"{fellow_id}: {told.message} {told.hint}", 2500)
            reason = f"{fellow_id} could not train the probe: {clean_code(told.code)}"
            await self._end(one, state="failed", reason=reason, error=words)
            return
        found = told.model_dump(include={"losses", "held_out", "seconds", "peak_bytes"})
        alone = verdict.Losses(told.losses, told.held_out)
        if await self._database.read(lambda tx: verdict.are_comparable(tx, one, alone)):
            await self._end(one, state="done", told=found)
            await self._keep_record(one.job_id)
        else:
            words = "the stages and the one process told of different steps"
            await self._end(one, state="failed", reason=words, told=found)

    async def _keep_record(self, job_id: str) -> None:
        lines = await self._database.read(lambda tx: verdict.record_of(tx, job_id))
        try:
            await asyncio.to_thread(self._tools.files.append_records, job_id, lines)
        except SwarmError as error:
            log.warning("a verdict is not in its file yet: %s", error, extra={"job": job_id})

    async def _end(self, one: Verification, **changes: Any) -> None:
        self._take_back(one)
        await self._note(one, **changes, ended_at=self._tools.clock.now())

    async def _note(self, one: Verification, **changes: Any) -> None:
        if replace(one, **changes) == one:
            return
        await self._database.write(lambda tx: verifications.update(tx, one.verify_id, **changes))
        job = await self._database.read(lambda tx: jobs.find(tx, one.job_id))
        assert job is not None
        await self._tools.follow(one.job_id, job.pool)


def _refuse(job: Job, rows: list[Stage]) -> None:
    """Refuse a job that no probe can be made of.

    Raises:
        SwarmError: conflict.
    """
    words, hint = "", ""
    if job.probe_of is not None:
        words, hint = f"is itself a probe of {job.probe_of}", "verify that one"
    elif job.state in ACTIVE:
        words, hint = f"is {job.state}: its fellows train", "verify it when it has ended"
    elif not rows:
        words, hint = "has never started: it has no stages to verify", "let it run first"
    if words:
        raise SwarmError("conflict", f"job {job.job_id} {words}", hint=hint)


def _computes(card: CardReport, facts: ModelFacts, settings: TrainSettings) -> bool:
    """Whether plain transformers compute the job's number formats on a card."""
    if settings.quantization == "nf4" and card.kind == "cpu":
        # No other rows does bitsandbytes' own kernel undo rightly on a processor.
        whole = all(one.inputs % NF4_BLOCK == 0 for one in facts.linears)
        if not whole:
            return False
    return {settings.dtype, settings.quantization} - {"none"} <= {*card.number_formats}


def _refuse_without_seat(seats: list[Seat], job_id: str) -> None:
    if any((seat.card.free_bytes or 0) >= seat.needed_bytes for seat in seats):
        return
    if not seats:
        raise SwarmError(
            "unavailable",
            "no fellow of the pool can train the job's number format in one process",
            hint="update a fellow, or install its training packages",
        )
    best = max(seats, key=lambda seat: seat.card.free_bytes or 0)
    needed, free = min(seat.needed_bytes for seat in seats), best.card.free_bytes or 0
    raise SwarmError(
        "cannot-fit",
        f"to train the probe of {job_id} in one process, one card must hold the whole model:"
        f" about {human_bytes(needed)}, and the largest of the pool has {human_bytes(free)} free",
        hint="verify a smaller model of the same family with the same settings",
        facts={"needed_bytes": needed, "free_bytes": free},
    )


def _is_free(seat: Seat) -> bool:
    has_room = (seat.card.free_bytes or 0) >= seat.needed_bytes
    return has_room and not seat.member.is_training and not seat.member.is_measuring


def _begin(tx: Tx, one: Verification, probe: Job, parts: list[Stage]) -> None:
    taken = stages.busy(tx, (part.fellow_id for part in parts))
    if taken:
        fellow_id, other = next(iter(taken.items()))
        raise SwarmError(
            "conflict",
            f"{fellow_id} trains job {other} now",
            hint="verify when it has ended",
            facts={"fellow_id": fellow_id, "job_id": other},
        )
    jobs.add(tx, probe)
    for part in parts:
        stages.add(tx, part)
    verifications.put(tx, one)


def _work(row: Stage, probe: Job, settings: TrainSettings) -> StageOrder:
    return row.work.model_copy(
        update={
            "job_id": probe.job_id,
            "attempt": 1,
            "settings": settings,
            "evaluate_base": True,
            "resume": None,
        }
    )


def _order(one: Verification, work: StageOrder, seat: Seat, num_layers: int) -> ReferenceOrder:
    card = seat.card
    return ReferenceOrder(
        verify_id=one.verify_id,
        job_id=one.probe_job_id,
        model=work.model,
        settings=work.settings,
        tokens=work.tokens,
        card=CardShare(
            index=card.index,
            uuid=card.uuid,
            first_layer=0,
            last_layer=num_layers - 1,
            planned_bytes=seat.needed_bytes,
            budget_bytes=max(1, card.free_bytes or 0),
        ),
        threads=card.threads or 1,
    )


def _probe_of(tx: Tx, one: Verification) -> tuple[Job, list[Stage]]:
    probe = jobs.find(tx, one.probe_job_id)
    assert probe is not None
    return probe, stages.of_job(tx, probe.job_id, 1)


def view_of(tx: Tx, job_id: str) -> VerifyView:
    """The newest verification of a job, as it is answered."""
    one = verdict.shown_of_job(tx, job_id)
    assert one is not None
    me = {"job_id": job_id}
    is_over = one.state in ("done", "failed")
    following = (
        Next(operation="jobs_get", arguments=me, why="look at the job")
        if is_over
        else Next(operation="jobs_verify", arguments=me | {"timeout_s": 45}, why="wait for it")
    )
    return VerifyView(
        summary=verdict.summary_of(job_id, one), next=[following], job_id=job_id, verification=one
    )
