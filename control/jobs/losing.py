"""A stage of a running job is gone: the job looks for a place to go on, or fails with the reason.

Runs inside a transaction. What the stages told first is kept; echoes of neighbours add nothing.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from control.job_states import may_move
from control.store import jobs
from control.store.database import Tx
from control.store.jobs import Job

MOST_TRIES = 8
"""Times in a row that a job goes on by itself from the same saved step."""


@dataclass(frozen=True)
class Loss:
    """What a job lost, while it looks for a place to go on."""

    since: float
    why: str
    """Ids, states and numbers only: never a fellow's text."""
    is_echo: bool = False
    """Only the neighbours have told so far; the true reason may come yet."""

    @classmethod
    def of(cls, job: Job) -> "Loss | None":
        """The loss of a job that has one."""
        return cls(**dict(job.loss_of)) if job.loss_of is not None else None

    def told(self) -> Mapping[str, Any]:
        """As it is stored."""
        return asdict(self)


def lose(tx: Tx, job: Job, loss: Loss, *, may_recover: bool) -> None:
    """Note a loss: the job goes on by itself if it may and can, and fails otherwise."""
    known = Loss.of(job)
    if known is not None:
        if known.is_echo and not loss.is_echo:
            told = Loss(known.since, loss.why).told()
            jobs.update(tx, job.job_id, loss_of=told, reason=loss.why)
        return
    refusal = "" if may_recover else " (going on by itself is turned off)"
    refusal = refusal or _cannot_go_on(job)
    if refusal or not (job.state == "recovering" or may_move(job.state, "recovering")):
        jobs.update(
            tx, job.job_id, state="failed", reason=f"{loss.why}{refusal}", ended_at=loss.since
        )
        return
    jobs.update(tx, job.job_id, state="recovering", reason=loss.why, loss_of=loss.told())


def _cannot_go_on(job: Job) -> str:
    """Why a job cannot go on by itself; "" when it can."""
    if job.probe_of is not None:
        return f"; it was a probe of {job.probe_of}: verify again"
    tries, step = 0, job.saved_step or 0
    for one in reversed(job.resumes):
        if one["by"] != "itself" or one["step"] != step:
            break
        tries += 1
    if tries >= MOST_TRIES:
        return f"; it went on {tries} times from step {step} without getting to the next saved one"
    if job.saved_step is None and job.step and not job.config.train.snapshot_every_steps:
        return "; nothing was saved, because train.snapshot_every_steps is 0"
    return ""
