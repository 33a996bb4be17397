"""Bodies written by hand: no finite number, too deep, no object, a form, an argument twice."""

import json
import math
from typing import Any

import pytest

from mcp_server.tools import PROBLEM_KEY
from tests.flow.open_leader import JOB, POOL
from tests.flow.refusals import World, check, everything, put, rest_told

pytestmark = pytest.mark.usefixtures("told_where")

NO_NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999")


@pytest.mark.parametrize("value", NO_NUMBERS)
async def test_what_is_no_finite_number_is_refused_on_every_face(world: World, value: str) -> None:
    before = everything(world.data)
    raw = json.dumps({"pool": POOL, "config": put(JOB, "/train/learning_rate", "HERE")})
    raw = raw.replace('"HERE"', value)
    async with world.http(**{"content-type": "application/json"}) as client:
        for path in ("/jobs/plan", "/jobs"):
            told = rest_told(await client.post(f"/api/v1{path}", content=raw))
            check(told, "invalid-input", ("/config/train/learning_rate", "finite number"))
        for problem in await raw_tool_calls(world, "jobs_plan", raw):
            assert problem["code"] == "invalid-input", problem
            assert "/config/train/learning_rate" in problem["detail"]
    file = world.folder / "no-number.yaml"
    as_yaml = {"NaN": ".nan", "Infinity": ".inf", "-Infinity": "-.inf"}.get(value, value)
    file.write_text(
        f"model: {{id: local:tiny}}\ndata: {{bucket: words}}\n"
        f"train: {{steps: 3, learning_rate: {as_yaml}}}\n"
    )
    told = await world.swarm("train", "--config", str(file), "--pool", POOL)
    check(told, "invalid-input", ("/train/learning_rate", "finite number"))
    assert everything(world.data) == before
    assert not math.isfinite(float(value))


async def raw_tool_calls(world: World, tool: str, arguments: str) -> list[dict[str, Any]]:
    """The problems that both eras give for arguments sent letter by letter."""
    return [
        (json.loads(answer)["result"].get("_meta") or {})[PROBLEM_KEY]
        for answer in await raw_answers(world, tool, arguments)
    ]


async def raw_answers(world: World, tool: str, arguments: str) -> list[str]:
    """What /mcp answers to a body written by hand, in both eras."""
    told = []
    accept = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    async with world.http(**accept) as client:
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"}}}  # fmt: skip
        opened = await client.post("/mcp", json=hello)
        legacy = {"mcp-session-id": opened.headers["mcp-session-id"],
                  "mcp-protocol-version": "2025-11-25"}  # fmt: skip
        modern = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call",
                  "mcp-name": tool}  # fmt: skip
        meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {}}  # fmt: skip
        for headers, more in ((legacy, {}), (modern, {"_meta": meta})):
            params = json.dumps({"name": tool, "arguments": "HERE", **more})
            body = f'{{"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {params}}}'
            body = body.replace('"HERE"', arguments)
            answer = await client.post("/mcp", content=body, headers=headers)
            lines = [line for line in answer.text.splitlines() if line.startswith("data: {")]
            told.append(lines[-1].removeprefix("data: ") if lines else answer.text)
    return told


DEEP = 100_000


@pytest.mark.parametrize("depth", [300, DEEP])
async def test_json_nested_too_deep_is_refused_and_the_leader_works_on(
    world: World, depth: int
) -> None:
    before = everything(world.data)
    nest = "[" * depth + "]" * depth
    for raw in (nest, f'{{"pool": "{POOL}", "config": {nest}}}'):
        async with world.http(**{"content-type": "application/json"}) as client:
            check(rest_told(await client.post("/api/v1/jobs/plan", content=raw)), "invalid-input")
            listed = await client.get("/api/v1/pools")
        assert listed.status_code == 200
        for answer in await raw_answers(world, "jobs_plan", raw):
            told = json.loads(answer)
            assert "error" in told or told["result"]["isError"], told
    for ending in ("json", "yaml"):
        file = world.folder / f"deep.{ending}"
        file.write_text(f'{{"model": {nest}}}' if ending == "json" else f"model: {nest}")
        told = await world.swarm("train", "--config", str(file), "--pool", POOL)
        check(told, "invalid-input")
    assert everything(world.data) == before


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "/pool: is missing"),
        (b"{", "is not JSON"),
        (b"[]", "one JSON object"),
        (b"null", "one JSON object"),
        (b"\xff\xfe", "is not JSON"),
        (b'{"pool": "\\ud800/x"}', "invalid JSON"),
    ],
)
async def test_a_body_that_is_no_object_is_refused(world: World, raw: bytes, said: str) -> None:
    before = everything(world.data)
    async with world.http(**{"content-type": "application/json"}) as client:
        told = rest_told(await client.post("/api/v1/pools", content=raw))
    check(told, "invalid-input", (said,))
    assert everything(world.data) == before


async def test_a_form_and_an_argument_given_twice_are_refused(world: World) -> None:
    async with world.http() as client:
        form = rest_told(await client.post("/api/v1/pools", data={"pool": "ann/x"}))
        twice = rest_told(await client.get("/api/v1/jobs?limit=1&limit=2"))
        apart = {"pool": POOL, "bucket": "other", "name": "a.txt", "content": "x"}
        two = rest_told(await client.post("/api/v1/buckets/words/files", json=apart))
    check(form, "invalid-input", ("one JSON object",))
    check(twice, "invalid-input", ("/limit: is given twice",))
    check(two, "invalid-input", ("/bucket", "the body something else"))
