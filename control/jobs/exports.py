"""Whole checkpoints of finished jobs: a fellow merges, the leader receives piece by piece.

A fellow is told by its desired state, so a lost message or a restart changes nothing; another
fellow that makes the same files goes on with what is here, because equal input gives equal bytes.
"""

import asyncio
import hashlib
import os
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from control.clock import Clock
from control.fellows.clean_text import clean, clean_code
from control.fellows.registry import Member, Registry
from control.jobs.adapters import CONV1D, boundary_layers
from control.jobs.boundary_file import FILE, readme_part
from control.jobs.model_card import CardFacts, merged_card
from control.jobs.results import Results
from control.records.job_files import JobFiles
from control.store import exports, jobs, records, stages
from control.store.database import Database, Tx
from control.store.exports import Export
from control.store.files import (
    StoredFile,
    disk_refusal,
    settle,
    sha256_of,
    sync_folder,
    write_whole,
)
from control.store.jobs import Job
from control.store.stages import Stage
from transport.api.exports import ExportDtype, MergeView, ShownMerge
from transport.api.operation import Next
from transport.errors import SwarmError, not_found
from transport.ids import RandomBytes, mint
from transport.orders import ExportOrder, StageOrder
from transport.reports import ExportFailed
from transport.units import human_bytes

FILE_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")
CARD = "README.md"
KEEP_S = 60.0
"""A fellow that has been silent for less keeps its export: it may only have lost its network."""
Commit = Callable[[Callable[[Tx], MergeView]], Awaitable[MergeView]]


@dataclass(frozen=True)
class Piece:
    """A part of a file that a fellow sends."""

    name: str
    sha256: str
    """Of the whole file."""
    start: int
    end: int
    """One past its last byte."""
    size_bytes: int
    """Of the whole file."""


@dataclass(frozen=True)
class ExportTools:
    """What exports are made with."""

    database: Database
    registry: Registry
    results: Results
    files: JobFiles
    clock: Clock
    random_bytes: RandomBytes
    publish: Callable[[str, str, str, str], None]
    """topic, pool, what, job_id."""


