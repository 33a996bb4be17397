"""What a rehearsal script says: who is there, what trains, what goes wrong, what must come out.

Only words and their meaning; starts nothing. Unknown keys are errors that name the nearest.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, model_validator

from agents.rehearse.ways import Shape
from transport.errors import SwarmError
from transport.known_cards import BY_NAME
from transport.schema import Model, parse

NAME = r"^[a-z][a-z0-9-]{0,19}$"
Name = Annotated[str, Field(pattern=NAME)]
Seconds = Annotated[float, Field(gt=0, le=3600)]
MAX_SCRIPT = 100_000

Deed = Literal["kill", "freeze", "cut", "slow", "break", "restart", "fill"]
Target = Literal["worker", "daemon", "leader", "relay", "way", "link", "disk"]
_TARGETS: dict[str, tuple[str, ...]] = {
    "kill": ("worker", "daemon", "leader", "relay"),
    "freeze": ("worker", "daemon"),
    "cut": ("way", "link"),
    "slow": ("way", "link"),
    "break": ("way", "link"),
    "restart": ("leader",),
    "fill": ("disk",),
}
_LASTING = ("freeze", "cut", "slow")
Milliseconds = Annotated[float, Field(ge=0, le=60_000)]
Megabits = Annotated[float, Field(gt=0, le=100_000)]
Megabytes = Annotated[int, Field(ge=8, le=100_000)]


class CardCast(Model):
    """A virtual card: a share of this machine that the plan shows under another card's name."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9 .()-]{0,39}$")]
    """A known card's, like "RTX 3060", or any other."""
    memory_gb: Annotated[float, Field(gt=0, le=1000)] | None = None
    """Unset: the known card's own."""
    threads: Annotated[int, Field(ge=1, le=64)] = 1

    @model_validator(mode="after")
    def _has_memory(self) -> "CardCast":
        if self.memory_gb is None and self.name.lower() not in BY_NAME:
            raise ValueError(f"{self.name!r} is no known card: say its memory_gb")
        return self

    def spec(self) -> str:
        """As for `swarm join --card`."""
        memory = self.memory_gb
        if memory is None:
            memory = BY_NAME[self.name.lower()].memory_gb
        return f"cpu:{round(1000 * memory)}MB:{self.threads}:{self.name}"


class LineCast(Model):
    """What a line is like, each way."""

    delay_ms: Milliseconds = 0.0
    mbit: Megabits | None = None
    """Unset: as fast as this machine."""

    def shape(self) -> Shape:
        """For the proxy that plays it."""
        return Shape(self.delay_ms / 1000, None if self.mbit is None else self.mbit * 1e6 / 8)


class LeaderCast(Model):
    """The leader."""

    disk_mb: Megabytes | None = None
    """A disk of its own for all that it keeps; needs root. Unset: this machine's."""


class FellowCast(Model):
    """A virtual fellow: a real daemon with a card that is a share of this machine."""

    name: Name
    card: Annotated[str, Field(max_length=100)] | CardCast = "cpu:500MB:1"
    """As for `swarm join --card`, or a card to be shown as another."""
    delay_ms: Milliseconds = 0.0
    """Each way between this fellow and the leader."""
    mbit: Megabits | None = None
    """The same way's speed. Unset: as fast as this machine."""
    link: LineCast = LineCast()
    """What the stage before it passes through to reach it."""
    disk_mb: Megabytes | None = None
    """A disk of its own for its files; needs root. Unset: this machine's."""

    @property
    def card_spec(self) -> str:
        """As for `swarm join --card`."""
        return self.card if isinstance(self.card, str) else self.card.spec()


class ModelCast(Model):
    """What is trained: a small llama with random weights, made for the rehearsal."""

    layers: Annotated[int, Field(ge=1, le=48)] = 6
    hidden: Annotated[int, Field(ge=16, le=1024, multiple_of=16)] = 64


class When(Model):
    """After so many steps of the job, or so many seconds after it was submitted."""

    step: Annotated[int, Field(ge=1)] | None = None
    s: Annotated[float, Field(ge=0, le=3600)] | None = None

    @model_validator(mode="after")
    def _one(self) -> "When":
        if (self.step is None) == (self.s is None):
            raise ValueError("say either step or s")
        return self


class Trouble(Model):
    """One thing that goes wrong."""

    at: When
    do: Deed
    what: Target
    """worker, daemon: of a fellow. way: between a fellow and the leader. link: what the stage
    before a fellow's passes through to reach it. relay: the leader's. disk: one of its own.
    """
    fellow: Name | None = None
    """Left out for the leader, its relay and its disk, and for every way or every link."""
    for_s: Seconds | None = None
    """freeze, cut, slow: how long. kill of a daemon or the leader: when it is started again;
    left out, a daemon stays away and a leader comes back at once. fill: when there is room again;
    left out, at the end.
    """
    delay_ms: Milliseconds | None = None
    """slow: the delay each way, meanwhile."""
    mbit: Megabits | None = None
    """slow: the speed each way, meanwhile."""

    @model_validator(mode="after")
    def _makes_sense(self) -> "Trouble":
        if self.what not in _TARGETS[self.do]:
            raise ValueError(f"{self.do} is for {' or '.join(_TARGETS[self.do])}, not {self.what}")
        if self.what in ("leader", "relay"):
            if self.fellow is not None:
                raise ValueError(f"name no fellow: the {self.what} is the pool's")
        elif self.fellow is None and self.what not in ("disk", "way", "link"):
            raise ValueError(f"name a fellow, whose {self.what} it is")
        if self.do in _LASTING and self.for_s is None:
            raise ValueError(f"{self.do} needs for_s")
        is_shaped = self.delay_ms is not None or self.mbit is not None
        if (self.do == "slow") != is_shaped:
            raise ValueError("slow, and nothing else, needs delay_ms or mbit")
        return self


