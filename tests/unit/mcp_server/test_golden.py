"""tools/list and openapi.json as snapshots: what agents and scripts see changes only on purpose.

Renew them with: RENEW_GOLDEN=1 pytest tests/unit/mcp_server/test_golden.py
"""

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mcp_server.openapi import document
from mcp_server.tools import listed_tools
from transport.api.catalog import OPERATIONS

RENEW = "RENEW_GOLDEN" in os.environ


def tools() -> list[dict[str, Any]]:
    """tools/list as it crosses."""
    return [tool.model_dump(by_alias=True, exclude_none=True) for tool in listed_tools()]


@pytest.mark.parametrize(
    ("name", "now"),
    [("tools_list.json", tools), ("openapi.json", document)],
    ids=["tools", "openapi"],
)
def test_what_the_outside_sees_is_what_was_agreed(root: Path, name: str, now: Any) -> None:
    path = root / "tests" / "golden" / name
    text = json.dumps(now(), indent=1, ensure_ascii=False) + "\n"
    if RENEW:
        path.write_text(text, "utf-8")
    assert path.read_text("utf-8") == text


def test_every_operation_and_every_refusal_is_in_the_openapi_document() -> None:
    told = document()
    entries = [entry for path in told["paths"].values() for entry in path.values()]
    names = {entry["operationId"] for entry in entries}
    assert set(OPERATIONS) <= names
    for entry in entries:
        assert "application/problem+json" in entry["responses"]["default"]["content"]


def test_every_reference_in_the_openapi_document_leads_somewhere() -> None:
    told = document()
    text = json.dumps(told)
    names = {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= set(told["components"]["schemas"])
    for schema in told["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_every_path_field_is_declared() -> None:
    for path, methods in document()["paths"].items():
        for entry in methods.values():
            inside = {p["name"] for p in entry["parameters"] if p["in"] == "path"}
            assert inside == {part[1:-1] for part in path.split("/") if part.startswith("{")}
