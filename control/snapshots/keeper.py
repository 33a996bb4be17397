"""Keeps the saved states of jobs: a step counts once every stage's file arrived and checked out.

A file is on the disk, synced, before its row is committed; a row is gone before its file is. What
a crash leaves between the two is put right when the leader starts. Disk work runs in threads.
"""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from control.clock import Clock
from control.snapshots.check import check_saved
from control.store import jobs, snapshots, storage
from control.store.admission import admit
from control.store.database import Database, Tx
from control.store.files import StoredFile, settle, sha256_of
from control.store.jobs import Job
from control.store.snapshots import Saved, SavedStep
from control.store.stages import Stage
from transport.errors import SwarmError
from transport.units import human_bytes

log = logging.getLogger(__name__)

KEPT_STEPS = 2
KEPT_S = 7 * 86_400.0
"""The newest saved step outlives its job by so long."""
StepName = tuple[int, int]
"""(attempt, step)."""


@dataclass(frozen=True)
class SnapshotKey:
    """Whose stage of which attempt sends which step."""

    fellow_id: str
    job_id: str
    attempt: int
    stage: int
    step: int


@dataclass(frozen=True)
class SnapshotTerms:
    """Where saved states lie, and how much an owner may keep."""

    folder: Callable[[str], Path]
    """job_id -> the job's own folder."""
    limit_bytes: int


