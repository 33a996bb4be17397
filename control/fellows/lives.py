"""Tells a fellow that started again from a copy of it: two daemons that live with one credential.

Each start of a daemon gives itself a random life and names it in every request. A restart leaves
its old life behind for good; a copied disk brings a second life beside the first. In memory: after
a restart of the leader whoever asks first is the one.
"""

from dataclasses import dataclass, field

from control.clock import Clock
from control.fellows.vanished import Vanished
from transport.errors import SwarmError
from transport.lives import TWO_DAEMONS

OVER_AFTER_S = 0.5
"""A daemon that lives asks for its orders again sooner than this."""
SURE_AFTER_S = 2.0
"""A word of the first life so long after one of the second was said beside it, not before."""
MOST_LIVES = 32
"""So many old or strange lives of one fellow are remembered."""


@dataclass
class _Known:
    life: str
    heard_at: float
    others: dict[str, float] = field(default_factory=dict)
    """Lives that want in while this one may live still -> since when."""
    refused: dict[str, None] = field(default_factory=dict)
    """Copies, and lives that are over, the newest last: they never speak for the fellow again."""


class Lives:
    """Which life speaks for each fellow."""

    def __init__(self, clock: Clock, vanished: Vanished, silent_after_s: float) -> None:
        self._clock = clock
        self._vanished = vanished
        self._silent_after_s = silent_after_s
        self._known: dict[str, _Known] = {}
        self.copies: dict[str, float] = {}
        """Fellow -> Unix time at which a copy of it was refused last."""

    def forget(self, fellow_id: str) -> None:
        """It is no member any more."""
        self._known.pop(fellow_id, None)
        self.copies.pop(fellow_id, None)

    def admit(self, fellow_id: str, life: str) -> None:
        """Let a daemon speak for a fellow. "" is one of an older version: nothing is known of it.

        Raises:
            SwarmError: conflict with facts["reason"] two-daemons for a copy; unavailable while it
                may be a restart whose former life has not been silent for long enough.
        """
        if not life:
            return
        now, known = self._clock.monotonic(), self._known.get(fellow_id)
        if known is None:
            self._known[fellow_id] = _Known(life, now)
        elif life == known.life:
            known.heard_at = now
            for one in [one for one, at in known.others.items() if now - at >= SURE_AFTER_S]:
                del known.others[one]
                _refuse(known.refused, one)
        elif life in known.refused:
            self.copies[fellow_id] = self._clock.now()
            raise _copied(fellow_id)
        elif self._is_over(fellow_id, known, now):
            # Should it speak again it was asleep, and a copy took its place: it is told so.
            _refuse(known.refused, known.life)
            self._known[fellow_id] = _Known(life, now, refused=known.refused)
        else:
            if len(known.others) < MOST_LIVES:
                known.others.setdefault(life, now)
            raise _not_yet(fellow_id)

    def _is_over(self, fellow_id: str, known: _Known, now: float) -> bool:
        silent_s = now - known.heard_at
        if silent_s >= self._silent_after_s:
            return True
        if self._vanished.is_asking(fellow_id):
            return False
        quiet_s = self._vanished.quiet_s(fellow_id)
        return min(silent_s, silent_s if quiet_s is None else quiet_s) >= OVER_AFTER_S


def _refuse(refused: dict[str, None], life: str) -> None:
    refused[life] = None
    while len(refused) > MOST_LIVES:
        del refused[next(iter(refused))]


def _copied(fellow_id: str) -> SwarmError:
    return SwarmError(
        "conflict",
        f"another machine speaks for {fellow_id} at this moment: one is a copy of the other's disk",
        hint="let one of them run; on the other one delete the fellow's folder and join it anew "
        "with an invite of its own",
        facts={"reason": TWO_DAEMONS, "fellow_id": fellow_id},
    )


def _not_yet(fellow_id: str) -> SwarmError:
    return SwarmError(
        "unavailable",
        f"a daemon that speaks for {fellow_id} may still run",
        hint="ask again shortly: it is let in when the other one has been silent for long enough",
        facts={"retry_after_s": 1},
    )
