"""A leader in memory behind the real doors: it answers what the console asks, and can change."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from mcp_server.app import Doors, build_app
from mcp_server.office import Caller, Changed, Question
from mcp_server.sessions import Sessions
from tests.browser.sample_pool import NOW, POOL, cluster_of
from transport.api.fellows import FellowRow, FellowsListed
from transport.api.jobs import (
    JobRow,
    JobsListed,
    JobsLogged,
    JobsRecorded,
    JobView,
    LogRow,
    Resumed,
    StepRow,
)
from transport.api.operation import Answer
from transport.api.pools import PoolRow, PoolsListed
from transport.errors import SwarmError, not_found
from transport.schema import parse

TOKEN_ID = "t-trainer2"
LOOPBACK = "127.0.0.1"


@dataclass
class PoolTwin:
    """The port of the doors, as far as the console needs it. Change it by do(), from any thread."""

    fellows: list[FellowRow] = field(default_factory=list)
    jobs: dict[str, JobView] = field(default_factory=dict)
    steps: dict[str, list[StepRow]] = field(default_factory=dict)
    lines: dict[str, list[LogRow]] = field(default_factory=dict)
    pools: tuple[str, ...] = (POOL,)
    scope: Any = "train"
    is_signed_in: bool = True
    cancelled: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    failing: set[str] = field(default_factory=set)
    """Operations that answer with an internal error."""
    watchers: list[asyncio.Queue[Changed]] = field(default_factory=list)

    async def caller_by_id(self, token_id: str) -> Caller | None:
        is_known = self.is_signed_in and token_id == TOKEN_ID
        return Caller(TOKEN_ID, "trainer", self.scope) if is_known else None

    async def caller(self, secret: str) -> Caller | None:
        return None

    async def fellow(self, credential: str) -> str | None:
        return None

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[AsyncIterator[Changed]]:
        queue: asyncio.Queue[Changed] = asyncio.Queue()
        self.watchers.append(queue)

        async def told() -> AsyncIterator[Changed]:
            while True:
                yield await queue.get()

        try:
            yield told()
        finally:
            self.watchers.remove(queue)

    def ring(self, *topics: str) -> None:
        """Say that something moved; on the leader's own loop."""
        for queue in self.watchers:
            for topic in topics:
                for job_id in self.jobs or [None]:
                    queue.put_nowait(Changed(topic, POOL, job_id))

    async def run(self, question: Question) -> Answer:
        name = question.operation.name
        if name in self.failing:
            raise SwarmError("internal", "the leader could not read it", hint="look at its log")
        ask: Any = parse(question.operation.asks, question.arguments)
        answer: Answer = getattr(self, name)(ask)
        return answer

    def _pool(self, pool: str | None) -> None:
        if pool is not None and pool not in self.pools:
            raise not_found("pool", pool, hint="pools_list names the pools that you may see")

    def cluster_status(self, ask: Any) -> Answer:
        self._pool(ask.pool)
        return cluster_of(self.fellows, list(self.jobs.values()))

    def pools_list(self, ask: Any) -> Answer:
        rows = [
            PoolRow(pool=pool, fellows=len(self.fellows), online=0, jobs=0, created_at=NOW)
            for pool in self.pools
        ]
        return PoolsListed(summary="", pools=rows)

    def fellows_list(self, ask: Any) -> Answer:
        self._pool(ask.pool)
        return FellowsListed(summary="", fellows=self.fellows, omitted=0)

    def jobs_list(self, ask: Any) -> Answer:
        self._pool(ask.pool)
        rows = [row_of(job) for job in self.jobs.values()]
        return JobsListed(summary="", jobs=rows, omitted=0, cursor=None)

    def jobs_get(self, ask: Any) -> Answer:
        if ask.job_id not in self.jobs:
            raise not_found("job", ask.job_id, hint="jobs_list names the jobs of a pool")
        return self.jobs[ask.job_id]

    def jobs_records(self, ask: Any) -> Answer:
        stage = len(self.jobs[ask.job_id].stages) - 1 if ask.stage is None else ask.stage
        rows = [
            row
            for row in self.steps.get(ask.job_id, [])
            if row.stage == stage and row.step >= ask.from_step
        ]
        cut = sorted(rows, key=lambda row: row.step)[: ask.limit]
        return JobsRecorded(summary="", job_id=ask.job_id, steps=cut, omitted=len(rows) - len(cut))

    def jobs_logs(self, ask: Any) -> Answer:
        lines = self.lines.get(ask.job_id, [])
        start = max(0, len(lines) - ask.limit) if ask.cursor is None else int(ask.cursor)
        end = min(len(lines), start + ask.limit)
        omitted = start if ask.cursor is None else len(lines) - end
        return JobsLogged(summary="", lines=lines[start:end], omitted=omitted, cursor=str(end))

    def jobs_resume(self, ask: Any) -> Answer:
        job = self.jobs[ask.job_id]
        self.resumed.append(ask.job_id)
        step = job.saved_step or 0
        lost = job.step - step
        resume = Resumed(attempt=2, step=step, lost_steps=lost, at=NOW, by="hand", why="")
        config = job.config.model_copy(update={"resume": resume})
        change = {"state": "recovering", "reason": "", "attempt": 2, "config": config}
        self.jobs[ask.job_id] = job.model_copy(update=change)
        self.ring("jobs")
        return self.jobs[ask.job_id]

    def jobs_cancel(self, ask: Any) -> Answer:
        if self.scope == "read":
            raise SwarmError(
                "forbidden", "stopping a run needs a token of scope train", hint="ask an admin"
            )
        self.cancelled.append(ask.job_id)
        change = {"state": "cancelled", "reason": "cancelled by trainer", "ended_at": NOW}
        self.jobs[ask.job_id] = self.jobs[ask.job_id].model_copy(update=change)
        self.ring("jobs")
        return self.jobs[ask.job_id]