class Snapshots:
    """The saved states of all jobs."""

    def __init__(self, database: Database, clock: Clock, terms: SnapshotTerms) -> None:
        self._database = database
        self._clock = clock
        self._terms = terms
        self._reserved: dict[object, tuple[str, int]] = {}
        """One entry for each upload under way: (owner, bytes)."""

    @property
    def limit_bytes(self) -> int:
        """What an owner's pools may keep."""
        return self._terms.limit_bytes

    def path(self, job_id: str, name: StepName, stage: int) -> Path:
        """Where a stage's file of a step lies."""
        return self._step_folder(job_id, name) / f"stage-{stage}.safetensors"

    def _step_folder(self, job_id: str, name: StepName) -> Path:
        attempt, step = name
        return self._folder(job_id) / f"attempt-{attempt}" / f"step-{step}"

    def _folder(self, job_id: str) -> Path:
        return self._terms.folder(job_id) / "snapshots"

    # --- received ----------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def reserved(self, key: SnapshotKey, size_bytes: int) -> AsyncIterator[None]:
        """Room for an upload, held until it is stored or given up.

        Raises:
            SwarmError: not-found for another's stage; conflict for a stale attempt or an ended
                job; invalid-input for a step that was never planned; storage-full when the owner's
                limit has no room: saving pauses with this reason, and the run goes on.
        """

        def look(tx: Tx) -> tuple[str, int, list[StepName]]:
            job, _ = _admit(tx, key)
            owner = storage.owner_of(job.pool)
            # Nobody sends an older step any more: what did not become whole makes room.
            stale = _unfinished_before(tx, key.job_id, key.step)
            for attempt, step in stale:
                snapshots.drop_step(tx, key.job_id, attempt, step)
            return owner, storage.used_bytes(tx, owner), stale

        owner, used, stale = await self._database.write(look)
        await self._remove(key.job_id, stale)
        used += sum(size for one, size in self._reserved.values() if one == owner)
        if used + size_bytes > self._terms.limit_bytes:
            refusal = storage.full(owner, used, size_bytes, self._terms.limit_bytes)
            await self.note_paused(key.job_id, refusal)
            raise refusal
        upload = object()
        self._reserved[upload] = (owner, size_bytes)
        try:
            yield
        finally:
            del self._reserved[upload]

    async def take(self, key: SnapshotKey, file: StoredFile) -> SavedStep | None:
        """Keep a received file: checked, moved away, noted. The step, if it counts from now on.

        The same bytes again change nothing.

        Raises:
            SwarmError: as reserved; invalid-input when the file is not that saved state; conflict
                when other bytes are there already.
        """
        order = (await self._database.read(lambda tx: _admit(tx, key)))[1].work
        await asyncio.to_thread(check_saved, file.path, order, key.step)
        target = self.path(key.job_id, (key.attempt, key.step), key.stage)
        if await self._database.read(lambda tx: _is_known(tx, key, file)):
            return None
        await asyncio.to_thread(settle, file.path, target)
        now, limit = self._clock.now(), self._terms.limit_bytes

        def store(tx: Tx) -> tuple[SavedStep | None, list[StepName]]:
            job, stage = _admit(tx, key)
            owner = storage.owner_of(job.pool)
            used = storage.used_bytes(tx, owner)
            if used + file.size_bytes > limit:
                raise storage.full(owner, used, file.size_bytes, limit)
            if not snapshots.add(tx, _row(key, stage, file, now)):
                return None, []
            changes = {"saved_step": key.step, "saved_at": now, "saving_paused": ""}
            jobs.update(tx, key.job_id, **changes)
            old = _drop_beyond(tx, key.job_id, KEPT_STEPS)
            return SavedStep(key.job_id, key.attempt, key.step, now), old

        try:
            whole, old = await self._database.write(store)
        except SwarmError:
            await self._drop_unnoted(key)
            raise
        await self._remove(key.job_id, old)
        return whole

    async def _drop_unnoted(self, key: SnapshotKey) -> None:
        """Remove a file whose row could not be written: nobody is charged for it."""
        row = await self._database.read(
            lambda tx: snapshots.find(tx, key.job_id, key.attempt, key.step, key.stage)
        )
        if row is None:
            path = self.path(key.job_id, (key.attempt, key.step), key.stage)
            await asyncio.to_thread(path.unlink, missing_ok=True)

    async def note_paused(self, job_id: str, why: SwarmError) -> None:
        """Say in the job why nothing is saved now."""

        def note(tx: Tx) -> None:
            jobs.update(tx, job_id, saving_paused=f"saving is paused: {why.message}")

        with contextlib.suppress(SwarmError):  # a full disk may refuse even this
            await self._database.write(note)

    # --- given out ---------------------------------------------------------------------------

    async def newest_whole(self, job_id: str) -> list[Saved]:
        """The files of the newest step that counts and whose bytes are still right; [] if none.

        A step with a damaged file is given up, so that the one before it counts.
        """
        for one in await self._database.read(lambda tx: snapshots.steps(tx, job_id)):
            name = (one.attempt, one.step)
            files = await self._database.read(
                lambda tx, n=name: snapshots.of_step(tx, job_id, *n)  # type: ignore[misc]
            )
            bad = await asyncio.to_thread(self._damaged, files)
            if bad is None:
                return files
            log.warning(
                "a saved step is damaged", extra={"job": job_id, "step": one.step, "stage": bad}
            )
            await self._give_up(job_id, [name])
        return []

    def _damaged(self, files: Iterable[Saved]) -> int | None:
        """The first stage whose file is not what was stored."""
        for one in files:
            path = self.path(one.job_id, (one.attempt, one.step), one.stage)
            if not path.is_file() or sha256_of(path) != one.sha256:
                return one.stage
        return None

    async def file(self, job_id: str, step: int, stage: int) -> StoredFile | None:
        """A stage's file of a step that counts, the newest attempt's."""

        def look(tx: Tx) -> Saved | None:
            found = (s for s in snapshots.steps(tx, job_id) if s.step == step)
            whole = next(found, None)
            return snapshots.find(tx, job_id, whole.attempt, step, stage) if whole else None

        found = await self._database.read(look)
        if found is None:
            return None
        path = self.path(job_id, (found.attempt, step), stage)
        return StoredFile(path, found.size_bytes, found.sha256)

    # --- kept and expired --------------------------------------------------------------------

    async def load(self) -> None:
        """Bring rows and files together again after whatever ended the leader before."""
        rows = await self._database.read(snapshots.every)
        wrong = await asyncio.to_thread(self._missing, rows)
        by_job: dict[str, set[StepName]] = {}
        for one in wrong:
            by_job.setdefault(one.job_id, set()).add((one.attempt, one.step))
        for job_id, names in by_job.items():
            log.warning("files of saved steps are gone", extra={"job": job_id})
            await self._give_up(job_id, sorted(names))
        gone = {(one.job_id, one.attempt, one.step) for one in wrong}
        kept = {
            self.path(r.job_id, (r.attempt, r.step), r.stage)
            for r in rows
            if (r.job_id, r.attempt, r.step) not in gone
        }
        await asyncio.to_thread(self._sweep, kept)
        await self.expire()

    def _missing(self, rows: Iterable[Saved]) -> list[Saved]:
        def is_there(one: Saved) -> bool:
            path = self.path(one.job_id, (one.attempt, one.step), one.stage)
            return path.is_file() and path.stat().st_size == one.size_bytes

        return [one for one in rows if not is_there(one)]

    def _sweep(self, kept: set[Path]) -> None:
        """Remove files that no row names."""
        every = self._folder("*")
        for path in every.parent.parent.glob("*/snapshots/attempt-*/step-*/*"):
            if path not in kept:
                path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    path.parent.rmdir()

    async def expire(self) -> None:
        """Of ended jobs keep the newest saved step, and for 7 days only."""
        now = self._clock.now()

        def look(tx: Tx) -> dict[str, list[StepName]]:
            dropped: dict[str, list[StepName]] = {}
            for job_id in {one.job_id for one in snapshots.every(tx)}:
                job = jobs.find(tx, job_id)
                if job is None or job.ended_at is None:
                    continue
                kept = 1 if now - job.ended_at < KEPT_S else 0
                names = _drop_beyond(tx, job_id, kept)
                if not kept:
                    jobs.update(tx, job_id, saved_step=None, saved_at=None)
                if names:
                    dropped[job_id] = names
            return dropped

        for job_id, names in (await self._database.write(look)).items():
            await self._remove(job_id, names)

    async def _give_up(self, job_id: str, names: list[StepName]) -> None:
        def drop(tx: Tx) -> None:
            for attempt, step in names:
                snapshots.drop_step(tx, job_id, attempt, step)
            left = snapshots.steps(tx, job_id)
            newest = (left[0].step, left[0].saved_at) if left else (None, None)
            jobs.update(tx, job_id, saved_step=newest[0], saved_at=newest[1])

        await self._database.write(drop)
        await self._remove(job_id, names)

    async def _remove(self, job_id: str, names: Iterable[StepName]) -> None:
        folders = [self._step_folder(job_id, name) for name in names]
        if folders:
            await asyncio.to_thread(_remove_folders, folders)


