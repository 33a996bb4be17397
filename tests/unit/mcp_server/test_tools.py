"""MCP in both protocol eras, over real HTTP: listing, answers, errors, progress."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import httpx2
import jsonschema
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CallToolResult, TextContent

from mcp_server.schemas import tool_output
from mcp_server.tools import PROBLEM_KEY, listed_tools
from tests.unit.mcp_server.twin import CREDENTIAL, House, sample, until
from transport.api.catalog import OPERATIONS
from transport.api.jobs import JobsSubmit
from transport.errors import SwarmError
from transport.schema import parse

Era = Literal["legacy", "2026-07-28"]
ERAS: list[Era] = ["legacy", "2026-07-28"]
MAX_TOKENS = 6000


@asynccontextmanager
async def agent(house: House, era: Era, secret: str = "swt_admin") -> AsyncIterator[Client]:
    """An MCP client with this access token."""
    headers = {"authorization": f"Bearer {secret}"}
    async with httpx2.AsyncClient(headers=headers, timeout=10) as http:
        transport = streamable_http_client(f"{house.url}/mcp", http_client=http)
        async with Client(transport, mode=era) as client:
            yield client


def text_of(result: CallToolResult) -> str:
    """The text of a result's only block."""
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


@pytest.mark.parametrize("era", ERAS)
async def test_the_listing_is_the_listed_operations_in_order(house: House, era: Era) -> None:
    async with agent(house, era) as client:
        listed = await client.list_tools()
    assert [tool.name for tool in listed.tools] == [
        name for name, operation in OPERATIONS.items() if operation.listed
    ]
    for tool in listed.tools:
        assert tool.annotations is not None
        hints = tool.annotations.model_dump(exclude_none=True)
        assert hints == dict(OPERATIONS[tool.name].hints())
        assert tool.input_schema["additionalProperties"] is False
        assert tool.output_schema is not None


def test_the_listing_costs_at_most_six_thousand_tokens() -> None:
    told = [tool.model_dump(by_alias=True, exclude_none=True) for tool in listed_tools()]
    text = json.dumps({"tools": told}, separators=(",", ":"), ensure_ascii=False)
    assert len(text) / 4 <= MAX_TOKENS


def test_an_answer_that_several_tools_give_is_written_out_once() -> None:
    told = {tool.name: tool.output_schema for tool in listed_tools()}
    assert told["jobs_get"] == {"type": "object", "description": "As jobs_submit answers."}
    assert "loss" in (told["jobs_submit"] or {})["properties"]


def test_no_listed_schema_carries_a_generated_title() -> None:
    schemas = [(tool.input_schema, tool.output_schema) for tool in listed_tools()]
    assert '"title": "' not in json.dumps(schemas)


@pytest.mark.parametrize("era", ERAS)
async def test_every_operation_can_be_called_and_its_answer_fits_its_schema(
    house: House, era: Era
) -> None:
    async with agent(house, era) as client:
        told = {
            name: await client.call_tool(name, sample(operation.asks))
            for name, operation in OPERATIONS.items()
        }
    for name, operation in OPERATIONS.items():
        expected = parse(operation.answers, sample(operation.answers))
        assert told[name].structured_content == expected.model_dump(mode="json"), name
        schema = tool_output(operation.answers, {}, name)
        jsonschema.validate(told[name].structured_content, schema)
        assert schema["properties"].keys() == expected.model_dump().keys()


@pytest.mark.parametrize("era", ERAS)
async def test_the_text_of_an_answer_is_its_summary_and_the_next_calls(
    house: House, era: Era
) -> None:
    calls = [{"operation": "jobs_get", "arguments": {"job_id": "j-aaaaaaaa"}, "why": "see it"}]
    house.twin.answers["pools_list"] = {"summary": "One pool.", "next": calls}
    async with agent(house, era) as client:
        result = await client.call_tool("pools_list", {})
    assert text_of(result) == 'One pool.\nNext: jobs_get {"job_id": "j-aaaaaaaa"}: see it'


@pytest.mark.parametrize("era", ERAS)
async def test_a_refusal_is_text_and_a_problem_and_no_structured_content(
    house: House, era: Era
) -> None:
    error = SwarmError("plan-changed", "card f-a:0 has 1 GB", hint="plan again", facts={"n": 1})
    house.twin.failure = error
    async with agent(house, era) as client:
        result = await client.call_tool("jobs_submit", sample(JobsSubmit))
    assert result.is_error
    assert result.structured_content is None
    assert text_of(result) == "plan-changed: card f-a:0 has 1 GB. Next: plan again"
    assert result.meta is not None
    assert result.meta[PROBLEM_KEY] == error.problem()


@pytest.mark.parametrize("era", ERAS)
async def test_an_unknown_argument_names_the_nearest(house: House, era: Era) -> None:
    async with agent(house, era) as client:
        result = await client.call_tool("jobs_list", {"limt": 3})
    assert result.is_error
    assert text_of(result).startswith("invalid-input: /limt: there is no such argument")
    assert "'limit'" in text_of(result)


@pytest.mark.parametrize("era", ERAS)
async def test_an_unknown_tool_is_the_protocol_s_own_error(house: House, era: Era) -> None:
    async with agent(house, era) as client:
        with pytest.raises(MCPError) as refusal:
            await client.call_tool("jobs_dance", {})
    assert refusal.value.error.code == INVALID_PARAMS


@pytest.mark.parametrize("era", ERAS)
async def test_a_token_without_the_scope_is_refused_by_the_operation(
    house: House, era: Era
) -> None:
    async with agent(house, era, "swt_reader") as client:
        result = await client.call_tool("pools_create", {"pool": "ann/lab"})
    assert result.is_error
    assert text_of(result).startswith("forbidden:")


@pytest.mark.parametrize("era", ERAS)
async def test_progress_reaches_the_agent(house: House, era: Era) -> None:
    heard: list[tuple[float, float | None, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    async with agent(house, era) as client:
        await client.call_tool("jobs_wait", {"job_id": "j-aaaaaaaa"}, progress_callback=hear)
    assert heard == [(1, 2, "half")]


async def test_mcp_without_a_token_or_with_a_fellow_s_is_401(house: House) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    for secret in (None, "swt_unknown", CREDENTIAL):
        async with house.client(secret) as client:
            response = await client.post("/mcp", json=body)
        assert response.status_code == 401
        assert response.headers["www-authenticate"].startswith("Bearer")


async def test_a_legacy_session_opens_for_its_own_token_only(house: House) -> None:
    headers = {"accept": "application/json, text/event-stream"}
    hello: dict[str, Any] = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        },
    }
    async with house.client("swt_reader", **headers) as client:
        opened = await client.post("/mcp", json=hello)
    session = {"mcp-session-id": opened.headers["mcp-session-id"]}
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
    async with house.client("swt_admin", **headers, **session) as client:
        stolen = await client.post("/mcp", json=ping)
    assert (opened.status_code, stolen.status_code) == (200, 404)


async def test_an_agent_that_calls_while_the_leader_closes_is_told_so(house: House) -> None:
    async with agent(house, "legacy") as client:
        await client.list_tools()  # the door is built
    house.doors.closing.set()
    async with house.client("swt_admin") as late:
        await until(lambda: "mcp" not in {task.get_name() for task in asyncio.all_tasks()})
        response = await late.post("/mcp", json={})
    assert (response.status_code, response.json()["code"]) == (503, "unavailable")
