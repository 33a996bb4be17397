"""What an operation is: one verb, declared once, offered by MCP, REST and command line alike."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal

from pydantic import BaseModel, Field
from typing_extensions import TypeVar  # typing's own knows no default before Python 3.13

from transport.ids import RequestId
from transport.schema import Model

Effect = Literal["read", "create", "update", "destroy"]
Scope = Literal["read", "train", "admin"]
"""read: look. train: spend the pool's time (submit, cancel, data, models). admin: change who and
what is in it.
"""
SCOPES: tuple[Scope, ...] = ("read", "train", "admin")


class Ask(Model):
    """The input of an operation."""


class Change(Ask):
    """The input of an operation that changes something."""

    request_id: RequestId | None = None
    """Your own id of this call. Sent again with it, the call gives its first answer and does
    nothing twice; with other arguments it is a conflict.
    """


class Next(Model):
    """A call that makes sense now, ready to be made."""

    operation: str
    arguments: dict[str, Any]
    why: str


class Answer(Model):
    """The output of an operation."""

    summary: str
    """One or two sentences to show to a person."""
    next: Annotated[list[Next], Field(max_length=3)] = []
    """Up to three calls that make sense now."""


AnswerT_co = TypeVar("AnswerT_co", bound=Answer, default=Answer, covariant=True)


@dataclass(frozen=True)
class Operation(Generic[AnswerT_co]):
    """One declared verb. `doc` (the input model's docstring) is the text that an agent reads."""

    name: str
    asks: type[Ask]
    answers: type[AnswerT_co]
    effect: Effect
    scope: Scope
    method: Literal["GET", "POST", "DELETE"]
    path: str
    """Below /api/v1; {braces} name fields of the input."""
    words: tuple[str, ...]
    """The command: ("jobs", "list") is `swarm jobs list`."""
    positional: tuple[str, ...] = ()
    """Input fields that the command line takes without a flag."""
    listed: bool = True
    """Whether tools/list shows it; every operation can be called on every face."""
    upload: str | None = None
    """The input field whose bytes REST takes as the request body instead (streamed)."""

    @property
    def doc(self) -> str:
        """The description, as written at the input model."""
        return (self.asks.__doc__ or "").strip()

    def hints(self) -> Mapping[str, bool]:
        """The four MCP hints, all from the effect."""
        return {
            "read_only_hint": self.effect == "read",
            "destructive_hint": self.effect == "destroy",
            "idempotent_hint": self.effect in ("read", "destroy"),
            "open_world_hint": False,
        }


Out = BaseModel
