"""Operations on the saved states of jobs: what a run can go on from, and going on from it."""

from transport.api.jobs import JobView
from transport.api.operation import Answer, Ask, Change, Operation
from transport.ids import Digest, JobId
from transport.schema import Model


class JobsSnapshots(Ask):
    """List the saved steps of a job, which jobs_resume can go on from, and their files."""

    job_id: JobId


class SavedFile(Model):
    stage: int
    first_layer: int
    last_layer: int
    size_bytes: int
    sha256: Digest
    path: str
    """Fetch it from this address of the leader."""


class SavedStepRow(Model):
    step: int
    attempt: int
    saved_at: float
    size_bytes: int
    files: list[SavedFile]


class JobsSaved(Answer):
    job_id: JobId
    every_steps: int
    """0: nothing is saved."""
    saving_paused: str
    """Why nothing is saved now; "" otherwise."""
    steps: list[SavedStepRow]
    """The newest first; at most two."""
    storage_used_bytes: int
    """Of the owner's pools: saved states and buckets."""
    storage_limit_bytes: int


class JobsResume(Change):
    """Go on with a failed, cancelled or lost job from its newest saved step, where it ran."""

    job_id: JobId
    place_again: bool = False
    """true: place the stages anew, over the fellows that are ready."""


JOBS_SNAPSHOTS = Operation(
    "jobs_snapshots",
    JobsSnapshots,
    JobsSaved,
    "read",
    "read",
    "GET",
    "/jobs/{job_id}/snapshots",
    ("jobs", "snapshots"),
    ("job_id",),
)
JOBS_RESUME = Operation(
    "jobs_resume",
    JobsResume,
    JobView,
    "update",
    "train",
    "POST",
    "/jobs/{job_id}/resume",
    ("jobs", "resume"),
    ("job_id",),
)

ALL = (JOBS_SNAPSHOTS, JOBS_RESUME)
