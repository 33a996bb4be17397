"""A leader in memory behind the port of the doors, and a real HTTP server around the doors."""

import asyncio
import hashlib
import re
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
from anyio.lowlevel import checkpoint
from pydantic import BaseModel

from control.jobs.exports import Piece
from control.jobs.results import StageKey
from control.snapshots.keeper import SnapshotKey
from control.store.files import StoredFile
from mcp_server.app import Doors, build_app
from mcp_server.office import Caller, Changed, Promise, Question, ShownModel
from mcp_server.sessions import Sessions
from transport.api.operation import SCOPES, Answer
from transport.beats import ShortBeat, lengthened
from transport.cards import Heartbeat
from transport.errors import SwarmError, not_found
from transport.orders import DesiredState
from transport.reports import JoinAsk, Joined, ReportBatch, ReportsTaken
from transport.schema import parse

SECRETS = {
    "swt_reader": Caller("t-reader22", "reader", "read"),
    "swt_trainer": Caller("t-trainer2", "trainer", "train"),
    "swt_admin": Caller("t-admin222", "admin", "admin"),
}
CREDENTIAL = "swn_" + "a" * 40
FELLOW = "f-aaaaaaaa"
COPY = "c" * 16
"""The life of a daemon that runs beside the right one."""
INVITE = "swi_" + "b" * 40
IDLE = DesiredState(protocol=1, revision=3, stages=[], measure=None, reports_committed=0)

# One text that fits each pattern in transport.ids and transport.api.
WORDS = (
    "f-aaaaaaaa", "f-aaaaaaaa:0", "j-aaaaaaaa", "i-aaaaaaaa", "t-aaaaaaaa", "0" * 16, "0" * 64,
    "ann/lab", "local:tiny", "rows.jsonl", "text",
)  # fmt: skip


def sample(model: type[BaseModel], **given: Any) -> dict[str, Any]:
    """The smallest JSON object that is a valid `model`, with some fields given."""
    schema = model.model_json_schema()
    whole = _sample(schema, schema.get("$defs", {}))
    assert isinstance(whole, dict)
    return whole | given


def _sample(node: Mapping[str, Any], defs: Mapping[str, Any]) -> Any:
    if "$ref" in node:
        return _sample(defs[node["$ref"].rpartition("/")[2]], defs)
    if "const" in node or "enum" in node:
        return node.get("const", node.get("enum", [None])[0])
    if "anyOf" in node:
        return _sample(node["anyOf"][0], defs)
    match node.get("type"):
        case "string":
            return _word(node)
        case "integer" | "number":
            return max(node.get("minimum", 1), node.get("exclusiveMinimum", 0) and 1)
        case "boolean":
            return False
        case "array":
            return [_sample(node["items"], defs)] * node.get("minItems", 0)
        case "object":
            required = node.get("required", ())
            return {name: _sample(node["properties"][name], defs) for name in required}
    return None


def _word(node: Mapping[str, Any]) -> str:
    pattern = node.get("pattern")
    word = next((w for w in WORDS if pattern is None or re.search(pattern, w)), None)
    assert word is not None, pattern
    return word.ljust(node.get("minLength", 0), "x")


