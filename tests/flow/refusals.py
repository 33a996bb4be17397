"""Asks for what is refused, through every face, and looks whether anything has changed.

One call of `World.refused` compares code, words, status, exit code and the leader's whole memory.
"""

import asyncio
import contextlib
import hashlib
import io
import json
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from agents.cli.main import run as swarm
from control.clock import SystemClock
from control.leader import Leader
from control.settings import Settings
from mcp_server.desk import doors_for
from mcp_server.tools import PROBLEM_KEY
from tests.flow.open_leader import (
    GB,
    OTHER,
    POOL,
    TEXT,
    OpenLeader,
    heartbeat,
    join_fellow,
    write_tiny_model,
)
from tests.unit.mcp_server.twin import listener, open_doors
from transport.api.catalog import OPERATIONS
from transport.api.operation import Operation
from transport.errors import CODES

ROOT = Path(__file__).resolve().parents[2]
ERAS = {"mcp legacy": "legacy", "mcp modern": "2026-07-28"}
FACES = (*ERAS, "rest", "cli")
MAX_SENTENCE = 600
# Token files can be made again from the data at any time: they are a cache, and no list shows them.
CACHES = ("token_files",)
FLEETING = ("last_used_at",)


class LateClock(SystemClock):
    """The machine's clock, put forward by hand; nobody's silence grows by that."""

    ahead_s = 0.0

    def now(self) -> float:
        """Unix seconds."""
        return super().now() + self.ahead_s


@dataclass(frozen=True)
class Told:
    """A refusal as one face gave it."""

    problem: dict[str, Any]
    status: int | None = None
    kind: str = ""
    """Content type of REST."""
    text: str = ""
    """What a reader sees: MCP's text, stderr of the command line."""
    exit_code: int | None = None


