"""The OpenAPI 3.1 document of the REST face, built from the declarations alone."""

import re
from functools import cache
from http import HTTPStatus
from typing import Any

from pydantic.json_schema import models_json_schema

from transport.api.catalog import OPERATIONS
from transport.api.operation import Operation
from transport.errors import CODES

API_VERSION = "1"
REF = "#/components/schemas/{model}"
Node = dict[str, Any]


@cache
def document() -> Node:
    """The whole document; the same for every leader of this version."""
    inputs, outputs, schemas = _schemas()
    paths: Node = {}
    for operation in OPERATIONS.values():
        entry = _entry(operation, inputs[operation.name], outputs[operation.name], schemas)
        paths.setdefault("/api/v1" + operation.path, {})[operation.method.lower()] = entry
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Swarm",
            "version": API_VERSION,
            "summary": "Pools the graphics cards you already own; train on them by plan.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}],
        "paths": paths | _downloads(),
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas | {"Problem": _problem()},
        },
    }


def _schemas() -> tuple[dict[str, Node], dict[str, Node], Node]:
    """References of all inputs and outputs by operation, and the schemas they point at."""
    refs, told = models_json_schema(
        [
            *((operation.asks, "validation") for operation in OPERATIONS.values()),
            *((operation.answers, "serialization") for operation in OPERATIONS.values()),
        ],
        ref_template=REF,
    )
    inputs = {o.name: refs[o.asks, "validation"] for o in OPERATIONS.values()}
    outputs = {o.name: refs[o.answers, "serialization"] for o in OPERATIONS.values()}
    return inputs, outputs, told["$defs"]


def _entry(operation: Operation, asks: Node, answers: Node, schemas: Node) -> Node:
    entry: Node = {
        "operationId": operation.name,
        "summary": operation.doc.partition("\n")[0],
        "description": operation.doc,
        "tags": [operation.name.partition("_")[0]],
        "x-scope": operation.scope,
        "x-effect": operation.effect,
        "parameters": _parameters(operation, schemas[_name(asks)]),
        "responses": {
            "200": {
                "description": "Done.",
                "content": {"application/json": {"schema": answers}},
            },
            "default": PROBLEM_RESPONSE,
        },
    }
    if operation.method == "POST":
        content: Node = {"application/json": {"schema": _without_path(operation, asks, schemas)}}
        if operation.upload is not None:
            content["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
        entry["requestBody"] = {"content": content}
    return entry


def _name(ref: Node) -> str:
    return str(ref["$ref"]).rpartition("/")[2]


def _in_path(operation: Operation) -> list[str]:
    return re.findall(r"{(\w+)}", operation.path)


def _parameters(operation: Operation, schema: Node) -> list[Node]:
    """Path fields, and the query string where arguments travel in one."""
    inside, required = _in_path(operation), schema.get("required", [])
    by_query = operation.method != "POST" or operation.upload is not None
    told = []
    for name, node in schema.get("properties", {}).items():
        if name in inside:
            told.append({"name": name, "in": "path", "required": True, "schema": node})
        elif by_query and name != operation.upload:
            must = name in required and operation.method != "POST"
            told.append({"name": name, "in": "query", "required": must, "schema": node})
    return told


def _without_path(operation: Operation, asks: Node, schemas: Node) -> Node:
    """The body's schema: the input without what the path already says."""
    inside = _in_path(operation)
    if not inside:
        return asks
    whole = schemas[_name(asks)]
    return {
        **whole,
        "properties": {k: v for k, v in whole["properties"].items() if k not in inside},
        "required": [k for k in whole.get("required", []) if k not in inside],
    }


def _downloads() -> Node:
    binary = {"schema": {"type": "string", "format": "binary"}}
    job = {"name": "job_id", "in": "path", "required": True, "schema": {"type": "string"}}
    file = {"name": "file", "in": "path", "required": True, "schema": {"type": "string"}}

    def get(name: str, summary: str, kind: str, parameters: list[Node]) -> Node:
        answer = {"description": "The file.", "content": {kind: binary}}
        return {
            "get": {
                "operationId": name,
                "summary": summary,
                "tags": ["downloads"],
                "x-scope": "read",
                "x-effect": "read",
                "parameters": parameters,
                "responses": {"200": answer, "default": PROBLEM_RESPONSE},
            }
        }

    return {
        "/api/v1/jobs/{job_id}/adapter/{file}": get(
            "adapter_file", "Fetch one adapter file.", "application/octet-stream", [job, file]
        ),
        "/api/v1/jobs/{job_id}/merged/{file}": get(
            "merged_file",
            "Fetch one file of a whole checkpoint.",
            "application/octet-stream",
            [job, file],
        ),
        "/api/v1/jobs/{job_id}/records.jsonl": get(
            "records_file", "Fetch all measured steps.", "application/jsonl", [job]
        ),
    }


PROBLEM_RESPONSE: Node = {
    "description": "Refused or failed: code says why, hint what to do.",
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}


def _problem() -> Node:
    """RFC 9457, with the codes of transport.errors."""
    text = {"type": "string"}
    return {
        "type": "object",
        "description": "\n".join(
            f"{code}: {status} {HTTPStatus(status).phrase}" for code, (status, _) in CODES.items()
        ),
        "properties": {
            "type": text,
            "title": text,
            "status": {"type": "integer"},
            "detail": text,
            "code": {"type": "string", "enum": list(CODES)},
            "hint": text,
            "facts": {"type": "object"},
        },
        "required": ["type", "title", "status", "detail", "code", "hint", "facts"],
    }
