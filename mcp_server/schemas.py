"""JSON Schemas of the operations: whole ones for REST, short ones for tool listings.

An agent pays for every character of a listing in each conversation, so the short ones leave out
what only repeats: generated titles, patterns of ids, nulls that mean "left out". The server checks
the whole schema in any case.
"""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

DROPPED = frozenset(
    {"title", "pattern", "minLength", "maxLength", "minItems", "maxItems", "exclusiveMaximum"}
)
REF = "#/$defs/"
LARGE = 2000  # characters; only the job file is as large


@cache
def _whole(model: type[BaseModel]) -> Schema:
    return model.model_json_schema()


def tool_input(model: type[BaseModel], shown: dict[str, str], tool: str) -> Schema:
    """The short input schema of a tool, definitions written in place.

    Args:
        shown: large definitions that an earlier tool of the listing has written out already, with
            that tool's name; a second writing only points there. Grows by this tool's own.
    """
    whole = _whole(model)
    defs = dict(whole.get("$defs", {}))
    for name in [name for name in defs if len(json.dumps(defs[name])) > LARGE]:
        if name in shown:
            defs[name] = {"type": "object", "description": f"As in {shown[name]}."}
        else:
            shown[name] = tool
    short = _shorten(whole, defs)
    short.pop("description", None)
    return {"type": "object", "properties": {}, **short, "additionalProperties": False}


def tool_output(model: type[BaseModel], shown: dict[str, str], tool: str) -> Schema:
    """The shallow output schema of a tool: top-level properties with their types.

    Which of them are always there, and what they hold, the whole schema tells (OpenAPI, `swarm
    schema`); an answer is checked against that one before it leaves.

    Args:
        shown: answers that an earlier tool of the listing has written out already, with that
            tool's name; a second writing only points there. Grows by this tool's own.
    """
    if model.__name__ in shown:
        return {"type": "object", "description": f"As {shown[model.__name__]} answers."}
    shown[model.__name__] = tool
    whole = model.model_json_schema(mode="serialization")
    defs = whole.get("$defs", {})
    properties = {
        name: {"type": types} if (types := _types(node, defs)) else {}
        for name, node in whole["properties"].items()
    }
    return {"type": "object", "properties": properties}


def _shorten(node: Schema, defs: Mapping[str, Schema]) -> Schema:
    """One schema node without what a listing does not need."""
    node = _resolved(node, defs)
    short: Schema = {}
    for key, value in node.items():
        if key in DROPPED or key in ("$defs", "additionalProperties"):
            continue
        if key == "default" and value in (None, [], {}, ""):
            continue
        if key == "properties":
            short[key] = {name: _shorten(one, defs) for name, one in value.items()}
        elif key == "anyOf":
            short.update(_alternatives(value, defs))
        elif key == "items":
            short[key] = _shorten(value, defs)
        elif key == "description":
            short[key] = " ".join(value.split())
        else:
            short[key] = value
    if "properties" in short and isinstance(short.get("default"), dict):
        del short["default"]  # its own properties tell their defaults
    return short


def _resolved(node: Schema, defs: Mapping[str, Schema]) -> Schema:
    """A node with its reference written in place; what stands beside the reference wins."""
    if "$ref" not in node:
        return node
    beside = {key: value for key, value in node.items() if key != "$ref"}
    return {**defs[node["$ref"].removeprefix(REF)], **beside}


def _alternatives(options: list[Schema], defs: Mapping[str, Schema]) -> Schema:
    """anyOf without null; a single remaining one is written in place."""
    left = [_shorten(one, defs) for one in options if one.get("type") != "null"]
    return left[0] if len(left) == 1 else {"anyOf": left}


def _types(node: Schema, defs: Mapping[str, Schema]) -> str | list[str] | None:
    """The JSON types a value may have; None when anything goes."""
    node = _resolved(node, defs)
    if "anyOf" in node:
        told = [_types(one, defs) for one in node["anyOf"]]
        if any(not isinstance(one, str) for one in told):
            return None
        names = [one for one in told if isinstance(one, str)]
        return names[0] if len(set(names)) == 1 else sorted(set(names))
    found = node.get("type")
    return found if isinstance(found, str) else None