@dataclass
class Twin:
    """Answers every operation with its smallest answer, after the same checks as the leader."""

    asked: list[Question] = field(default_factory=list)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Fields to answer with, by operation."""
    callers: dict[str, Caller] = field(default_factory=lambda: dict(SECRETS))
    failure: Exception | None = None
    """Raised by the next operation."""
    hold: asyncio.Event | None = None
    """Operations wait for it."""
    uploads: list[bytes] = field(default_factory=list)
    adapters: dict[StageKey, bytes] = field(default_factory=dict)
    pieces: dict[str, bytes] = field(default_factory=dict)
    exported: dict[str, tuple[int, str]] = field(default_factory=dict)
    snapshots: dict[SnapshotKey, bytes] = field(default_factory=dict)
    files: dict[str, StoredFile] = field(default_factory=dict)
    models: dict[str, ShownModel] = field(default_factory=dict)
    beats: list[Heartbeat] = field(default_factory=list)
    batches: list[ReportBatch] = field(default_factory=list)
    desired: DesiredState = IDLE
    order: asyncio.Event = field(default_factory=asyncio.Event)
    held: int = 0
    """Requests for orders that are open."""
    listeners: set[asyncio.Queue[Changed]] = field(default_factory=set)

    async def run(self, question: Question) -> Answer:
        operation = question.operation
        if SCOPES.index(question.caller.scope) < SCOPES.index(operation.scope):
            raise SwarmError("forbidden", f"this needs the scope {operation.scope}")
        parse(operation.asks, question.arguments)
        self.asked.append(question)
        if self.hold is not None:
            await self.hold.wait()
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        if question.progress is not None:
            await question.progress(1, 2, "half")
        if question.upload is not None:
            self.uploads.append(b"".join([chunk async for chunk in question.upload]))
        given = self.answers.get(operation.name, {})
        return parse(operation.answers, sample(operation.answers, **given))

    async def caller(self, secret: str) -> Caller | None:
        return self.callers.get(secret)

    async def caller_by_id(self, token_id: str) -> Caller | None:
        return next((c for c in self.callers.values() if c.token_id == token_id), None)

    async def fellow(self, credential: str) -> str | None:
        return FELLOW if credential == CREDENTIAL else None

    async def admit(self, fellow_id: str, life: str) -> None:
        if life == COPY:
            raise SwarmError("conflict", "a copy", facts={"reason": "two-daemons"})

    async def join(self, ask: JoinAsk) -> Joined:
        if ask.invite != INVITE:
            raise not_found("invite", "this one", hint="ask for a new one")
        return Joined(fellow_id=FELLOW, pool="ann/lab", heartbeat_s=5.0)

    async def heartbeat(self, fellow_id: str, beat: Heartbeat) -> DesiredState:
        self.beats.append(beat)
        return self.desired

    async def short_beat(self, fellow_id: str, beat: ShortBeat) -> DesiredState:
        whole = lengthened(beat, self.beats[-1] if self.beats else None)
        if whole is None:
            raise SwarmError("conflict", "nothing was told before", hint="send a whole heartbeat")
        return await self.heartbeat(fellow_id, whole)

    async def wait_orders(self, fellow_id: str, since: int, timeout_s: float) -> DesiredState:
        if since >= self.desired.revision:
            self.held += 1
            try:
                await asyncio.wait_for(self.order.wait(), timeout_s)
            finally:
                self.held -= 1
        return self.desired

    async def take_reports(self, fellow_id: str, batch: ReportBatch) -> ReportsTaken:
        self.batches.append(batch)
        return ReportsTaken(committed=max(one.sequence for one in batch.reports))

    async def take_adapter(
        self, key: StageKey, chunks: AsyncIterator[bytes], promised_sha256: str
    ) -> None:
        if key.attempt != 1:
            raise SwarmError("conflict", f"attempt {key.attempt} is not the running one")
        content = b"".join([chunk async for chunk in chunks])
        if hashlib.sha256(content).hexdigest() != promised_sha256:
            raise SwarmError("invalid-input", "what arrived is not what was promised")
        self.adapters[key] = content

    async def take_snapshot(
        self, key: SnapshotKey, chunks: AsyncIterator[bytes], promised: Promise
    ) -> None:
        content = b"".join([chunk async for chunk in chunks])
        if hashlib.sha256(content).hexdigest() != promised.sha256:
            raise SwarmError("invalid-input", "what arrived is not what was promised")
        self.snapshots[key] = content

    async def snapshot_for(self, fellow_id: str, key: SnapshotKey) -> StoredFile | None:
        return self.files.get(f"snapshot-{key.step}-{key.stage}")

    async def snapshot_file(self, job_id: str, step: int, stage: int) -> StoredFile | None:
        return self.files.get(f"snapshot-{step}-{stage}")

    async def token_file(self, fellow_id: str, digest: str) -> StoredFile | None:
        return self.files.get(digest)

    async def model(self, fellow_id: str, name: str) -> ShownModel | None:
        return self.models.get(name)

    async def adapter_file(self, job_id: str, name: str) -> StoredFile | None:
        return self.files.get(name)

    async def merged_file(self, job_id: str, name: str) -> StoredFile | None:
        return self.files.get(f"merged-{name}")

    async def export_trained(self, fellow_id: str, export_id: str) -> StoredFile:
        return self.files["trained"]

    async def take_export_piece(
        self, fellow_id: str, export_id: str, piece: Piece, chunks: AsyncIterator[bytes]
    ) -> None:
        content = b"".join([chunk async for chunk in chunks])
        have = self.pieces.setdefault(piece.name, b"")
        if len(have) != piece.start:
            facts = {"have_bytes": len(have)}
            raise SwarmError("conflict", "go on from there", facts=facts)
        self.pieces[piece.name] = have + content

    async def finish_export(
        self,
        fellow_id: str,
        export_id: str,
        files: Mapping[str, tuple[int, str]],
        licence: str | None,
    ) -> None:
        self.exported = dict(files)

    async def records_file(self, job_id: str) -> Path | None:
        stored = self.files.get("records.jsonl")
        return stored.path if stored else None

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[AsyncIterator[Changed]]:
        queue: asyncio.Queue[Changed] = asyncio.Queue()
        self.listeners.add(queue)

        async def told() -> AsyncIterator[Changed]:
            while True:
                yield await queue.get()

        try:
            yield told()
        finally:
            self.listeners.discard(queue)

    def tell(self, change: Changed) -> None:
        """Let every live stream know."""
        for queue in self.listeners:
            queue.put_nowait(change)


def stored(path: Path, content: bytes) -> StoredFile:
    """A file on disk, as the leader keeps it."""
    path.write_bytes(content)
    return StoredFile(path, len(content), hashlib.sha256(content).hexdigest())


@dataclass
class House:
    """The doors, open on a real loopback port."""

    twin: Twin
    doors: Doors
    url: str
    server: uvicorn.Server

    def client(self, secret: str | None = None, **headers: str) -> httpx2.AsyncClient:
        """A client that sends this bearer secret."""
        told = {"authorization": f"Bearer {secret}"} if secret else {}
        return httpx2.AsyncClient(base_url=self.url, headers=told | headers, timeout=10)


@asynccontextmanager
async def open_house(folder: Path, console: Path | None = None) -> AsyncIterator[House]:
    """Start the doors around a twin; stop them at the end."""
    twin = Twin()
    doors = Doors(twin, Sessions(b"k" * 32), console=console or folder / "console")
    async with open_doors(doors, listener()) as (url, server):
        yield House(twin, doors, url, server)


def listener() -> socket.socket:
    """A socket on a free loopback port."""
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    return made


@asynccontextmanager
async def open_doors(
    doors: Doors, where: socket.socket
) -> AsyncIterator[tuple[str, uvicorn.Server]]:
    """Serve the doors over real HTTP: (url, server)."""
    config = uvicorn.Config(build_app(doors), log_config=None, timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve([where]))
    try:
        await until(lambda: server.started or serving.done())
        yield f"http://127.0.0.1:{where.getsockname()[1]}", server
    finally:
        doors.closing.set()
        server.should_exit = True
        await asyncio.wait_for(serving, 10)


async def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Let the event loop run until something holds."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await checkpoint()
