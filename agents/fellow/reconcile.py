"""What to start and what to stop, so that a fellow does what its leader wants and nothing else.

Pure: desired assignments and the workers that exist go in, actions come out. Asked again after
every change, so a lost, repeated or late state does no harm.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from transport.orders import Links, StageAssignment

Phase = Literal["running", "stopping", "ended"]


@dataclass(frozen=True, order=True)
class Key:
    """One stage of one attempt of one job: what a worker is for."""

    job_id: str
    attempt: int
    stage: int

    def __str__(self) -> str:
        return f"{self.job_id}/{self.attempt}/{self.stage}"


@dataclass(frozen=True)
class Seen:
    """A worker as the supervisor knows it."""

    phase: Phase
    cards: frozenset[int]
    has_links: bool


@dataclass(frozen=True)
class Start:
    """Start a worker for this assignment."""

    assignment: StageAssignment


@dataclass(frozen=True)
class Connect:
    """Tell a worker its neighbours."""

    key: Key
    links: Links


@dataclass(frozen=True)
class Stop:
    """Stop a worker: its pause line first, then signals."""

    key: Key
    reason: str


Action = Start | Connect | Stop


def key_of(assignment: StageAssignment) -> Key:
    """The worker that an assignment is for."""
    order = assignment.order
    return Key(order.job_id, order.attempt, order.stage)


def reconcile(
    desired: Iterable[StageAssignment], workers: Mapping[Key, Seen], ended: frozenset[Key]
) -> list[Action]:
    """The actions that bring the workers to the desired state, stops first.

    Args:
        desired: all that should run. Of several attempts of one stage the highest counts.
        workers: all that exist, ended ones whose processes are gone left out.
        ended: what was started before and is over: never started again.

    Returns:
        Stops for every worker that is not wanted or should pause; links for those that lack them;
        starts for wanted stages, as soon as no worker is left on one of their cards.
    """
    wanted = _newest(desired)
    stops = [
        Stop(key, _reason(wanted.get(key)))
        for key, seen in workers.items()
        if seen.phase == "running" and (key not in wanted or wanted[key].pause)
    ]
    stopped = {stop.key for stop in stops}
    actions: list[Action] = [*stops]
    for key, assignment in wanted.items():
        if assignment.pause:
            continue
        if key in workers:
            seen = workers[key]
            if seen.phase == "running" and assignment.links is not None and not seen.has_links:
                actions.append(Connect(key, assignment.links))
        elif key not in ended and not _busy(assignment, workers, stopped):
            actions.append(Start(assignment))
    return actions


def _newest(desired: Iterable[StageAssignment]) -> dict[Key, StageAssignment]:
    newest: dict[tuple[str, int], StageAssignment] = {}
    for assignment in desired:
        place = (assignment.order.job_id, assignment.order.stage)
        known = newest.get(place)
        if known is None or assignment.order.attempt >= known.order.attempt:
            newest[place] = assignment
    return {key_of(assignment): assignment for assignment in newest.values()}


def _busy(assignment: StageAssignment, workers: Mapping[Key, Seen], stopped: set[Key]) -> bool:
    """Whether a worker that is on its way out still holds one of the stage's cards."""
    cards = {share.index for share in assignment.order.cards}
    leaving = (seen for key, seen in workers.items() if seen.phase == "stopping" or key in stopped)
    return any(cards & seen.cards for seen in leaving)


def _reason(assignment: StageAssignment | None) -> str:
    if assignment is None:
        return "the leader no longer wants this stage here"
    return assignment.pause_reason or "the leader paused this stage"
