"""Asks for what is refused, through every face, and looks whether anything has changed.

One call of `World.refused` compares code, words, status, exit code and the leader's whole memory.
"""

import asyncio
import contextlib
import hashlib
import io
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx2
from mcp import Client

from agents.cli.hints import in_commands
from agents.cli.main import run as swarm
from control.clock import SystemClock
from mcp_server.tools import PROBLEM_KEY
from tests.flow.open_leader import (
    OpenLeader,
)
from transport.api.catalog import OPERATIONS
from transport.api.operation import Operation
from transport.errors import CODES

ROOT = Path(__file__).resolve().parents[2]
ERAS: dict[str, Literal["legacy", "2026-07-28"]] = {
    "mcp legacy": "legacy",
    "mcp modern": "2026-07-28",
}
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
    spoken: set[str] = field(default_factory=set)
    """Codes that the command line has told in plain words."""
    seen_at: Path | None = None
    """Where the data folder is seen from outside, when the leader has mounts of its own."""

    def http(self, token: str | None = None, **headers: str) -> httpx2.AsyncClient:
        """A client with a token; without the 20 ms that root certificates take."""
        told = {"authorization": f"Bearer {token or self.token}"} | headers
        return httpx2.AsyncClient(base_url=self.url, headers=told, timeout=30, verify=False)

    @property
    def data(self) -> Path:
        """The leader's data folder, as this process reaches it."""
        return self.seen_at or self.folder / "data"

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
        """`swarm WORDS --json`; the first time that a code comes, as people type it too."""
        code, out, err = await run_swarm(*words, "--json")
        problem = json.loads(out)
        assert err == f"error: {problem['detail']} ({problem['code']})\n"
        if problem["code"] not in self.spoken:
            self.spoken.add(problem["code"])
            again, out, plain = await run_swarm(*words)
            assert (again, out) == (code, "")
            assert plain == f"{err}  next: {in_commands(problem['hint'])}\n"
        return Told(problem, text=err, exit_code=code)

    async def refused(
        self, name: str, ask: Mapping[str, Any], code: str, *words: str, but: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """Ask on every face (but some): one refusal everywhere, nothing changed; the problem.

        Args:
            words: what the sentence or its hint must hold.
        """
        operation = OPERATIONS[name]
        before = everything(self.data)
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
        assert str(self.folder) not in json.dumps(first)  # the leader's folders are its own
        assert everything(self.data) == before
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


def put(values: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The values with one of them changed."""
    changed: dict[str, Any] = json.loads(json.dumps(values))
    *folders, last = path.strip("/").split("/")
    place = changed
    for folder in folders:
        place = place.setdefault(folder, {})
    place[last] = value
    return changed


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
    found = copy.execute(f"SELECT * FROM {table}").fetchall()
    return [{k: row[k] for k in row.keys() if k not in FLEETING} for row in found]  # noqa: SIM118


def _files(data: Path) -> list[tuple[str, str]]:
    found = [path for path in sorted(data.rglob("*")) if path.is_file()]
    return [
        (str(path.relative_to(data)), hashlib.sha256(path.read_bytes()).hexdigest())
        for path in found
        if not path.name.startswith("leader.")
        and not (path.parent.name == "tokens" and path.suffix == ".safetensors")
    ]
