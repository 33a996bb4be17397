"""The strict models that everything crossing a machine is made of, and how text becomes one.

Strict, unknown keys refused by name, no NaN and no infinity, so that a typo is an answer and not
a surprise. Reads JSON only: a value is checked in the form in which it crosses.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from transport.errors import SwarmError
from transport.forms import form
from transport.nearest import meant

M = TypeVar("M", bound=BaseModel)


class Model(BaseModel):
    """Anything that crosses: strict, closed, frozen."""

    model_config = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, frozen=True, use_attribute_docstrings=True
    )


class Told(BaseModel):
    """What a newer machine may say more of: unknown keys are dropped, the rest is strict.

    Used for heartbeats and reports only, so that a leader works with newer and older fellows.
    """

    model_config = ConfigDict(
        strict=True, extra="ignore", allow_inf_nan=False, frozen=True, use_attribute_docstrings=True
    )


def parse(model: type[M], raw: Mapping[str, Any] | bytes | str) -> M:
    """Read JSON (text, or the values json.loads gives) as a model.

    Raises:
        SwarmError: invalid-input; names each wrong argument, and for an unknown one the nearest
            right one. facts["errors"] holds {pointer, detail} for each.
    """
    try:
        text = raw if isinstance(raw, (bytes, str)) else json.dumps(raw, allow_nan=True)
        return model.model_validate_json(text)
    except ValidationError as error:
        raise refusal(model, error.errors(include_url=False, include_input=False), raw) from None
    except (RecursionError, ValueError, TypeError) as error:
        raise SwarmError(
            "invalid-input",
            f"this is not JSON that can be read: {type(error).__name__}",
            hint="send one JSON object",
        ) from None


def parse_strings(model: type[M], raw: Mapping[str, Any]) -> M:
    """Read a flat mapping of strings (a query string, a command line) as a model."""
    try:
        return model.model_validate_strings(dict(raw), strict=False)
    except ValidationError as error:
        raise refusal(model, error.errors(include_url=False, include_input=False), raw) from None


def refusal(
    model: type[BaseModel], errors: Iterable[ErrorDetails], raw: Mapping[str, Any] | bytes | str
) -> SwarmError:
    """The error that tells each wrong argument in our own words.

    Args:
        raw: what was read, which says what a place in it is called.
    """
    told = _by_place([_tell(model, error, _values(raw)) for error in errors])
    # One thing's hint is the refusal's; where several are wrong, each hint stays with its own.
    alone = told[0].hint if len(told) == 1 else ""
    wrong = [
        {"pointer": one.pointer, "detail": one.detail if alone else one.detail + one.aside}
        for one in told[:20]
    ]
    return SwarmError(
        "invalid-input",
        "; ".join(f"{one['pointer'] or '/'}: {one['detail']}" for one in wrong[:5]),
        hint=alone or "correct the arguments named above",
        facts={"errors": wrong},
    )


@dataclass(frozen=True)
class _Wrong:
    pointer: str
    detail: str
    hint: str
    union: str | None
    """Where the value stands that may be of several types, when this is about one of them."""

    @property
    def aside(self) -> str:
        """Its hint as a part of the sentence, where several things are wrong."""
        return f" ({self.hint})" if self.hint else ""


def _tell(model: type[BaseModel], error: ErrorDetails, values: Any) -> _Wrong:
    pointer, union = _place(error, values)
    hint = ""
    if error["type"] == "extra_forbidden":
        hint = meant(model, pointer)
        detail = "there is no such argument"
    elif error["type"] == "missing":
        detail = "is missing"
    elif error["type"] == "string_pattern_mismatch":
        detail = f"should be {form(error['ctx']['pattern'])}"
    else:
        detail = error["msg"].removeprefix("Value error, ")
        detail = detail[:1].lower() + detail[1:]
    return _Wrong(pointer, detail, hint, union)


def _place(error: ErrorDetails, values: Any) -> tuple[str, str | None]:
    """(pointer, pointer of the union): pydantic puts the names of a union's types into the path."""
    pointer, union = "", None
    for number, part in enumerate(error["loc"]):
        is_absent = error["type"] == "missing" and number == len(error["loc"]) - 1
        try:
            values = None if is_absent else values[part]
        except (KeyError, IndexError, TypeError):
            union = pointer
        else:
            pointer += f"/{part}"
    return pointer, union


def _by_place(told: list[_Wrong]) -> list[_Wrong]:
    """One for each place: "a or b" for a value that is of none of its types."""
    inside = {one.union for one in told if one.union is not None and one.pointer != one.union}
    places: dict[str, _Wrong] = {}
    for one in told:
        if one.pointer == one.union and one.pointer in inside:
            continue  # of the right type, and wrong inside: that is what helps
        before = places.get(one.pointer)
        if before is None:
            places[one.pointer] = one
        elif one.detail not in before.detail:
            more = one.detail.removeprefix("input should be ")
            places[one.pointer] = replace(before, detail=f"{before.detail} or {more}")
    return list(places.values())


def _values(raw: Mapping[str, Any] | bytes | str) -> Any:
    """What was read, as values; None when it cannot be."""
    try:
        return json.loads(raw) if isinstance(raw, (bytes, str)) else raw
    except (ValueError, RecursionError):
        return None
