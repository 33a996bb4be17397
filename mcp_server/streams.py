"""One live stream a browser tab: a snapshot first, then what changed, at most four times a second.

Level-triggered: a change only says where to look again, so a lost or late one costs nothing and a
tab that reconnects gets a fresh snapshot. Reads through the same operations as every other face.
"""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Annotated, Any

from pydantic import Field
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mcp_server.access import Reception
from mcp_server.calls import Calls
from mcp_server.office import Caller, Changed, Question
from mcp_server.problems import answered
from transport.api.catalog import OPERATIONS
from transport.errors import SwarmError
from transport.ids import JobId, PoolName
from transport.schema import Model, parse_strings

PING_S = 15
EVERY_S = 0.25
MAX_STREAMS = 128
LOG_LINES = 200
MAX_LOG_BLOCKS = 10
Row = dict[str, Any]


class EventsAsk(Model):
    """What a tab wants to see."""

    pool: PoolName | None = None
    job_id: JobId | None = None
    """Adds this job in full, and its log lines."""
    stage: Annotated[int, Field(ge=0, le=255)] | None = None
    """Log lines of this stage only."""


class Streams:
    """Serves /api/v1/events.

    Args:
        closing: set when the leader shuts down; every stream then ends by itself.
    """

    def __init__(self, calls: Calls, reception: Reception, closing: asyncio.Event) -> None:
        self.calls = calls
        self.reception = reception
        self.closing = closing
        self.open = 0
        # From the wall clock, so that numbers also rise over a restart of the leader.
        self.numbers = itertools.count(int(time.time() * 1000))

    def routes(self) -> list[Route]:
        """The one route."""
        return [Route("/api/v1/events", answered(self.events), name="events")]

    async def events(self, request: Request) -> Response:
        """Begin a stream; refused before it begins when the caller may not see what it asks for."""
        caller = await self.reception.caller(request)
        ask = parse_strings(EventsAsk, request.query_params)
        if self.open >= MAX_STREAMS:
            raise SwarmError(
                "unavailable",
                f"{MAX_STREAMS} live streams are open, the most this leader serves",
                hint="close a tab of the console",
            )
        tab = Tab(self, caller, ask, request.headers.get("last-event-id"))
        first = await tab.snapshot()
        return EventSourceResponse(tab.events(first), ping=PING_S, sep="\n")


