"""Makes a script's troubles happen at their time, and ends those that end.

Asked again and again with what the job has come to; does each trouble once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from agents.rehearse.script import Trouble
from agents.rehearse.town import Town
from transport.errors import SwarmError

Undo = Callable[[], None]
Say = Callable[[str], None]


@dataclass
class Troubles:
    """Those of one run."""

    town: Town
    waiting: list[Trouble]
    say: Say
    undo: list[tuple[float, str, Undo]] = field(default_factory=list)
    """(at which second, in words, how)."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens and everything is as it was."""
        return not self.waiting and not self.undo

    def turn(self, at_s: float, step: int) -> None:
        """Do what is due.

        Args:
            at_s: seconds since the job was submitted.
            step: the job's last finished step.
        """
        for due, words, how in [one for one in self.undo if one[0] <= at_s]:
            self.say(words)
            how()
            self.undo.remove((due, words, how))
        for trouble in [one for one in self.waiting if _is_due(one, at_s, step)]:
            self._begin(trouble, at_s)

    def end(self) -> None:
        """Undo everything now."""
        for _, _, how in self.undo:
            how()
        self.undo.clear()

    def _begin(self, trouble: Trouble, at_s: float) -> None:
        words = f"{trouble.do} {trouble.what}" + (f" of {trouble.fellow}" if trouble.fellow else "")
        try:
            undo = self._do(trouble)
        except SwarmError as error:
            if error.code != "conflict":
                raise
            return  # its worker is not there yet: asked again in the next turn
        self.waiting.remove(trouble)
        self.say(words)
        if undo is not None:
            after = 0.0 if trouble.for_s is None else trouble.for_s
            self.undo.append((at_s + after, f"end of: {words}", undo))

    def _do(self, trouble: Trouble) -> Undo | None:
        town, name = self.town, trouble.fellow or ""
        match (trouble.do, trouble.what):
            case ("kill", "worker"):
                town.kill_worker(name)
                return None
            case ("kill", "daemon"):
                town.kill_daemon(name)
                return (lambda: town.start_daemon(name)) if trouble.for_s else None
            case ("freeze", what):
                whole = what == "daemon"
                town.freeze(name, whole=whole, frozen=True)
                return lambda: town.freeze(name, whole=whole, frozen=False)
            case ("kill" | "restart", "leader"):
                town.end_leader(kill=trouble.do == "kill")
                return town.start_leader
            case _:
                return self._way(name, trouble)

    def _way(self, name: str, trouble: Trouble) -> Undo:
        ways = self.town.ways
        if trouble.delay_ms is None:
            ways.cut(name, is_cut=True)
            return lambda: ways.cut(name, is_cut=False)
        way = ways.by_fellow[name]
        way.delay_s = trouble.delay_ms / 1000

        def back() -> None:
            way.delay_s = way.usual_delay_s

        return back


def _is_due(trouble: Trouble, at_s: float, step: int) -> bool:
    if trouble.at.step is not None:
        return step >= trouble.at.step
    assert trouble.at.s is not None
    return at_s >= trouble.at.s
