"""Makes a script's troubles happen at their time, and ends those that end.

Asked again and again with what the job has come to; does each trouble once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from agents.rehearse.script import LineCast, Trouble
from agents.rehearse.town import Town, link_of, way_of
from agents.rehearse.ways import Shape
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

    happened: list[tuple[float, str]] = field(default_factory=list)
    """(at which second, in words): troubles and their ends."""

    def turn(self, at_s: float, step: int) -> None:
        """Do what is due.

        Args:
            at_s: seconds since the job was submitted.
            step: the job's last finished step.
        """
        for due, words, how in [one for one in self.undo if one[0] <= at_s]:
            self._tell(at_s, words)
            how()
            self.undo.remove((due, words, how))
        for trouble in [one for one in self.waiting if _is_due(one, at_s, step)]:
            self._begin(trouble, at_s)

    def end(self, at_s: float) -> None:
        """Undo everything now: the job is over."""
        for _, words, how in self.undo:
            self._tell(at_s, words)
            how()
        self.undo.clear()

    def _begin(self, trouble: Trouble, at_s: float) -> None:
        words = in_words(trouble)
        try:
            undo = self._do(trouble)
        except SwarmError as error:
            if error.code != "conflict":
                raise
            return  # its worker is not there yet: asked again in the next turn
        self.waiting.remove(trouble)
        self._tell(at_s, words)
        if undo is not None:
            is_for_good = trouble.do == "fill" and trouble.for_s is None
            after = trouble.for_s or (float("inf") if is_for_good else 0.0)
            self.undo.append((at_s + after, f"end of: {words}", undo))

    def _tell(self, at_s: float, words: str) -> None:
        self.happened.append((at_s, words))
        self.say(words)

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
            case ("kill", "relay"):
                town.kill_relay()
                return None
            case ("fill", _):
                town.fill_disk(name, is_full=True)
                return lambda: town.fill_disk(name, is_full=False)
            case ("kill" | "restart", _):
                town.end_leader(kill=trouble.do == "kill")
                return town.start_leader
            case _:
                return self._ways(trouble)

    def _ways(self, trouble: Trouble) -> Undo | None:
        """One way or link, or all of them."""
        ways, name_of = self.town.ways, way_of if trouble.what == "way" else link_of
        fellows = [trouble.fellow] if trouble.fellow else list(self.town.fellow_ids)
        names = [name_of(fellow) for fellow in fellows]
        for name in names:
            if trouble.do == "break":
                ways.hang_up(name)
            elif trouble.do == "cut":
                ways.cut(name, is_cut=True)
            else:
                ways.by_name[name].shape = _slowed(ways.by_name[name].usual, trouble)
        if trouble.do == "break":
            return None

        def back() -> None:
            for name in names:
                ways.cut(name, is_cut=False)
                ways.by_name[name].shape = ways.by_name[name].usual

        return back


def _slowed(usual: Shape, trouble: Trouble) -> Shape:
    told = LineCast(delay_ms=trouble.delay_ms or 0.0, mbit=trouble.mbit).shape()
    return Shape(
        usual.delay_s if trouble.delay_ms is None else told.delay_s,
        usual.bytes_s if trouble.mbit is None else told.bytes_s,
    )


def in_words(trouble: Trouble) -> str:
    """What happens, in a line."""
    return f"{trouble.do} {trouble.what}" + (f" of {trouble.fellow}" if trouble.fellow else "")


def _is_due(trouble: Trouble, at_s: float, step: int) -> bool:
    if trouble.at.step is not None:
        return step >= trouble.at.step
    assert trouble.at.s is not None
    return at_s >= trouble.at.s