@dataclass
class World(OpenLeader):
    """A leader with what refusals need, and connections of every face."""

    clock: LateClock = field(default_factory=LateClock)
    tools: dict[str, Client] = field(default_factory=dict)
    reader: str = ""
    """A token that may only look."""
    revoked: str = ""
    elsewhere: str = ""
    """A token for the other pool only."""

    async def by_mcp(self, face: str, operation: Operation, ask: Mapping[str, Any]) -> Told:
        """Call the tool of one protocol era."""
        result = await self.tools[face].call_tool(operation.name, dict(ask))
        assert result.is_error, result.structured_content
        assert result.structured_content is None
        (said,) = result.content
        return Told((result.meta or {})[PROBLEM_KEY], text=getattr(said, "text", ""))

    async def by_rest(
        self, operation: Operation, ask: Mapping[str, Any], token: str | None = None
    ) -> Told:
        """Call the declared route."""
        inside = {k: v for k, v in ask.items() if f"{{{k}}}" in operation.path}
        rest = {k: v for k, v in ask.items() if k not in inside}
        path = "/api/v1" + operation.path.format(**inside)
        async with self.http(token) as client:
            if operation.method == "POST":
                answer = await client.post(path, json=rest)
            else:
                answer = await client.request(operation.method, path, params=rest)
        return rest_told(answer)

    async def by_cli(self, operation: Operation, ask: Mapping[str, Any]) -> Told:
        """Call the command in its own words."""
        return await self.swarm(*cli_words(self.folder, operation, ask))

    async def by_cli_file(self, name: str, ask: Mapping[str, Any]) -> Told:
        """The same by the operation's name."""
        return await self.by_cli(OPERATIONS[name], ask)

    async def swarm(self, *words: str) -> Told:
        """`swarm WORDS`, as people type it and with --json: both say the same."""
        code, out, plain = await run_swarm(*words)
        assert out == "", out
        again, told, err = await run_swarm(*words, "--json")
        problem = json.loads(told)
        assert code == again
        assert err == f"error: {problem['detail']} ({problem['code']})\n"
        first, *more = plain.splitlines()
        assert first == err.rstrip("\n")
        assert more[-1:] == ([f"  next: {problem['hint']}"] if problem["hint"] else [])
        return Told(problem, text=plain, exit_code=code)

    async def refused(
        self, name: str, ask: Mapping[str, Any], code: str, *words: str, but: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """Ask on every face (but some): one refusal everywhere, nothing changed; the problem.

        Args:
            words: what the sentence or its hint must hold.
        """
        operation = OPERATIONS[name]
        before = everything(self.folder / "data")
        told: dict[str, Told] = {}
        for face in (face for face in FACES if face not in but):
            if face in ERAS:
                told[face] = await self.by_mcp(face, operation, ask)
            elif face == "rest":
                told[face] = await self.by_rest(operation, ask)
            else:
                told[face] = await self.by_cli(operation, ask)
        problems = {face: one.problem for face, one in told.items()}
        first = next(iter(problems.values()))
        assert problems == dict.fromkeys(problems, first)
        for one in told.values():
            check(one, code, words)
        assert str(self.folder / "data") not in json.dumps(first)  # the leader's folders are its own
        assert everything(self.folder / "data") == before
        return first


def check(told: Told, code: str, words: tuple[str, ...] = ()) -> None:
    """One clear sentence with what to do, and the marks of its face."""
    problem = told.problem
    assert problem["code"] == code, problem
    sentence, hint = str(problem["detail"]), str(problem["hint"])
    assert "\n" not in sentence + hint, problem
    assert 0 < len(sentence) <= MAX_SENTENCE, problem
    assert hint, problem
    assert not sentence.endswith("."), problem
    both = f"{sentence}. {hint}"
    assert not [odd for odd in ("Traceback", "<class", "pydantic", "errno") if odd in both], both
    assert [word for word in words if word not in both] == [], both
    status, exit_code = CODES[code]
    assert told.status in (None, status)
    assert told.exit_code in (None, exit_code)
    if told.status is not None:
        assert told.kind == "application/problem+json"
    elif told.exit_code is None:
        assert told.text == f"{code}: {sentence}. Next: {hint}"


def rest_told(answer: httpx2.Response) -> Told:
    """A REST answer, which must be a problem document."""
    assert answer.status_code >= 400, answer.text
    problem = answer.json()
    assert problem["status"] == answer.status_code
    return Told(problem, answer.status_code, answer.headers["content-type"])


def cli_words(folder: Path, operation: Operation, ask: Mapping[str, Any]) -> list[str]:
    """The words of a command; what is a file there is written first."""
    words, flags = list(operation.words), []
    ask = dict(ask)
    if operation.name == "buckets_add":
        file = folder / ("rows.txt" if str(ask["name"]).endswith(".txt") else "rows.jsonl")
        file.write_text(str(ask.pop("content")), "utf-8", "surrogatepass")
        words += [str(ask.pop("bucket")), str(file)]
    for name, value in ask.items():
        flag = f"--{name.replace('_', '-')}"
        if name in operation.positional:
            words.append(str(value))
        elif value is True:
            flags.append(flag)
        elif isinstance(value, dict):
            file = folder / f"{operation.name}-{name}.json"
            file.write_text(json.dumps(value), "utf-8")
            flags += [flag, str(file)]
        else:
            flags += [flag, str(value)]
    return [*words, *flags]


async def run_swarm(*words: str) -> tuple[int, str, str]:
    """`swarm WORDS` in a thread of this process: exit code, stdout, stderr."""
    out, err = io.StringIO(), io.StringIO()

    def call() -> int:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            return swarm(list(words))

    code = await asyncio.to_thread(call)
    return code, out.getvalue(), err.getvalue()


def everything(data: Path) -> dict[str, Any]:
    """All rows and all files of a leader; works beside a leader that runs."""
    with tempfile.TemporaryDirectory() as spare:
        for file in data.glob("leader.db*"):
            shutil.copy(file, spare)
        with contextlib.closing(sqlite3.connect(Path(spare) / "leader.db")) as copy:
            copy.row_factory = sqlite3.Row
            rows = copy.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
            tables = {row["name"]: _rows(copy, row["name"]) for row in rows}
    held = {name: rows for name, rows in tables.items() if name not in CACHES}
    return {"rows": held, "files": dict(_files(data))}


def _rows(copy: sqlite3.Connection, table: str) -> list[dict[str, Any]]:
    found = copy.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608 - its own table
    return [{k: row[k] for k in row.keys() if k not in FLEETING} for row in found]  # noqa: SIM118


def _files(data: Path) -> list[tuple[str, str]]:
    found = [path for path in sorted(data.rglob("*")) if path.is_file()]
    return [
        (str(path.relative_to(data)), hashlib.sha256(path.read_bytes()).hexdigest())
        for path in found
        if not path.name.startswith("leader.")
        and not (path.parent.name == "tokens" and path.suffix == ".safetensors")
    ]


@asynccontextmanager
async def open_world(folder: Path, **settings: Any) -> AsyncIterator[World]:
    """A leader in this process behind real doors, furnished, with clients of both MCP eras."""
    where, clock = listener(), LateClock()
    told = Settings(
        data=folder / "data", port=where.getsockname()[1], offline_after_s=600, **settings
    )
    leader = await Leader.open(told, clock)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(leader.close)
        doors = await doors_for(leader, told)
        leader.start()
        url, _ = await stack.enter_async_context(open_doors(doors, where))
        token = (told.data / "owner.token").read_text()
        world = World(leader, url, token, folder, clock=clock)
        await furnish(world)
        await _open_tools(world, stack)
        yield world


@asynccontextmanager
async def process_world(folder: Path, *words: str, **environment: str) -> AsyncIterator[World]:
    """The same with the leader as a process of its own, killed at the end."""
    data = folder / "data"
    with (folder / "log.jsonl").open("ab") as log:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "mcp_server.main", "--port", "0", "--data", str(data), *words,
            cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=log,
            env={
                **os.environ, "SWARM_CONFIG": str(folder / "none.toml"),
                "SWARM_OFFLINE_AFTER_S": "600", **environment,
            },
        )  # fmt: skip
    try:
        assert child.stdout is not None
        line = await asyncio.wait_for(child.stdout.readline(), 30)
        assert line, (folder / "log.jsonl").read_text()
        async with AsyncExitStack() as stack:
            token = (data / "owner.token").read_text()
            world = World(None, json.loads(line)["url"], token, folder)
            await furnish(world)
            await _open_tools(world, stack)
            yield world
        assert child.returncode is None, (folder / "log.jsonl").read_text()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def _open_tools(world: World, stack: AsyncExitStack) -> None:
    for face, era in ERAS.items():
        headers = {"authorization": f"Bearer {world.token}"}
        http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=60))
        transport = streamable_http_client(f"{world.url}/mcp", http_client=http)
        client = Client(transport, mode=era)  # type: ignore[arg-type]
        world.tools[face] = await stack.enter_async_context(client)


