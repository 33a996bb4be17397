"""The strict models that everything crossing a machine is made of, and how text becomes one.

Strict, unknown keys refused by name, no NaN and no infinity, so that a typo is an answer and not
a surprise. Reads JSON only: a value is checked in the form in which it crosses.
"""

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from transport.errors import SwarmError

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
        raise refusal(model, error.errors(include_url=False, include_input=False)) from None
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
        raise refusal(model, error.errors(include_url=False, include_input=False)) from None


def refusal(model: type[BaseModel], errors: Iterable[ErrorDetails]) -> SwarmError:
    """The error that tells each wrong argument in our own words."""
    told = [_tell(model, error) for error in errors]
    return SwarmError(
        "invalid-input",
        "; ".join(f"{one['pointer'] or '/'}: {one['detail']}" for one in told[:5]),
        hint=next(
            (one["hint"] for one in told if one["hint"]), "correct the arguments named above"
        ),
        facts={"errors": [{"pointer": o["pointer"], "detail": o["detail"]} for o in told[:20]]},
    )


def _tell(model: type[BaseModel], error: ErrorDetails) -> dict[str, str]:
    pointer = "".join(f"/{part}" for part in error["loc"])
    hint = ""
    if error["type"] == "extra_forbidden":
        name = str(error["loc"][-1])
        nearest = difflib.get_close_matches(name, sorted(_field_names(model)), n=1, cutoff=0.5)
        detail = "there is no such argument"
        hint = f"did you mean {nearest[0]!r}?" if nearest else "leave it out"
        detail += f"; {hint}" if nearest else ""
    elif error["type"] == "missing":
        detail = "is missing"
    else:
        detail = error["msg"].removeprefix("Value error, ")
        detail = detail[:1].lower() + detail[1:]
    return {"pointer": pointer, "detail": detail, "hint": hint}


def _field_names(model: type[BaseModel]) -> set[str]:
    """Every argument name in a model and the models inside it."""
    schema = json.dumps(model.model_json_schema(by_alias=True))
    names: set[str] = set()

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            properties = node.get("properties")
            if isinstance(properties, dict):
                names.update(properties)
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(json.loads(schema))
    return names
