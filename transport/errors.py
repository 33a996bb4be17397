"""One error for every face: a stable code, the fact with its numbers, and what to do next.

Knows the table of codes and their HTTP status and exit code. Does not know HTTP, MCP or a terminal:
each face turns a SwarmError into its own words.
"""

from collections.abc import Mapping
from typing import Any, Self

# code -> (HTTP status, exit code of the command line). Add here, never beside it.
CODES: dict[str, tuple[int, int]] = {
    "invalid-input": (422, 2),
    "unauthenticated": (401, 6),
    "forbidden": (403, 6),
    "not-found": (404, 4),
    "expired": (410, 4),
    "conflict": (409, 5),
    "plan-changed": (409, 5),
    "cannot-fit": (422, 1),
    "not-enough-disk": (422, 1),
    "too-large": (413, 2),
    "storage-full": (507, 1),
    "rate-limited": (429, 7),
    "unavailable": (503, 7),
    "unreachable": (503, 7),
    "stage-failed": (500, 1),
    "internal": (500, 1),
}


class SwarmError(Exception):
    """A refusal or failure that its reader can act on.

    Args:
        code: one of CODES; stable, the same on every face.
        message: what is wrong, with the numbers. One sentence, no full stop needed.
        hint: what to do next, for a person or an agent.
        facts: JSON values that a program may want (ids, byte counts, changes).
    """

    def __init__(
        self, code: str, message: str, *, hint: str = "", facts: Mapping[str, Any] | None = None
    ) -> None:
        assert code in CODES, f"unknown error code {code}"
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.facts: dict[str, Any] = dict(facts or {})

    @property
    def status(self) -> int:
        """The HTTP status of this code."""
        return CODES[self.code][0]

    @property
    def exit_code(self) -> int:
        """The exit code of `swarm` for this code."""
        return CODES[self.code][1]

    def problem(self) -> dict[str, Any]:
        """The RFC 9457 problem document of this error (JSON values only)."""
        return {
            "type": f"urn:swarm:problem:{self.code}",
            "title": self.code.replace("-", " "),
            "status": self.status,
            "detail": self.message,
            "code": self.code,
            "hint": self.hint,
            "facts": self.facts,
        }

    @classmethod
    def from_problem(cls, problem: Mapping[str, Any]) -> Self:
        """The error that a problem document tells; an unknown code becomes "internal"."""
        code = str(problem.get("code", "internal"))
        facts = problem.get("facts")
        return cls(
            code if code in CODES else "internal",
            str(problem.get("detail", "the leader answered with an error it did not explain")),
            hint=str(problem.get("hint", "")),
            facts=facts if isinstance(facts, dict) else {},
        )

    def __str__(self) -> str:
        return self.message


def not_found(what: str, name: str, hint: str) -> SwarmError:
    """The refusal for anything the caller cannot see, whether or not it exists elsewhere."""
    return SwarmError("not-found", f"there is no {what} {name!r} here", hint=hint)
