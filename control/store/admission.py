"""Who may send something for a stage: the fellow that runs it, in the attempt that counts."""

from typing import Protocol

from control.job_states import ACTIVE
from control.store import jobs, stages
from control.store.database import Tx
from control.store.jobs import Job
from control.store.stages import Stage
from transport.errors import SwarmError


class Sender(Protocol):
    """Whose stage of which attempt sends something."""

    @property
    def fellow_id(self) -> str: ...
    @property
    def job_id(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def stage(self) -> int: ...


def admit(tx: Tx, sender: Sender) -> tuple[Job, Stage]:
    """The job and the stage that a fellow sends something of.

    Raises:
        SwarmError: not-found for another's stage; conflict for a stale attempt or an ended job.
    """
    job = jobs.find(tx, sender.job_id)
    stage = stages.find(tx, sender.job_id, sender.attempt, sender.stage)
    if job is None or stage is None or stage.fellow_id != sender.fellow_id:
        raise SwarmError(
            "not-found",
            f"this fellow has no stage {sender.stage} in attempt {sender.attempt} of that job",
            hint="stop this worker: it is not wanted",
        )
    if sender.attempt != job.attempt or job.state not in ACTIVE:
        raise SwarmError(
            "conflict",
            f"attempt {sender.attempt} of job {job.job_id} is over: the job is {job.state}"
            f" at attempt {job.attempt}",
            hint="stop this worker: it is not wanted",
        )
    return job, stage
