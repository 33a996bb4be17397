"""Turns the rows of jobs into what each fellow is told to do.

A job that failed or was cancelled is paused on its fellows for a moment, then no longer mentioned:
what a fellow is not told to run, it stops.
"""

from control.clock import Clock
from control.fellows.registry import Registry
from control.job_states import ACTIVE
from control.jobs.relaying import RelayTerms
from control.jobs.starting import Relaying, assignments_of
from control.store import jobs, stages
from control.store.database import Database, Tx
from control.store.jobs import Job
from control.store.stages import Stage
from transport.orders import StageAssignment

PAUSE_S = 15.0  # three heartbeats: long enough to be heard by every fellow that is there


class Dispatch:
    """The assignments of every fellow, by job."""

    def __init__(
        self,
        database: Database,
        registry: Registry,
        clock: Clock,
        relay: RelayTerms | None = None,
    ) -> None:
        self._relay = relay
        self._database = database
        self._registry = registry
        self._clock = clock
        self._running: dict[str, dict[str, list[StageAssignment]]] = {}
        """job_id -> fellow_id -> its stages."""
        self._paused: dict[str, tuple[float, dict[str, list[StageAssignment]]]] = {}
        """job_id -> (since which monotonic second, the same)."""

    async def send(self, job_id: str) -> tuple[Job, list[Stage]]:
        """Bring the orders of a job's fellows up to date with its rows, and return those."""
        job, rows = await self._database.read(lambda tx: _rows(tx, job_id))
        before = self._running.pop(job_id, {})
        fellows = set(before) | {row.fellow_id for row in rows}
        if job.state in ACTIVE and job.loss_of is None:
            ended = self._paused.pop(job_id, (0.0, {}))[1]
            fellows |= set(ended)  # an earlier attempt is not mentioned beside this one
            self._running[job_id] = _by_fellow(rows, self._relaying(job))
        elif job.state != "completed" and before:
            lost = job.loss_of is not None
            reason = "stage_failed: a stage was lost" if lost else f"the job is {job.state}"
            paused = {
                fellow: [_pause(one, reason) for one in told] for fellow, told in before.items()
            }
            self._paused[job_id] = (self._clock.monotonic(), paused)
        self._assign(fellows)
        return job, rows

    def _relaying(self, job: Job) -> Relaying | None:
        if self._relay is None:
            return None
        return Relaying(self._relay, job.pool, job.started_at or job.created_at)

    def expire(self) -> None:
        """Stop mentioning what is paused: where it has stopped, and everywhere after a while."""
        now = self._clock.monotonic()
        for job_id, (since, told) in list(self._paused.items()):
            over = now - since >= PAUSE_S
            freed = {fellow for fellow in told if over or self._has_let_go(fellow, job_id, since)}
            for fellow in freed:
                del told[fellow]
            if not told:
                del self._paused[job_id]
            self._assign(freed)

    def _has_let_go(self, fellow_id: str, job_id: str, since: float) -> bool:
        member = self._registry.find(fellow_id)
        if member is None or member.beat is None or member.heard_at is None:
            return True
        return member.heard_at > since and all(s.job_id != job_id for s in member.beat.stages)

    def is_working(self, fellow_id: str) -> bool:
        """Whether some active job has a stage there."""
        return any(fellow_id in told for told in self._running.values())

    def done_but_active(self) -> list[str]:
        """Jobs that run as far as their rows say, and have no stage left to run."""
        return [job_id for job_id, told in self._running.items() if not told]

    def _assign(self, fellows: set[str]) -> None:
        paused = [told for _, told in self._paused.values()]
        for fellow in fellows:
            everything = [*self._running.values(), *paused]
            self._registry.assign(
                fellow, [one for told in everything for one in told.get(fellow, [])]
            )


def _rows(tx: Tx, job_id: str) -> tuple[Job, list[Stage]]:
    job = jobs.find(tx, job_id)
    assert job is not None
    return job, stages.of_job(tx, job_id, job.attempt)


def _by_fellow(rows: list[Stage], relaying: Relaying | None) -> dict[str, list[StageAssignment]]:
    told: dict[str, list[StageAssignment]] = {}
    for number, assignment in assignments_of(rows, relaying).items():
        told.setdefault(rows[number].fellow_id, []).append(assignment)
    return told


def _pause(assignment: StageAssignment, reason: str) -> StageAssignment:
    return assignment.model_copy(update={"pause": True, "pause_reason": reason})