class Exports:
    """Exports of all jobs."""

    def __init__(self, tools: ExportTools) -> None:
        self._tools = tools
        self._database = tools.database
        self._lock = asyncio.Lock()

    def folder(self, job_id: str) -> Path:
        """Where a job's whole checkpoint lies, or comes to lie."""
        return self._tools.files.folder(job_id) / "merged"

    async def ask(self, job: Job, dtype: ExportDtype | None, commit: Commit) -> MergeView:
        """Begin an export, or tell of the one that is there in the same format.

        One that failed, or is of another format, gives way to the new one.

        Raises:
            SwarmError: conflict while the job has no result.
        """
        if job.adapter is None:
            raise SwarmError(
                "conflict",
                f"job {job.job_id} is {job.state} and has no result to merge",
                hint="wait for it with jobs_wait" if job.ended_at is None else "train it again",
            )
        if _weights(job) is None:
            raise SwarmError(
                "conflict",
                f"job {job.job_id} trained its boundaries alone: there is nothing to merge",
                hint="fetch them with models_export",
            )
        fresh = Export(
            job_id=job.job_id,
            export_id=mint("x", self._tools.random_bytes),
            dtype=dtype,
            state="waiting",
            reason="no fellow has taken it yet",
            fellow_id=None,
            asked_at=self._tools.clock.now(),
        )

        def change(tx: Tx) -> MergeView:
            before = exports.of_job(tx, job.job_id)
            if before is not None and before.state != "failed" and before.dtype == dtype:
                return view_of(before, 0)
            exports.put(tx, fresh)
            return view_of(fresh, 0)

        async with self._lock:
            before = await self.of_job(job.job_id)
            view = await commit(change)
            after = await self.of_job(job.job_id)
            if before is not None and after is not None and before.export_id != after.export_id:
                self._take_back(before)
                await asyncio.to_thread(shutil.rmtree, self.folder(job.job_id), True)
        await self.turn()
        now = await self.of_job(job.job_id)
        return view if now is None else view_of(now, await self.received_bytes(now))

    def _take_back(self, export: Export, but: Member | None = None) -> None:
        """No fellow makes it from now on, `but` one."""
        for member in self._tools.registry.every():
            told = member.export is not None and member.export.export_id == export.export_id
            if told and member is not but:
                self._tools.registry.order_export(member.fellow_id, None)

    async def of_job(self, job_id: str) -> Export | None:
        """The export of a job, if one was asked for."""
        return await self._database.read(lambda tx: exports.of_job(tx, job_id))

    async def received_bytes(self, export: Export) -> int:
        """How much of it is here."""
        return await asyncio.to_thread(_size_of, self.folder(export.job_id))

    async def turn(self) -> None:
        """Give every export that has no fellow to one, and take it from one that is gone."""
        async with self._lock:
            for export in await self._database.read(exports.unfinished):
                await self._give(export)

    async def _give(self, export: Export) -> None:
        job, rows = await self._database.read(lambda tx: _rows(tx, export.job_id))
        member = self._placed(export, job, rows)
        self._take_back(export, but=member)
        if member is None:
            words = "no fellow of its pool is ready"
            await self._note(export, state="waiting", reason=words, fellow_id=None)
            return
        order = _order(export, job, rows[0].work)
        self._tools.registry.order_export(member.fellow_id, order)
        await self._note(export, state="running", reason="", fellow_id=member.fellow_id)

    def _placed(self, export: Export, job: Job, rows: list[Stage]) -> Member | None:
        """Who makes it: who has it already, else an idle fellow, best one that has files of it."""
        registry = self._tools.registry
        if export.fellow_id is not None:
            member = registry.find(export.fellow_id)
            if member is not None and registry.silent_s(member) < KEEP_S:
                return member
        trained = {row.fellow_id for row in rows}
        ready = [
            one
            for one in registry.of_pool(job.pool)
            if one.online and not one.is_training and one.export is None
        ]
        return min(ready, key=lambda one: one.fellow_id not in trained, default=None)

    async def _note(self, export: Export, **changes: Any) -> None:
        told = replace(export, **changes)
        if told != export:
            await self._database.write(lambda tx: exports.update(tx, export.export_id, **changes))
            await self._told(export.job_id)

    async def _told(self, job_id: str) -> None:
        job = await self._database.read(lambda tx: jobs.find(tx, job_id))
        if job is not None:
            self._tools.publish("models", job.pool, "export", job_id)

    # --- what the fellow says ------------------------------------------------------------------

    async def admit(self, fellow_id: str, export_id: str) -> Export:
        """The export that a fellow works on.

        Raises:
            SwarmError: not-found when it is not this fellow's, or over.
        """
        found = await self._database.read(lambda tx: exports.find(tx, export_id))
        if found is None or found.fellow_id != fellow_id or found.state != "running":
            raise not_found("export", export_id, hint="stop: it is not wanted")
        return found

    async def trained(self, fellow_id: str, export_id: str) -> StoredFile:
        """The job's trained tensors, for the fellow that merges them."""
        export = await self.admit(fellow_id, export_id)
        job = await self._database.read(lambda tx: jobs.find(tx, export.job_id))
        assert job is not None
        stored = await self._tools.results.file(job.job_id, _weights(job) or "")
        assert stored is not None
        return stored

    async def take(
        self, fellow_id: str, export_id: str, piece: Piece, chunks: AsyncIterator[bytes]
    ) -> None:
        """Append a piece; the last one ends the file, whose digest is then compared.

        Raises:
            SwarmError: conflict with facts["have_bytes"] when the piece does not begin where the
                file ends; invalid-input; storage-full.
        """
        export = await self.admit(fellow_id, export_id)
        if not FILE_NAME.match(piece.name) or piece.name == CARD:
            raise SwarmError("invalid-input", "this is no name of a checkpoint's file")
        whole = self.folder(export.job_id) / piece.name
        part = whole.with_name(f"{piece.name}.{piece.sha256[:16]}.part")
        have = await asyncio.to_thread(_have, whole, part, piece)
        if have != piece.start:
            raise SwarmError(
                "conflict",
                f"{have} bytes of {piece.name} are here",
                hint="go on from there",
                facts={"have_bytes": have},
            )
        await _append(part, piece, chunks)
        if piece.end == piece.size_bytes:
            await asyncio.to_thread(_end_file, part, whole, piece)

    async def finish(
        self,
        fellow_id: str,
        export_id: str,
        files: Mapping[str, tuple[int, str]],
        licence: str | None,
    ) -> None:
        """All files are here: the card is written and the export is done.

        files: name -> (size_bytes, sha256).

        Raises:
            SwarmError: invalid-input when a file is missing or is not the one that was sent.
        """
        export = await self.admit(fellow_id, export_id)
        folder = self.folder(export.job_id)
        for name, (size_bytes, _) in files.items():
            path = folder / name
            if not FILE_NAME.match(name) or not path.is_file():
                raise SwarmError("invalid-input", f"the file {name[:100]!r} is not here")
            if path.stat().st_size != size_bytes:
                raise SwarmError("invalid-input", f"{name} is not as long as was told")
        card = await self._database.read(lambda tx: _card(tx, export, licence))
        boundary = await self._tools.results.file(export.job_id, FILE)
        listed = {
            name: {"sha256": sha256, "size_bytes": size_bytes}
            for name, (size_bytes, sha256) in files.items()
        }
        listed |= await asyncio.to_thread(_add_own, folder, card, boundary)
        ended = {"state": "done", "reason": "", "ended_at": self._tools.clock.now()}
        await self._note(export, **ended, base_license=licence, files=listed)
        self._tools.registry.order_export(fellow_id, None)

    async def fail(self, fellow_id: str, told: ExportFailed) -> None:
        """A fellow could not make it. Said once; asking again begins again."""
        try:
            export = await self.admit(fellow_id, told.export_id)
        except SwarmError:
            return
        words = clean(f"{fellow_id}: {told.message} {told.hint}", 2500)
        reason = f"{fellow_id} could not make it: {clean_code(told.code)}"
        now = self._tools.clock.now()
        await self._note(export, state="failed", reason=reason, error=words, ended_at=now)
        self._tools.registry.order_export(fellow_id, None)

    async def file(self, job_id: str, name: str) -> StoredFile | None:
        """One file of a finished export."""
        export = await self.of_job(job_id)
        told = export.files.get(name) if export is not None and export.state == "done" else None
        if told is None:
            return None
        path = self.folder(job_id) / name
        return StoredFile(path, int(told["size_bytes"]), str(told["sha256"]))