async def join_ready(world: World, pool: str, card_bytes: int = 4 * GB) -> str:
    """A machine that could train joins a pool: its fellow_id."""
    fellow_id, credential = await join_fellow(world, pool)
    beat = heartbeat(fellow_id)
    beat["machine"]["features"] = ["stage", "lora", "full"]
    beat["cards"][0] |= {"total_bytes": card_bytes, "free_bytes": card_bytes}
    async with world.http(credential) as client:
        answer = await client.post("/fellow/v1/heartbeat", json=beat)
    assert answer.status_code == 200, answer.text
    return fellow_id


async def furnish(world: World) -> None:
    """Two pools, one fellow, one model, some data, tokens of every sort."""
    write_tiny_model(world.folder / "tiny")
    await world.post("/pools", pool=POOL)
    await world.post("/pools", pool=OTHER)
    world.fellows["only"] = await join_ready(world, POOL)
    await world.post("/buckets", pool=POOL, bucket="words")
    await world.post("/buckets/words/files", pool=POOL, name="a.txt", content=TEXT)
    await world.add_model("tiny")
    world.reader = (await world.post("/tokens", name="reader", scope="read"))["secret"]
    world.elsewhere = (await world.post("/tokens", name="other", scope="admin", pools=[OTHER]))[
        "secret"
    ]
    gone = await world.post("/tokens", name="gone", scope="admin")
    world.revoked = gone["secret"]
    async with world.http() as client:
        ended = await client.delete(f"/api/v1/tokens/{gone['token_id']}")
    assert ended.status_code == 200, ended.text