class Tab:
    """What one tab has been told so far."""

    def __init__(
        self, streams: Streams, caller: Caller, ask: EventsAsk, last_id: str | None
    ) -> None:
        self.streams = streams
        self.caller = caller
        self.ask = ask
        self.told: dict[str, Any] = {}
        # The cursor of the log rides in the event id: the browser gives it back by itself.
        self.cursor = (last_id or "").partition(":")[2] or None
        self.dirty: set[str] = set()
        self.ringing = asyncio.Event()

    async def snapshot(self) -> Row:
        """Everything the tab shows."""
        told: Row = {
            "cluster": await self._read("cluster_status", pool=self.ask.pool),
            "fellows": (await self._read("fellows_list", pool=self.ask.pool, limit=200))["fellows"],
            "jobs": (await self._read("jobs_list", pool=self.ask.pool, limit=100))["jobs"],
        }
        if self.ask.job_id is not None:
            told["job"] = await self._read("jobs_get", job_id=self.ask.job_id)
            told["logs"] = await self._logs()
        self.told = told
        return told

    async def events(self, first: Row) -> AsyncIterator[ServerSentEvent]:
        """The stream itself, until the tab closes, the token ends or the leader shuts down."""
        self.streams.open += 1
        try:
            async with self.streams.calls.office.changes() as changes:
                watcher = asyncio.create_task(self._watch(changes))
                try:
                    yield self._event("snapshot", first)
                    # What moved since the snapshot was read rang for nobody: compare once.
                    self._ring("fellows", "jobs", *(["logs"] if self.ask.job_id else []))
                    async for event in self._changes():
                        yield event
                finally:
                    watcher.cancel()
        finally:
            self.streams.open -= 1

    async def _changes(self) -> AsyncIterator[ServerSentEvent]:
        while await self._something_changed():
            if await self.streams.calls.office.caller_by_id(self.caller.token_id) is None:
                yield self._event("ended", {"reason": "the access token has ended"})
                return
            topics, self.dirty = self.dirty, set()
            for name, data in await self._news(topics):
                yield self._event(name, data)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.streams.closing.wait(), EVERY_S)

    async def _watch(self, changes: AsyncIterator[Changed]) -> None:
        """Note which topics moved; never waits for the tab."""
        async for change in changes:
            if self._concerns(change):
                self._ring(change.topic)

    def _ring(self, *topics: str) -> None:
        self.dirty.update(topics)
        self.ringing.set()

    def _concerns(self, change: Changed) -> bool:
        if self.ask.pool is not None and change.pool != self.ask.pool:
            return False
        return change.topic != "logs" or change.job_id == self.ask.job_id is not None

    async def _something_changed(self) -> bool:
        """Wait for a change. False when the leader shuts down."""
        closing = self.streams.closing
        waits = {asyncio.create_task(one.wait()) for one in (self.ringing, closing)}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
        self.ringing.clear()
        return not closing.is_set()

    async def _news(self, topics: set[str]) -> list[tuple[str, Row]]:
        """What is different from what the tab was told, by topic."""
        told = self.told
        now: Row = dict(told)
        if topics & {"fellows", "jobs"}:
            now["cluster"] = await self._read("cluster_status", pool=self.ask.pool)
        if "fellows" in topics:
            answer = await self._read("fellows_list", pool=self.ask.pool, limit=200)
            now["fellows"] = answer["fellows"]
        if "jobs" in topics:
            now["jobs"] = (await self._read("jobs_list", pool=self.ask.pool, limit=100))["jobs"]
            if self.ask.job_id is not None:
                now["job"] = await self._read("jobs_get", job_id=self.ask.job_id)
        self.told = now
        news: list[tuple[str, Row]] = []
        for name, key in (("fellows", "fellow_id"), ("jobs", "job_id")):
            change = difference(told[name], now[name], key)
            if change is not None:
                news.append((name, change))
        news += [(n, now[n]) for n in ("cluster", "job") if now.get(n) != told.get(n)]
        if "logs" in topics:
            news += [("logs", lines) async for lines in self._new_logs()]
        return news

    async def _new_logs(self) -> AsyncIterator[Row]:
        """All lines since the cursor, a block at a time; more than one when many came at once."""
        for _ in range(MAX_LOG_BLOCKS):
            lines = await self._logs()
            if lines["lines"]:
                yield lines
            if not lines["omitted"]:
                return
        self._ring("logs")  # the rest follows with the next event

    async def _logs(self) -> Row:
        answer = await self._read(
            "jobs_logs",
            job_id=self.ask.job_id,
            stage=self.ask.stage,
            cursor=self.cursor,
            limit=LOG_LINES,
        )
        self.cursor = answer["cursor"]
        return {name: answer[name] for name in ("lines", "omitted", "cursor")}

    async def _read(self, name: str, **arguments: Any) -> Row:
        given = {key: value for key, value in arguments.items() if value is not None}
        question = Question(OPERATIONS[name], self.caller, given)
        return (await self.streams.calls.perform(question)).model_dump(mode="json")

    def _event(self, name: str, data: Mapping[str, Any]) -> ServerSentEvent:
        number = str(next(self.streams.numbers))
        return ServerSentEvent(
            json.dumps(data, ensure_ascii=False, separators=(",", ":")),
            event=name,
            id=f"{number}:{self.cursor}" if self.cursor else number,
        )


def difference(before: list[Row], now: list[Row], key: str) -> Row | None:
    """Rows that are new or different, and keys that are gone; None when nothing is."""
    was = {row[key]: row for row in before}
    changed = [row for row in now if was.get(row[key]) != row]
    gone = sorted(was.keys() - {row[key] for row in now})
    return {"changed": changed, "gone": gone} if changed or gone else None
