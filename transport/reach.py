"""How one neighbour is reached: directly when that can be, through the relay meanwhile.

A stage that dials tries all addresses of its neighbour at once and takes the best that answers.
When nothing direct stands for a while, both ends dial the relay with their tickets; direct ways
are tried again, less and less often, and once one carries frames the relay's wire is closed. The
link's numbered frames make the moves safe. Called by the link's own thread only.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from transport.candidates import RANKS, Candidate, Trials
from transport.cards import PathKind
from transport.link import Link
from transport.wire import Path, Pollable
from transport.zmq_wire import ZmqWire

CANDIDATE_S: Final = 3.0
"""How long an address that answered may take to prove to be the neighbour."""
FIRST_LOOK_S: Final = 0.03
"""How long the first round is waited for on the spot: in one building it is over by then."""
RELAY_AFTER_S: Final = 2.0
"""How long nothing direct stands before the relay is dialled."""
CALM_S: Final = 1.0
"""How long a direct path has carried frames before the relay's wire is closed."""
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
TOLD_EVERY_S: Final = 4.0


@dataclass(frozen=True, slots=True)
class Reached:
    """How a neighbour is reached now."""

    kind: PathKind
    address: str = ""
    """"" when the neighbour dials us, or nothing stands."""
    why: str = ""
    """Why no better way is used; "" when there is none, or when only the other end knows."""


@dataclass(frozen=True)
class Ways:
    """What a neighbour can be reached by.

    candidates: of the neighbour, when this stage dials. bound: the socket that it dials, otherwise.
    """

    candidates: Sequence[Candidate] = ()
    dial: Callable[[], ZmqWire] | None = None
    """Makes a socket that may dial the neighbour."""
    bound: ZmqWire | None = None
    relay: Callable[[], ZmqWire] | None = None
    """Makes a socket that is dialling the relay; None where there is none."""
    tell: Callable[[Reached], None] = field(default=lambda _: None)
    """Hears of every change, and of the present state every few seconds."""
    clock: Callable[[], float] = time.monotonic


class Reach:
    """Gives a link its wires. The link calls `tick` whenever it is served."""

    def __init__(self, link: Link, ways: Ways) -> None:
        self._link = link
        self._ways = ways
        self._clock = ways.clock
        self._trials: Trials | None = None
        self._direct: Path | None = None
        self._relay: Path | None = None
        self._chosen: Candidate | None = None
        self._dialled_at = self._down_since = self._clock()
        self._calm_since: float | None = None
        self._next_round_at: float | None = None
        self._pause_s = FIRST_PAUSE_S
        self._told: Reached | None = None
        self._told_at = 0.0
        if ways.bound is not None:
            self._direct = link.add(ways.bound)
        elif len(ways.candidates) == 1:
            self._dial(ways.candidates[0])
        else:
            self._begin_round(FIRST_LOOK_S)

    @property
    def pollables(self) -> list[Pollable]:
        """Readable while an address that is tried has answered or failed."""
        return [self._trials.pollable] if self._trials is not None else []

    def tick(self) -> None:
        """Look after the wires."""
        if self._ways.bound is None:
            self._seek()
        self._look_after_relay()
        self._tell()

    def close(self) -> None:
        """Give up what is being tried."""
        if self._trials is not None:
            self._trials.close()
            self._trials = None

    @property
    def now(self) -> Reached:
        """How the neighbour is reached at this moment."""
        if self._is_direct_up:
            if self._chosen is None:
                return Reached("direct")
            return Reached(self._chosen.kind, self._chosen.endpoint, self._why_not(self._chosen))
        if self._relay is not None and self._relay.is_up:
            return Reached("relay", "", self._why_not(None) or self._why_not_yet())
        return Reached("none", "", self._why_not(None) or self._link.trouble)

    @property
    def _is_direct_up(self) -> bool:
        return self._direct is not None and self._direct.is_up

    def _why_not_yet(self) -> str:
        if self._direct is None or self._chosen is None:
            return ""
        return f"{self._chosen.kind} {self._chosen.host}: no answer yet"

    def _why_not(self, better_than: Candidate | None) -> str:
        return self._trials.why_not(better_than) if self._trials is not None else ""

    # --- the direct way, when this stage dials ---

    def _seek(self) -> None:
        """Find an address that is the neighbour's, and dial it."""
        now = self._clock()
        if self._is_direct_up:
            self._dialled_at = now
            self._pause_s = FIRST_PAUSE_S
            return
        if self._direct is not None and self._chosen is not None:
            self._judge(now)
        if self._direct is not None:
            return
        if self._trials is not None and self._next_round_at is None:
            found = self._trials.best()
            if found is not None:
                self._dial(found)
            elif self._trials.is_over:
                self._next_round_at = now + self._pause_s
                self._pause_s = min(2 * self._pause_s, self._longest_pause_s)
        elif self._next_round_at is None or now >= self._next_round_at:
            self._begin_round()

    @property
    def _longest_pause_s(self) -> float:
        return LONGEST_PAUSE_S if self._relay is not None and self._relay.is_up else 2.0

    def _judge(self, now: float) -> None:
        """Drop what was dialled when it is not the neighbour, or does not come up in time."""
        assert self._direct is not None
        assert self._chosen is not None
        wire = self._direct.wire
        is_wrong = isinstance(wire, ZmqWire) and wire.has_wrong_answer
        # Alone, an address is dialled on: libzmq does that by itself. It may be let in late.
        is_late = now - self._dialled_at > CANDIDATE_S
        has_other = len(self._ways.candidates) > 1 or self._ways.relay is not None
        if not has_other or not (is_wrong or is_late):
            return
        self._link.remove(self._direct)
        chosen, self._direct, self._chosen = self._chosen, None, None
        self._the_trials().rule_out(chosen, wire.trouble or "no answer")

    def _the_trials(self) -> Trials:
        if self._trials is None:
            self._trials = Trials(self._ways.candidates, self._clock)
            self._link.version += 1
        return self._trials

    def _begin_round(self, wait_s: float = 0.0) -> None:
        self._next_round_at = None
        trials = self._the_trials()
        trials.begin()
        found = trials.best(wait_s)
        if found is not None:
            self._dial(found)

    def _dial(self, candidate: Candidate) -> None:
        assert self._ways.dial is not None
        wire = self._ways.dial()
        wire.dial(candidate.endpoint)
        self._direct = self._link.add(wire)
        self._chosen = candidate
        self._dialled_at = self._clock()
        if self._trials is not None:
            self._trials.stop()

    # --- the relay ---

    def _look_after_relay(self) -> None:
        now = self._clock()
        if not self._is_direct_up:
            self._calm_since = None
            is_due = self._relay is None and now - self._down_since >= RELAY_AFTER_S
            if is_due and self._ways.relay is not None:
                self._relay = self._link.add(self._ways.relay(), RANKS["relay"])
            return
        self._down_since = now
        if self._relay is None or self._direct is None or not self._direct.is_heard:
            return
        self._calm_since = now if self._calm_since is None else self._calm_since
        if now - self._calm_since >= CALM_S:
            self._link.remove(self._relay)
            self._relay = None
            self._calm_since = None

    def _tell(self) -> None:
        if self._link.has_left:
            return
        reached, now = self.now, self._clock()
        if reached != self._told or now - self._told_at >= TOLD_EVERY_S:
            self._told, self._told_at = reached, now
            self._ways.tell(reached)
