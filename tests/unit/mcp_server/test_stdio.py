"""The local stdio server: a real process that asks the doors over REST."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters

from mcp_server.stdio import access_token, main
from tests.unit.mcp_server.test_tools import ERAS, Era, text_of
from tests.unit.mcp_server.twin import House, sample
from transport.api.catalog import OPERATIONS
from transport.api.jobs import JobsPlan
from transport.errors import SwarmError


def command(house: House, root: Path, secret: str = "swt_admin") -> StdioServerParameters:
    """How an agent starts it."""
    environment = os.environ | {"SWARM_TOKEN": secret, "PYTHONPATH": str(root)}
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "mcp_server.stdio", "--leader", house.url],
        env=environment,
        cwd=str(root),
    )


@asynccontextmanager
async def local_agent(house: House, root: Path, era: Era) -> AsyncIterator[Client]:
    """An agent that talks to its own stdio server."""
    async with Client(command(house, root), mode=era) as client:
        yield client


@pytest.mark.parametrize("era", ERAS)
async def test_a_local_agent_reaches_every_operation(house: House, root: Path, era: Era) -> None:
    async with local_agent(house, root, era) as client:
        told = {
            name: await client.call_tool(name, sample(operation.asks))
            for name, operation in OPERATIONS.items()
        }
        typo = await client.call_tool("jobs_list", {"limt": 1})
        house.twin.failure = SwarmError("plan-changed", "it moved", hint="plan again")
        refused = await client.call_tool("jobs_plan", sample(JobsPlan))
    assert {name: result.is_error for name, result in told.items()} == dict.fromkeys(
        OPERATIONS, False
    )
    assert text_of(typo).startswith("invalid-input: /limt:")
    assert text_of(refused) == "plan-changed: it moved. Next: plan again"
    asked = {question.operation.name: question.arguments for question in house.twin.asked}
    assert asked["jobs_plan"]["config"] == sample(JobsPlan)["config"]


async def test_every_line_on_stdout_is_json_rpc(house: House, root: Path) -> None:
    parameters = command(house, root)
    process = await asyncio.create_subprocess_exec(
        parameters.command,
        *parameters.args,
        env=parameters.env,
        cwd=root,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    hello = {"protocolVersion": "2025-11-25", "capabilities": {},
             "clientInfo": {"name": "t", "version": "1"}}  # fmt: skip
    asked: list[dict[str, object]] = [
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list"},
        {"id": 3, "method": "tools/call", "params": {"name": "pools_list", "arguments": {}}},
        {"id": 4, "method": "no/such/method"},
    ]
    assert process.stdin is not None
    assert process.stdout is not None
    lines = [json.dumps({"jsonrpc": "2.0"} | one) for one in asked]
    process.stdin.write(("\n".join(lines) + "\nnot json\n").encode())
    got: list[dict[str, object]] = []
    async with asyncio.timeout(20):
        while {1, 2, 3, 4} - {one.get("id") for one in got}:
            got.append(json.loads(await process.stdout.readline()))
        process.stdin.close()
        rest = await process.stdout.read()
        await process.wait()
    got += [json.loads(line) for line in rest.splitlines()]
    assert {one["jsonrpc"] for one in got} == {"2.0"}


async def test_a_leader_that_is_away_is_said_in_one_sentence(house: House, root: Path) -> None:
    house.url = "http://127.0.0.1:9"
    async with local_agent(house, root, "legacy") as client:
        result = await client.call_tool("pools_list", {})
    assert result.is_error
    assert text_of(result).startswith("unreachable: no leader answers at http://127.0.0.1:9")


def test_the_token_comes_from_the_environment_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("swm_from_file\n")
    assert access_token({"SWARM_TOKEN": " swm_here "}, file) == "swm_here"
    assert access_token({}, file) == "swm_from_file"
    assert access_token({"SWARM_TOKEN_FILE": str(file)}, None) == "swm_from_file"
    with pytest.raises(SwarmError) as none:
        access_token({}, None)
    with pytest.raises(SwarmError) as missing:
        access_token({}, tmp_path / "nothing")
    assert (none.value.code, missing.value.code) == ("unauthenticated", "invalid-input")


def test_without_a_token_it_says_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_server.stdio.start_logging", lambda level: None)
    assert main([]) == 6
    assert "swarm tokens create" in capsys.readouterr().err
