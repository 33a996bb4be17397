"""What a rehearsal script says: who is there, what trains, what goes wrong, what must come out.

Only words and their meaning; starts nothing. Unknown keys are errors that name the nearest.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, model_validator

from transport.errors import SwarmError
from transport.schema import Model, parse

NAME = r"^[a-z][a-z0-9-]{0,19}$"
Name = Annotated[str, Field(pattern=NAME)]
Seconds = Annotated[float, Field(gt=0, le=3600)]
MAX_SCRIPT = 100_000

Deed = Literal["kill", "freeze", "cut", "slow", "restart"]
Target = Literal["worker", "daemon", "leader", "way"]
_TARGETS: dict[str, tuple[str, ...]] = {
    "kill": ("worker", "daemon", "leader"),
    "freeze": ("worker", "daemon"),
    "cut": ("way",),
    "slow": ("way",),
    "restart": ("leader",),
}


class FellowCast(Model):
    """A virtual fellow: a real daemon with a card that is a share of this machine."""

    name: Name
    card: Annotated[str, Field(max_length=40)] = "cpu:500MB:1"
    """As for `swarm join --card`: memory that its worker may hold, and threads."""
    delay_ms: Annotated[float, Field(ge=0, le=10_000)] = 0.0
    """Each way between this fellow and the leader."""


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
    """worker, daemon: of a fellow. way: between a fellow and the leader. leader: the leader."""
    fellow: Name | None = None
    for_s: Seconds | None = None
    """freeze, cut, slow: how long. kill of a daemon or the leader: when it is started again;
    left out, a daemon stays away and a leader comes back at once.
    """
    delay_ms: Annotated[float, Field(gt=0, le=60_000)] | None = None
    """slow: the delay each way, meanwhile."""

    @model_validator(mode="after")
    def _makes_sense(self) -> "Trouble":
        if self.what not in _TARGETS[self.do]:
            raise ValueError(f"{self.do} is for {' or '.join(_TARGETS[self.do])}, not {self.what}")
        if (self.what == "leader") == (self.fellow is not None):
            raise ValueError("name a fellow, unless the leader is meant")
        if self.do in ("freeze", "cut", "slow") and self.for_s is None:
            raise ValueError(f"{self.do} needs for_s")
        if (self.do == "slow") != (self.delay_ms is not None):
            raise ValueError("slow, and nothing else, needs delay_ms")
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
            if trouble.fellow is not None and trouble.fellow not in names:
                raise ValueError(f"no fellow is called {trouble.fellow}")
        if {"model", "data"} & self.job.keys():
            raise ValueError("job names no model and no data: they are the rehearsal's own")
        return self


def read_script(path: Path) -> Script:
    """A script from a YAML or JSON file.

    Raises:
        SwarmError: not-found; invalid-input with the place and the nearest known word.
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
    return parse(Script, told)


def known_scripts() -> dict[str, Path]:
    """The scripts that come with Swarm, by name."""
    folder = Path(__file__).parent / "scripts"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
