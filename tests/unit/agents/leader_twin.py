"""A small leader that speaks the fellow API over real HTTP, in a thread of the test.

Keeps what it is told in lists; a test sets what it wants, and which answers get lost.
"""

import asyncio
import hashlib
import itertools
import json
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from transport.beats import ShortBeat, lengthened
from transport.cards import PROTOCOL, Heartbeat
from transport.errors import SwarmError
from transport.orders import DesiredState, MeasureOrder, StageAssignment
from transport.reports import JoinAsk, Joined, Numbered, ReportBatch, ReportsTaken
from transport.schema import parse

HOLD_S = 5.0


class LeaderTwin:
    """One pool; every method may be called from the test's thread."""

    def __init__(self) -> None:
        self.url = ""
        self.invites: dict[str, str | None] = {}
        """secret -> SHA-256 of the credential that used it."""
        self.fellows: dict[str, str] = {}
        """SHA-256 of a credential -> fellow_id."""
        self.stages: list[StageAssignment] = []
        self.measure: MeasureOrder | None = None
        self.revision = 1
        self.committed = 0
        self.reports: list[Numbered] = []
        self.beats: list[Heartbeat] = []
        self.refuse: set[int] = set()
        self.faults: deque[str] = deque()
        """For the next requests: "503", "lost" (done, but the answer breaks off) or "422"."""
        self.asked: list[str] = []
        self._told = threading.Condition()
        self._changed: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._numbers = itertools.count(2)

    def want(self, *stages: StageAssignment, measure: MeasureOrder | None = None) -> None:
        """Change the desired state of every fellow."""
        self.stages, self.measure = list(stages), measure
        self.revision += 1
        if self._loop is not None and self._changed is not None:
            self._loop.call_soon_threadsafe(self._changed.set)

    def unplug(self) -> None:
        """Forget the event loop that served it."""
        self._loop = self._changed = None

    def wait_for(self, truth: Callable[[], Any], timeout_s: float = 10.0) -> Any:
        """Wait until something that the twin was told is so."""
        with self._told:
            assert self._told.wait_for(truth, timeout_s), (
                f"not within {timeout_s} s: {self.kinds()}"
            )
        return truth()

    def kinds(self) -> list[str]:
        """The kinds of all reports so far, log lines left out."""
        return [n.report.kind for n in self.reports if n.report.kind != "log"]

    def of(self, kind: str) -> list[Any]:
        """All reports of a kind."""
        return [n.report for n in self.reports if n.report.kind == kind]

    def remove_all(self) -> None:
        """Take every fellow out of the pool."""
        self.fellows.clear()

    def app(self) -> Starlette:
        """The routes."""
        api = "/fellow/v1"
        return Starlette(
            routes=[
                Route(f"{api}/join", self._faulty(self._join), methods=["POST"]),
                Route(f"{api}/heartbeat", self._faulty(self._heartbeat), methods=["POST"]),
                Route(f"{api}/beat", self._faulty(self._short_beat), methods=["POST"]),
                Route(f"{api}/orders", self._faulty(self._orders), methods=["GET"]),
                Route(f"{api}/reports", self._faulty(self._take), methods=["POST"]),
            ]
        )

    def _faulty(
        self, answer: Callable[[Request], Awaitable[Any]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            fault = self.faults.popleft() if self.faults else ""
            try:
                if fault in ("503", "422"):
                    code = "unavailable" if fault == "503" else "invalid-input"
                    raise SwarmError(code, "as the test wished")
                told = await answer(request)
            except SwarmError as error:
                return JSONResponse(error.problem(), error.status)
            finally:
                with self._told:
                    self.asked.append(request.url.path.rpartition("/")[2])
                    self._told.notify_all()
            if fault == "lost":
                # Promises more than it sends: the connection breaks off after the work was done.
                return StreamingResponse(iter([b"{"]), headers={"content-length": "10"})
            return Response(told.model_dump_json(), media_type="application/json")

        return endpoint

    async def _join(self, request: Request) -> Joined:
        ask = parse(JoinAsk, await request.body())
        user = self.invites.get(ask.invite, "unknown")
        if user not in (None, ask.credential_sha256):
            raise SwarmError("not-found", "there is no such invite")
        self.invites[ask.invite] = ask.credential_sha256
        if ask.credential_sha256 not in self.fellows:
            self.fellows[ask.credential_sha256] = f"f-aaaaaaa{next(self._numbers)}"
        return Joined(
            fellow_id=self.fellows[ask.credential_sha256], pool="demo/home", heartbeat_s=0.2
        )

    async def _heartbeat(self, request: Request) -> DesiredState:
        self._who(request)
        self.beats.append(parse(Heartbeat, await request.body()))
        return self._state()

    async def _short_beat(self, request: Request) -> DesiredState:
        self._who(request)
        beat = lengthened(
            parse(ShortBeat, await request.body()), self.beats[-1] if self.beats else None
        )
        if beat is None:
            raise SwarmError("conflict", "nothing was told before")
        self.beats.append(beat)
        return self._state()

    async def _orders(self, request: Request) -> DesiredState:
        self._who(request)
        since = int(request.query_params["since"])
        self._loop, self._changed = asyncio.get_running_loop(), asyncio.Event()
        if self.revision <= since:
            try:
                async with asyncio.timeout(HOLD_S):
                    await self._changed.wait()
            except TimeoutError:
                pass
        return self._state()

    async def _take(self, request: Request) -> ReportsTaken:
        self._who(request)
        batch = parse(ReportBatch, await request.body())
        numbers = [one.sequence for one in batch.reports]
        assert numbers == sorted(set(numbers))
        for one in batch.reports:
            if one.sequence > self.committed and one.sequence not in self.refuse:
                self.reports.append(one)
        refused = sorted(self.refuse & set(numbers))
        self.committed = max([self.committed, *numbers])
        return ReportsTaken(committed=self.committed, refused=refused)

    def _who(self, request: Request) -> str:
        secret = request.headers.get("authorization", "").removeprefix("Bearer ")
        found = self.fellows.get(hashlib.sha256(secret.encode()).hexdigest())
        if found is None:
            raise SwarmError("unauthenticated", "this credential is not known here")
        return found

    def _state(self) -> DesiredState:
        return DesiredState(
            protocol=PROTOCOL,
            revision=self.revision,
            stages=self.stages,
            measure=self.measure,
            reports_committed=self.committed,
        )


@contextmanager
def served(app: Starlette, port: int = 0) -> Iterator[str]:
    """Serve an app on loopback in a thread; gives its address."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=port, log_level="critical", timeout_graceful_shutdown=0
    )
    server = uvicorn.Server(config)
    listening = config.bind_socket()
    started = threading.Event()

    class Announced(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            started.set()

    server = Announced(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listening.close()
        assert not thread.is_alive()


@contextmanager
def running(twin: LeaderTwin, port: int = 0) -> Iterator[LeaderTwin]:
    """A twin that answers; the same one may be served again."""
    with served(twin.app(), port) as url:
        twin.url = url
        yield twin
    twin.unplug()


def as_json(told: Any) -> str:
    """A model or plain values as JSON."""
    return told.model_dump_json() if hasattr(told, "model_dump_json") else json.dumps(told)