def _rows(tx: Tx, job_id: str) -> tuple[Job, list[Stage]]:
    job = jobs.find(tx, job_id)
    assert job is not None
    return job, stages.of_job(tx, job_id, job.attempt)


def _weights(job: Job) -> str | None:
    """The file of trained weights in a job's result; None when only boundaries were trained."""
    told = job.adapter or {}
    return next((name for name in sorted(told) if name.endswith("model.safetensors")), None)


def _order(export: Export, job: Job, work: StageOrder) -> ExportOrder:
    lora = work.settings.lora
    told = (job.adapter or {})[_weights(job) or ""]
    targets = lora.target_modules if lora is not None else []
    return ExportOrder(
        export_id=export.export_id,
        job_id=job.job_id,
        model=work.model,
        kind="weights" if lora is None else "adapter",
        trained_sha256=str(told["sha256"]),
        trained_bytes=int(told["size_bytes"]),
        scale=1.0 if lora is None else lora.alpha / lora.rank,
        transposed=any(target.rpartition(".")[2] in CONV1D for target in targets),
        dtype=export.dtype,
    )


Card = Callable[[Sequence[int]], str]
"""The card's text, once the layers behind a learned bottleneck are known."""


def _add_own(folder: Path, card: Card, boundary: StoredFile | None) -> dict[str, dict[str, Any]]:
    """What the leader adds: a learned bottleneck in a file of its own, and the card."""
    added = {}
    if boundary is not None:
        shutil.copyfile(boundary.path, folder / FILE)
        added[FILE] = {"sha256": boundary.sha256, "size_bytes": boundary.size_bytes}
    text = card(boundary_layers([boundary.path]) if boundary is not None else []).encode()
    write_whole(folder / CARD, text)
    added[CARD] = {"sha256": hashlib.sha256(text).hexdigest(), "size_bytes": len(text)}
    return added


