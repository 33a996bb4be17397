"""Finds fellows that vanished sooner than their silence tells: when two witnesses say so.

A daemon that lives always has a request for its orders open, or asks again at once. When a process
dies its system closes its connections: the leader sees that request end, and its neighbours see
their links break. Either alone may be a network that hiccups; both together are a fellow that is
gone. A frozen machine closes nothing: it is found by its silence alone.
"""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from control.clock import Clock
from transport.cards import Heartbeat
from transport.orders import StageAssignment

GONE_AFTER_S = 1.0
"""How long a fellow may ask nothing, once a neighbour has told that its link to it is down."""
ALONE_AFTER_S = 5.0
"""The same where no neighbour can tell, because it runs the only stage."""
AT_ONCE_S = 3.0
FEWEST_AT_ONCE = 2
LOOK_S = 0.2


class Watched(Protocol):
    """What is known of a fellow here."""

    beat: Heartbeat | None
    heard_at: float | None
    online: bool
    assignments: tuple[StageAssignment, ...]

    @property
    def fellow_id(self) -> str:
        """Its id."""


@dataclass(frozen=True)
class Gone:
    """A fellow that vanished."""

    fellow_id: str
    why: str
    """Ids and numbers only."""


class Vanished:
    """Who has a request for orders open, and who has stopped asking."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[str, int] = {}
        self._stopped: dict[str, float] = {}
        """Fellow -> since which monotonic second it asks nothing."""
        self.noted = asyncio.Event()
        """Set when somebody has stopped asking."""

    @contextmanager
    def asking(self, fellow_id: str) -> Iterator[None]:
        """A request for orders is open, until it is answered or its sender hangs up."""
        self._open[fellow_id] = self._open.get(fellow_id, 0) + 1
        self._stopped.pop(fellow_id, None)
        try:
            yield
        finally:
            self._open[fellow_id] -= 1
            if not self._open[fellow_id]:
                del self._open[fellow_id]
                self._stopped[fellow_id] = self._clock.monotonic()
                self.noted.set()

    def is_asking(self, fellow_id: str) -> bool:
        """Whether a request of it is open now."""
        return fellow_id in self._open

    def quiet_s(self, fellow_id: str) -> float | None:
        """For how long it has asked nothing; None when it asks now, or never did."""
        since = self._stopped.get(fellow_id)
        return None if since is None else self._clock.monotonic() - since

    def forget(self, fellow_id: str) -> None:
        """It is no member any more, or known to be away."""
        self._stopped.pop(fellow_id, None)

    def may_be_gone(self, members: Iterable[Watched]) -> bool:
        """Whether somebody with work has stopped asking: worth another look soon."""
        return any(one.fellow_id in self._stopped for one in members if _works(one))

    def look(self, members: Iterable[Watched]) -> list[Gone]:
        """Those that are gone. Nobody, when most stopped at once: that is the leader's own line."""
        every = [one for one in members if one.online]
        if self._most_at_once(every):
            return []
        gone = ((one, self._why(one, every)) for one in every if _works(one))
        return [Gone(one.fellow_id, why) for one, why in gone if why]

    def _most_at_once(self, every: list[Watched]) -> bool:
        ends = [self._stopped[one.fellow_id] for one in every if one.fellow_id in self._stopped]
        together = max((sum(at <= one <= at + AT_ONCE_S for one in ends) for at in ends), default=0)
        return together >= FEWEST_AT_ONCE and 2 * together > len(every)

    def _why(self, member: Watched, every: list[Watched]) -> str:
        """Why a fellow counts as gone; "" when it does not."""
        since = self._stopped.get(member.fellow_id)
        if since is None:
            return ""
        quiet_s = self._clock.monotonic() - max(since, member.heard_at or since)
        if quiet_s < GONE_AFTER_S:
            return ""
        words = f"vanished ({quiet_s:.1f} s ago it closed its connections"
        witness = next((w for w in (_witness(one, every) for one in member.assignments) if w), "")
        if witness:
            return f"{words}, and {witness})"
        is_alone = all(one.order.num_stages == 1 for one in member.assignments)
        return f"{words})" if is_alone and quiet_s >= ALONE_AFTER_S else ""


def _works(member: Watched) -> bool:
    return member.online and any(not one.pause for one in member.assignments)


def _witness(lost: StageAssignment, every: list[Watched]) -> str:
    """Which neighbour of a stage says that its link to it is down; "" when none does."""
    order = lost.order
    for member in every:
        for stage in member.beat.stages if member.beat is not None else []:
            is_beside = abs(stage.stage - order.stage) == 1
            if (stage.job_id, stage.attempt) != (order.job_id, order.attempt) or not is_beside:
                continue
            if any(one.neighbour == order.stage and one.path == "none" for one in stage.links):
                return f"stage {stage.stage} on {member.fellow_id} lost its link to it"
    return ""