def row_of(job: JobView) -> JobRow:
    """A run as the list tells it."""
    told = job.model_dump(include=set(JobRow.model_fields) - {"fellows"})
    return JobRow(**told, fellows=len(job.stages))


class AnnouncingServer(uvicorn.Server):
    """Says when it takes connections."""

    def __init__(self, config: uvicorn.Config, ready: threading.Event) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready.set()


class Leader:
    """The twin behind real doors on a real port, in a thread of its own; can go away and return."""

    def __init__(self) -> None:
        self.twin = PoolTwin()
        self.sessions = Sessions(b"k" * 32)
        with socket.socket() as probe:
            probe.bind((LOOPBACK, 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"http://{LOOPBACK}:{self.port}"

    def start(self) -> None:
        """Listen; returns when connections are taken."""
        office: Any = self.twin
        self.doors = Doors(office=office, sessions=self.sessions)
        config = uvicorn.Config(
            build_app(self.doors),
            host=LOOPBACK,
            port=self.port,
            log_level="critical",
            timeout_graceful_shutdown=1,
        )
        ready = threading.Event()
        self.server = AnnouncingServer(config, ready)
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()
        assert ready.wait(10), "the doors did not open within 10 s"

    def _serve(self) -> None:
        async def serve() -> None:
            self.loop = asyncio.get_running_loop()
            await self.server.serve()

        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(serve())

    def stop(self) -> None:
        """Close every stream and the port."""
        self.loop.call_soon_threadsafe(self.doors.closing.set)
        self.server.should_exit = True
        self.thread.join(10)
        assert not self.thread.is_alive(), "the doors did not close within 10 s"

    def tell(self, *topics: str, **changes: Any) -> None:
        """Change the twin and ring for it, on its own loop."""

        async def change() -> None:
            for name, value in changes.items():
                setattr(self.twin, name, value)
            self.twin.ring(*topics)

        asyncio.run_coroutine_threadsafe(change(), self.loop).result(5)

    def sign_in_code(self) -> str:
        """A code for /signin, good once."""
        return self.sessions.link_code(TOKEN_ID, time.time())