def _remove_folders(folders: Iterable[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _admit(tx: Tx, key: SnapshotKey) -> tuple[Job, Stage]:
    job, stage = admit(tx, key)
    resume = stage.work.resume
    first = resume.step + 1 if resume else 1
    if not first <= key.step < job.steps:
        raise SwarmError(
            "invalid-input",
            f"step {key.step} cannot be saved: this attempt runs steps {first} to {job.steps}",
            hint="stop this worker: it does not follow its order",
        )
    return job, stage


def _is_known(tx: Tx, key: SnapshotKey, file: StoredFile) -> bool:
    """Whether this upload came before, or came too late to matter.

    Raises:
        SwarmError: conflict when other bytes came before.
    """
    known = snapshots.find(tx, key.job_id, key.attempt, key.step, key.stage)
    if known is None:
        whole = snapshots.steps(tx, key.job_id)
        return bool(whole) and key.step <= whole[0].step
    if known.sha256 != file.sha256:
        raise SwarmError(
            "conflict",
            f"stage {key.stage} has sent other bytes for step {key.step} before",
            hint="a step is saved once",
            facts={"known": known.sha256, "size": human_bytes(known.size_bytes)},
        )
    return True


def _row(key: SnapshotKey, stage: Stage, file: StoredFile, now: float) -> Saved:
    order = stage.work
    return Saved(
        job_id=key.job_id,
        attempt=key.attempt,
        step=key.step,
        stage=key.stage,
        num_stages=order.num_stages,
        first_layer=order.first_layer,
        last_layer=order.last_layer,
        sha256=file.sha256,
        size_bytes=file.size_bytes,
        received_at=now,
    )


def _unfinished_before(tx: Tx, job_id: str, step: int) -> list[StepName]:
    whole = {(one.attempt, one.step) for one in snapshots.steps(tx, job_id)}
    names = {(one.attempt, one.step) for one in snapshots.of_job(tx, job_id)}
    return sorted(name for name in names - whole if name[1] < step)


def _drop_beyond(tx: Tx, job_id: str, kept: int) -> list[StepName]:
    """Forget whole steps beyond the newest `kept`, and unfinished ones that a whole one outdid."""
    whole = [(one.attempt, one.step) for one in snapshots.steps(tx, job_id)]
    old = whole[kept:]
    if whole or not kept:
        newest = whole[0][1] if kept else 1 << 62
        old += _unfinished_before(tx, job_id, newest)
    for attempt, step in set(old):
        snapshots.drop_step(tx, job_id, attempt, step)
    return sorted(set(old))
