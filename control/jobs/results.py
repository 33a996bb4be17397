"""What stages send at the end: their trained tensors, kept, then joined into the job's result.

Disk work runs in threads. The same upload again is the same upload.
"""

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path

from control.jobs.adapters import write_folder
from control.jobs.model_card import CardFacts
from control.records.job_files import JobFiles
from control.snapshots.trained import check_trained
from control.store import jobs, records, stages
from control.store.admission import admit
from control.store.database import Database, Tx
from control.store.files import StoredFile, settle
from control.store.stages import Stage
from transport.errors import SwarmError


@dataclass(frozen=True)
class StageKey:
    """Whose stage of which attempt sends something."""

    fellow_id: str
    job_id: str
    attempt: int
    stage: int


class Results:
    """The trained files of jobs."""

    def __init__(self, database: Database, files: JobFiles, limit_bytes: int) -> None:
        self._database = database
        self._files = files
        self.limit_bytes = limit_bytes

    async def admit(self, key: StageKey) -> None:
        """Refuse an upload that is not this fellow's stage of the running attempt.

        Raises:
            SwarmError: not-found for another's stage; conflict for a stale attempt or ended job.
        """
        await self._database.read(lambda tx: admit(tx, key))

    async def take(self, key: StageKey, file: StoredFile) -> None:
        """Keep a received file: it is checked and moved away, and its digest is stored.

        Raises:
            SwarmError: as admit; too-large; invalid-input when it is no whole safetensors file, or
                not of finite tensors that this stage trains.
        """
        order = (await self._database.read(lambda tx: admit(tx, key)))[1].work
        if file.size_bytes > self.limit_bytes:
            raise SwarmError(
                "too-large",
                f"the adapter has {file.size_bytes} bytes, at most {self.limit_bytes} are taken",
                hint="raise max_adapter_bytes at the leader",
            )
        await asyncio.to_thread(check_trained, file.path, order)
        await asyncio.to_thread(settle, file.path, self.part(key))

        def store(tx: Tx) -> None:
            stages.update(tx, admit(tx, key)[1], adapter_sha256=file.sha256)

        await self._database.write(store)

    def part(self, key: StageKey) -> Path:
        """Where a stage's file lies until it is joined."""
        folder = self._files.folder(key.job_id) / f"attempt-{key.attempt}"
        return folder / f"stage-{key.stage}.safetensors"

    def result(self, job_id: str) -> Path:
        """The folder of a job's joined result."""
        return self._files.folder(job_id) / "adapter"

    async def join(
        self, rows: list[Stage], *, is_wanted: bool = True
    ) -> dict[str, dict[str, object]] | None:
        """Join the files of an attempt whose stages are all done: {file: {sha256, size_bytes}}.

        None of a result that is not wanted: its files are deleted.

        Raises:
            SwarmError: stage-failed for a stage without its file; invalid-input for a broken one.
        """
        parts = [self.part(StageKey(s.fellow_id, s.job_id, s.attempt, s.stage)) for s in rows]
        if not is_wanted:
            await asyncio.to_thread(shutil.rmtree, parts[0].parent, True)
            return None
        missing = [row.stage for row, part in zip(rows, parts) if not part.is_file()]
        if missing:
            raise SwarmError(
                "stage-failed",
                f"stage {missing[0]} ended without sending its trained tensors",
                hint="read jobs_logs of this stage",
            )
        job_id = rows[0].job_id
        target = self.result(job_id)
        facts = await self._database.read(lambda tx: _facts(tx, job_id))

        def work() -> dict[str, dict[str, object]]:
            shutil.rmtree(target, ignore_errors=True)
            told = write_folder(rows[0].work, parts, target, facts)
            shutil.rmtree(parts[0].parent, ignore_errors=True)
            return told

        return await asyncio.to_thread(work)

    async def file(self, job_id: str, name: str) -> StoredFile | None:
        """One file of a job's result, by its name in models_export."""
        job = await self._database.read(lambda tx: jobs.find(tx, job_id))
        told = (job.adapter or {}).get(name) if job else None
        if told is None:
            return None
        path = self.result(job_id) / name
        return StoredFile(path, int(told["size_bytes"]), str(told["sha256"]))


def _facts(tx: Tx, job_id: str) -> CardFacts:
    job = jobs.find(tx, job_id)
    bucket = job.config.data.bucket if job is not None else None
    return CardFacts(bucket, records.evaluations(tx, job_id))
