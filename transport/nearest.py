"""Which argument somebody meant: the nearest name where it stands, else the place it belongs in."""

import difflib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

DEEPEST = 8
"""Schemas that hold themselves are followed no further."""
MOST_TOLD = 12
ALIKE = 0.5


def meant(model: type[BaseModel], pointer: str) -> str:
    """What to do about an argument that is not there.

    Args:
        pointer: where it stands, as a JSON pointer of neutral parts.

    Returns:
        a hint with the nearest name, of the same place by itself, of another one with its path; or
        with what can stand there.
    """
    *place, name = pointer.removeprefix("/").split("/")
    here = "".join("[]" if part.isdigit() else f".{part}" for part in place).removeprefix(".")
    known = _arguments(model)
    beside = sorted(last for path, last in known if path == here)
    near = difflib.get_close_matches(name, beside, n=1, cutoff=ALIKE)
    if near:
        return f"did you mean {near[0]!r}?"
    others = {
        last: f"{path}.{last}".removeprefix(".") for path, last in sorted(known, reverse=True)
    }
    far = difflib.get_close_matches(name, sorted(others), n=1, cutoff=ALIKE)
    if far and "[]" not in others[far[0]]:
        return f"did you mean {others[far[0]]!r}?"
    if not 0 < len(beside) <= MOST_TOLD:
        return "leave it out"
    return f"leave it out; what can stand there: {', '.join(beside)}"


@lru_cache(maxsize=256)
def _arguments(model: type[BaseModel]) -> frozenset[tuple[str, str]]:
    """(path, name) of every argument in a model and those inside it; [] stands for any item."""
    schema = model.model_json_schema(by_alias=True)
    return frozenset(_walk(schema, schema.get("$defs", {}), "", 0))


def _walk(node: Any, named: dict[str, Any], path: str, depth: int) -> Iterator[tuple[str, str]]:
    if not isinstance(node, dict) or depth > DEEPEST:
        return
    if "$ref" in node:
        yield from _walk(named.get(node["$ref"].rsplit("/", 1)[1]), named, path, depth + 1)
    for each in [*node.get("anyOf", []), *node.get("oneOf", []), *node.get("allOf", [])]:
        yield from _walk(each, named, path, depth)
    yield from _walk(node.get("items"), named, f"{path}[]", depth)
    for name, inner in node.get("properties", {}).items():
        yield path, name
        yield from _walk(inner, named, f"{path}.{name}".removeprefix("."), depth + 1)
