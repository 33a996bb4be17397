"""Handlers: what jobs have saved, and going on from it."""

from control.operations.call import Call, handles
from control.operations.jobs import need_job
from control.operations.office import Office
from control.store import snapshots, storage
from control.store.database import Tx
from control.store.snapshots import Saved
from transport.api.jobs import JobView
from transport.api.saved_states import (
    JOBS_RESUME,
    JOBS_SNAPSHOTS,
    JobsResume,
    JobsSaved,
    JobsSnapshots,
    SavedFile,
    SavedStepRow,
)
from transport.units import human_bytes


@handles(JOBS_RESUME)
async def jobs_resume(leader: Office, call: Call, ask: JobsResume) -> JobView:
    """Go on with a job."""
    await need_job(leader, call, ask.job_id)
    return await leader.jobs.resume(ask.job_id, call.commit, place_again=ask.place_again)


@handles(JOBS_SNAPSHOTS)
async def jobs_snapshots(leader: Office, call: Call, ask: JobsSnapshots) -> JobsSaved:
    """The saved steps of a job."""
    job = await need_job(leader, call, ask.job_id)

    def read(tx: Tx) -> tuple[list[SavedStepRow], int]:
        steps = snapshots.steps(tx, job.job_id)
        rows = [
            _row(one.saved_at, snapshots.of_step(tx, job.job_id, one.attempt, one.step))
            for one in steps
        ]
        return rows, storage.used_bytes(tx, storage.owner_of(job.pool))

    rows, used = await leader.database.read(read)
    every = job.config.train.snapshot_every_steps
    limit = leader.snapshots.limit_bytes
    return JobsSaved(
        summary=_words(rows, every, job.saving_paused)
        + f" {storage.owner_of(job.pool)} uses {human_bytes(used)} of {human_bytes(limit)}.",
        job_id=job.job_id,
        every_steps=every,
        saving_paused=job.saving_paused,
        steps=rows,
        storage_used_bytes=used,
        storage_limit_bytes=limit,
    )


def _row(saved_at: float, files: list[Saved]) -> SavedStepRow:
    first = files[0]
    return SavedStepRow(
        step=first.step,
        attempt=first.attempt,
        saved_at=saved_at,
        size_bytes=sum(file.size_bytes for file in files),
        files=[
            SavedFile(
                stage=file.stage,
                first_layer=file.first_layer,
                last_layer=file.last_layer,
                size_bytes=file.size_bytes,
                sha256=file.sha256,
                path=f"/api/v1/jobs/{file.job_id}/snapshots/{file.step}/{file.stage}",
            )
            for file in files
        ],
    )


def _words(rows: list[SavedStepRow], every: int, paused: str) -> str:
    if paused:
        return f"{paused[:1].upper()}{paused[1:]}."
    if rows:
        return f"Step {rows[0].step} is saved ({human_bytes(rows[0].size_bytes)})."
    return f"Nothing is saved yet; every {every} steps are." if every else "This job saves nothing."
