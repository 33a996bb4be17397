"""The states of a job and the moves between them: a pure table.

Does not know why a job moves; the life of a job (control/jobs) decides that.
"""

from transport.api.jobs import ENDED, JobState
from transport.errors import SwarmError

MOVES: dict[JobState, tuple[JobState, ...]] = {
    "pending": ("starting", "failed", "cancelled"),
    "starting": ("running", "failed", "cancelled", "completed", "recovering"),
    "running": ("recovering", "completed", "failed", "cancelled"),
    "recovering": ("running", "failed", "cancelled"),
    "completed": (),
    "failed": ("recovering",),
    "cancelled": ("recovering",),
}
# Hold their fellows: nothing else may start there.
ACTIVE: tuple[JobState, ...] = ("starting", "running", "recovering")


def may_move(old: JobState, new: JobState) -> bool:
    """Whether a job may go from one state to another."""
    return new in MOVES[old]


def has_ended(state: JobState) -> bool:
    """Whether nothing more happens to a job by itself."""
    return state in ENDED


def check_move(job_id: str, old: JobState, new: JobState) -> None:
    """Refuse a move that the table does not hold.

    Raises:
        SwarmError: conflict, naming both states.
    """
    if not may_move(old, new):
        raise SwarmError(
            "conflict",
            f"job {job_id} is {old}; it cannot become {new}",
            hint="look at it with jobs_get",
            facts={"job_id": job_id, "state": old},
        )