def _card(tx: Tx, export: Export, licence: str | None) -> Card:
    job, rows = _rows(tx, export.job_id)
    told = records.evaluations(tx, job.job_id)
    facts = CardFacts(job.config.data.bucket, told, licence)
    work = rows[0].work
    text = merged_card(work, facts, export.dtype)
    return lambda layers: text + readme_part(work, layers, told)


def view_of(export: Export, received_bytes: int) -> MergeView:
    """An export as it is shown."""
    words = {
        "waiting": f"The checkpoint of {export.job_id} waits: {export.reason}.",
        "running": f"{export.fellow_id} makes the checkpoint of {export.job_id}: "
        f"{human_bytes(received_bytes)} are here.",
        "done": f"The checkpoint of {export.job_id} lies ready: {human_bytes(received_bytes)}.",
        "failed": f"The checkpoint of {export.job_id} was not made: {export.reason}.",
    }
    me = {"job_id": export.job_id}
    merged = ShownMerge(
        state=export.state,
        dtype=export.dtype,
        reason=export.reason,
        untrusted_error=export.error,
        fellow_id=export.fellow_id,
        received_bytes=received_bytes,
        base_license=export.base_license,
        asked_at=export.asked_at,
        ended_at=export.ended_at,
    )
    why = "see how far it is" if export.state != "done" else "fetch it"
    return MergeView(
        summary=words[export.state],
        next=[Next(operation="models_export", arguments=me, why=why)],
        job_id=export.job_id,
        merged=merged,
    )


def _size_of(folder: Path) -> int:
    if not folder.is_dir():
        return 0
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def _have(whole: Path, part: Path, piece: Piece) -> int:
    """How many bytes of this very file are here."""
    if whole.is_file() and whole.stat().st_size == piece.size_bytes:
        if sha256_of(whole) == piece.sha256:
            return piece.size_bytes
        whole.unlink()
    return part.stat().st_size if part.is_file() else 0


async def _append(part: Path, piece: Piece, chunks: AsyncIterator[bytes]) -> None:
    """Add the piece's bytes, or none of them."""
    taken = bytearray()
    async for chunk in chunks:
        taken += chunk
        if len(taken) > piece.end - piece.start:
            break
    if len(taken) != piece.end - piece.start:
        raise SwarmError("invalid-input", "the piece is not as long as its Content-Range says")

    def write() -> None:
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            with part.open("ab") as out:
                out.write(taken)
        except OSError as error:
            with part.open("ab") as out:
                out.truncate(piece.start)
            raise disk_refusal(error, piece.name) from error

    await asyncio.to_thread(write)


def _end_file(part: Path, whole: Path, piece: Piece) -> None:
    if sha256_of(part) != piece.sha256:
        part.unlink()
        raise SwarmError(
            "invalid-input",
            f"{piece.name} arrived damaged",
            hint="send it again",
            facts={"have_bytes": 0},
        )
    with part.open("rb+") as out:
        os.fsync(out.fileno())
    settle(part, whole)
    sync_folder(whole.parent)
