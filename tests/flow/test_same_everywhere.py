"""Every operation through MCP (both eras), REST and the command line: one answer, one refusal."""

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from agents.cli.main import run as swarm
from mcp_server.tools import PROBLEM_KEY
from tests.flow.open_leader import JOB, POOL, OpenLeader, open_leader
from transport.api.catalog import OPERATIONS
from transport.api.operation import Change, Operation
from transport.errors import CODES

# The command line's own commands send whole files and folders: more than one call of the operation.
# tests/unit/agents has them.
CLI_APART = {"buckets_add", "models_add"}
# When it was last used: asking changes it.
FLEETING = {"last_used_at"}


@pytest.fixture(scope="module")
async def world(
    tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> AsyncIterator[OpenLeader]:
    """One leader for the whole file: the operations meet it in their declared order."""
    async with open_leader(tmp_path_factory.mktemp("leader")) as leader:
        yield leader


@dataclass(frozen=True)
class Told:
    """What a face answered: an answer, or a refusal."""

    answer: dict[str, Any] | None
    problem: dict[str, Any] | None
    exit_code: int | None = None


Face = Callable[[OpenLeader, Operation, dict[str, Any]], Awaitable[Told]]


async def by_mcp(
    world: OpenLeader,
    operation: Operation,
    ask: dict[str, Any],
    era: Literal["legacy", "2026-07-28"],
) -> Told:
    """Call the tool over streamable HTTP."""
    headers = {"authorization": f"Bearer {world.token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        transport = streamable_http_client(f"{world.url}/mcp", http_client=http)
        async with Client(transport, mode=era) as client:
            result = await client.call_tool(operation.name, ask)
    if result.is_error:
        assert result.structured_content is None
        return Told(None, (result.meta or {})[PROBLEM_KEY])
    return Told(result.structured_content, None)


async def by_mcp_legacy(world: OpenLeader, operation: Operation, ask: dict[str, Any]) -> Told:
    """The 2025 era."""
    return await by_mcp(world, operation, ask, "legacy")


async def by_mcp_modern(world: OpenLeader, operation: Operation, ask: dict[str, Any]) -> Told:
    """The 2026 era."""
    return await by_mcp(world, operation, ask, "2026-07-28")


async def by_rest(world: OpenLeader, operation: Operation, ask: dict[str, Any]) -> Told:
    """The declared route, with arguments where it wants them."""
    inside = {k: v for k, v in ask.items() if f"{{{k}}}" in operation.path}
    rest = {k: v for k, v in ask.items() if k not in inside}
    path = "/api/v1" + operation.path.format(**inside)
    async with world.http() as client:
        if operation.method == "POST":
            response = await client.post(path, json=rest)
        else:
            response = await client.request(operation.method, path, params=rest)
    return _told(response.json())


async def by_cli(world: OpenLeader, operation: Operation, ask: dict[str, Any]) -> Told:
    """The command, in its own words, with --json."""
    words = [*operation.words, "--json"]
    flags = []
    for name, value in ask.items():
        if name in operation.positional:
            words.append(str(value))
        elif value is True:
            flags.append(f"--{name.replace('_', '-')}")
        elif isinstance(value, dict):
            file = world.folder / f"{operation.name}.json"
            file.write_text(json.dumps(value))
            flags += [f"--{name.replace('_', '-')}", str(file)]
        else:
            flags += [f"--{name.replace('_', '-')}", str(value)]
    heard = io.StringIO()

    def call() -> int:
        with contextlib.redirect_stdout(heard), contextlib.redirect_stderr(io.StringIO()):
            return swarm([*words, *flags])

    exit_code = await asyncio.to_thread(call)
    return _told(json.loads(heard.getvalue()), exit_code)


def _told(told: dict[str, Any], exit_code: int | None = None) -> Told:
    is_problem = "hint" in told and "status" in told
    return Told(None, told, exit_code) if is_problem else Told(told, None, exit_code)


FACES: dict[str, Face] = {
    "mcp legacy": by_mcp_legacy,
    "mcp modern": by_mcp_modern,
    "rest": by_rest,
    "cli": by_cli,
}


def good(world: OpenLeader, name: str) -> dict[str, Any]:
    """Arguments that the furnished leader answers, for one operation."""
    job = {"job_id": world.job_id}
    told: dict[str, dict[str, Any]] = {
        "cluster_status": {"pool": POOL},
        "pools_create": {"pool": "bob/new"},
        "pools_list": {},
        "invites_create": {"pool": POOL},
        "tokens_create": {"name": "agent", "scope": "train"},
        "tokens_list": {},
        "tokens_revoke": {"token_id": world.token_id},
        "fellows_list": {"pool": POOL, "limit": 5},
        "fellows_get": {"fellow_id": world.fellows["job"]},
        "fellows_measure": {"fellow_id": world.fellows["measure"]},
        "fellows_remove": {"fellow_id": world.fellows["remove"]},
        "jobs_plan": {"pool": POOL, "config": JOB},
        "jobs_submit": {"pool": POOL, "config": JOB, "unpinned": True},
        "jobs_list": {"pool": POOL, "limit": 3},
        "jobs_get": job,
        "jobs_wait": job | {"timeout_s": 0},
        "jobs_logs": job | {"level": "warning"},
        "jobs_records": job,
        "jobs_cancel": job,
        "jobs_snapshots": job,
        "jobs_resume": job,
        "buckets_create": {"pool": POOL, "bucket": "fresh"},
        "buckets_add": {"pool": POOL, "bucket": "words", "name": "b.txt", "content": "the word"},
        "buckets_list": {"pool": POOL},
        "buckets_preview": {"pool": POOL, "bucket": "words", "model": "local:tiny", "limit": 2},
        "buckets_remove": {"pool": POOL, "bucket": "fresh"},
        "models_list": {"pool": POOL},
        "models_plan": {"pool": POOL, "model": "local:tiny", "context_tokens": 16},
        "models_add": {"name": "tiny", "finish": True},
        "models_export": job,
        "models_merge": job,
        "jobs_verify": job,
    }
    ask = told[name]
    if issubclass(OPERATIONS[name].asks, Change):
        ask["request_id"] = f"same-{name}"
    return ask


def bad(world: OpenLeader, name: str) -> dict[str, Any]:
    """The same with one thing wrong: something that is not there, or a value out of range."""
    ask = good(world, name)
    if name == "pools_create":
        return {"pool": "No Pool"}
    wrong = {
        "job_id": "j-zzzzzzzz",
        "fellow_id": "f-zzzzzzzz",
        "token_id": "t-zzzzzzzz",
        "pool": "no/where",
        "bucket": "No Bucket",
        "name": "no name " + "x" * 90,
    }
    key = next((key for key in wrong if key in ask), None)
    if key is None:
        return ask
    return (
        ask | {key: wrong[key], "request_id": f"bad-{name}"}
        if "request_id" in ask
        else (ask | {key: wrong[key]})
    )


async def everywhere(world: OpenLeader, name: str, ask: dict[str, Any]) -> dict[str, Told]:
    """What each face answers."""
    operation = OPERATIONS[name]
    return {
        face: await call(world, operation, ask)
        for face, call in FACES.items()
        if not (face == "cli" and name in CLI_APART)
    }


def steady(value: Any) -> Any:
    """An answer without what asking itself changes."""
    if isinstance(value, dict):
        return {k: steady(v) for k, v in value.items() if k not in FLEETING}
    return [steady(one) for one in value] if isinstance(value, list) else value


@pytest.fixture(autouse=True)
def _told_where(world: OpenLeader, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SWARM_LEADER", world.url)
    monkeypatch.setenv("SWARM_TOKEN", world.token)
    monkeypatch.setenv("SWARM_CONFIG", str(tmp_path / "no.toml"))


@pytest.mark.parametrize("name", OPERATIONS)
async def test_every_face_gives_the_same_answer(world: OpenLeader, name: str) -> None:
    told = await everywhere(world, name, good(world, name))
    first = told["mcp legacy"]
    # The job was cancelled before anything was saved: the same refusal is the same answer.
    if name in ("models_export", "models_merge", "jobs_resume", "jobs_verify"):
        assert {one.problem and one.problem["code"] for one in told.values()} == {"conflict"}
    else:
        assert first.answer is not None, first.problem
    assert {face: steady(one.answer or one.problem) for face, one in told.items()} == dict.fromkeys(
        told, steady(first.answer or first.problem)
    )


@pytest.mark.parametrize(
    "name", [name for name in OPERATIONS if name not in ("pools_list", "tokens_list")]
)
async def test_every_face_gives_the_same_refusal(world: OpenLeader, name: str) -> None:
    told = await everywhere(world, name, bad(world, name))
    first = told["mcp legacy"].problem
    assert first is not None, told["mcp legacy"].answer
    assert {face: one.problem for face, one in told.items()} == dict.fromkeys(told, first)
    if "cli" in told:
        assert told["cli"].exit_code == CODES[first["code"]][1]


def test_every_operation_has_arguments_here(world: OpenLeader) -> None:
    assert [good(world, name) is not None for name in OPERATIONS] == [True] * len(OPERATIONS)
