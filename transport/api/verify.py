"""Comparing a job's split run with one process, on a small probe."""

from typing import Annotated, Literal

from pydantic import Field

from transport.api.operation import Answer, Change, Operation
from transport.ids import FellowId, JobId
from transport.schema import Model


class JobsVerify(Change):
    """Check that a job's split run computes what one process computes, on a few steps of its data.

    The stages of the job's own plan train a small probe, then plain transformers and peft train the
    same in one process on one fellow. Asked again it tells how far it is.
    """

    job_id: JobId
    again: bool = False
    """Verify anew although a verdict is there."""
    timeout_s: Annotated[float, Field(ge=0, le=50)] = 0.0
    """Wait so long for the verdict."""


class ShownVerification(Model):
    """A split run held against one process. Losses are means over supervised tokens, in nats."""

    state: Literal["probing", "waiting", "comparing", "done", "failed"]
    """probing: the stages train. waiting: no fellow is free for the one process. comparing: it
    trains. failed: one of them could not; nothing is said of the difference.
    """
    verdict: Literal["equal", "different"] | None
    """Whether the largest difference is within the tolerance; null until both are done."""
    largest_difference: float | None
    largest_at: str
    """Where: "step 3", "held out before", "held out after"; "" until both are done."""
    tolerance: float
    tolerance_why: str
    """By number format and compression."""
    probe_job_id: JobId
    """The job that the stages ran."""
    fellow_id: FellowId | None
    """Who runs the one process."""
    stages: int
    steps: int
    split_losses: list[float]
    """Of each step. Empty until known."""
    one_process_losses: list[float]
    split_held_out: list[float]
    """Before and after; fewer when nothing is held out."""
    one_process_held_out: list[float]
    differs: list[str]
    """What the probe does otherwise than the job."""
    reason: str
    """Why it waits or failed; "" otherwise."""
    untrusted_error: str | None
    """What went wrong, as the fellow told it."""
    asked_at: float
    ended_at: float | None


class VerifyView(Answer):
    job_id: JobId
    verification: ShownVerification


JOBS_VERIFY = Operation(
    "jobs_verify",
    JobsVerify,
    VerifyView,
    "create",
    "train",
    "POST",
    "/jobs/{job_id}/verify",
    ("verify",),
    ("job_id",),
    listed=False,
)
ALL = (JOBS_VERIFY,)