class Expectation(Model):
    """What must hold at the end."""

    state: Literal["completed", "failed"] = "completed"
    attempts_at_most: Annotated[int, Field(ge=1)] | None = None
    within_s: Annotated[float, Field(gt=0, le=3600)] = 300.0
    same_as_undisturbed: bool = False
    """The job runs once more before, with nothing going wrong; losses and adapter must be equal,
    bit by bit.
    """


class Script(Model):
    """A rehearsal, version 1."""

    version: Literal[1] = 1
    title: Annotated[str, Field(max_length=200)] = ""
    leader: LeaderCast = LeaderCast()
    fellows: Annotated[list[FellowCast], Field(min_length=1, max_length=16)]
    model: ModelCast = ModelCast()
    rows: Annotated[int, Field(ge=1, le=100_000)] = 200
    """Rows of text in the job's bucket."""
    job: dict[str, Any]
    """A job file without model and data: those are the rehearsal's own."""
    troubles: Annotated[list[Trouble], Field(max_length=100)] = []
    expect: Expectation = Expectation()

    @model_validator(mode="after")
    def _known(self) -> "Script":
        names = [fellow.name for fellow in self.fellows]
        if len(set(names)) != len(names):
            raise ValueError("two fellows have the same name")
        for trouble in self.troubles:
            self._check(trouble, names)
        if {"model", "data"} & self.job.keys():
            raise ValueError("job names no model and no data: they are the rehearsal's own")
        return self

    def _check(self, trouble: Trouble, names: list[str]) -> None:
        if trouble.fellow is not None and trouble.fellow not in names:
            raise ValueError(f"no fellow is called {trouble.fellow}")
        who = self.of(trouble.fellow) if trouble.fellow else self.leader
        if trouble.do == "fill" and who.disk_mb is None:
            raise ValueError("only a disk of its own can be filled: give it a disk_mb")
        ends = (trouble.do, trouble.what) in (("kill", "daemon"), ("kill", "leader")) or (
            trouble.do == "restart"
        )
        if ends and who.disk_mb is not None:
            raise ValueError("a disk of its own goes with its process: it cannot come back")

    def of(self, name: str) -> FellowCast:
        """The fellow of that name."""
        return next(one for one in self.fellows if one.name == name)


def read_script(path: Path) -> Script:
    """A script from a YAML or JSON file.

    Raises:
        SwarmError: not-found; invalid-input with the line and the nearest known word.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SwarmError(
            "not-found",
            f"the script {str(path)!r} cannot be read ({type(error).__name__})",
            hint="name a YAML file, or one of the scripts that `swarm rehearse --list` shows",
        ) from None
    if len(text) > MAX_SCRIPT:
        raise SwarmError("invalid-input", f"a script has at most {MAX_SCRIPT} characters")
    try:
        told = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SwarmError("invalid-input", f"{path.name} is no YAML: {error}") from None
    if not isinstance(told, dict):
        raise SwarmError(
            "invalid-input", f"{path.name} holds no script", hint="begin with `version: 1`"
        )
    try:
        return parse(Script, told)
    except SwarmError as error:
        raise _with_lines(error, path.name, text) from None


def _with_lines(error: SwarmError, name: str, text: str) -> SwarmError:
    """The refusal of a script with the line that each of its reasons is about."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    told = [
        f"{name}, line {_line_of(node, one['pointer'])}: "
        f"{one['pointer'].removeprefix('/') or 'the script'}: {one['detail']}"
        for one in error.facts.get("errors", [])[:5]
    ]
    return SwarmError("invalid-input", "; ".join(told) or error.message, hint=error.hint)


def _line_of(node: Any, pointer: str) -> int:
    """The line of what a pointer names, or of what it would stand in."""
    line = node.start_mark.line + 1
    for part in pointer.split("/")[1:]:
        if isinstance(node, yaml.SequenceNode) and part.isdigit() and int(part) < len(node.value):
            node = node.value[int(part)]
            line = node.start_mark.line + 1
            continue
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        found = next((pair for pair in pairs if pair[0].value == part), None)
        if found is None:
            break
        line, node = found[0].start_mark.line + 1, found[1]
    return int(line)


def known_scripts() -> dict[str, Path]:
    """The scripts that come with Swarm, by name."""
    folder = Path(__file__).parent / "scripts"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
