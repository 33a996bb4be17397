"""All doors of the leader as one ASGI application. The only place that knows them all."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route

from mcp_server.access import HostGuard, Names, Reception
from mcp_server.calls import Calls
from mcp_server.console import FOLDER, Console, OwnHeaders
from mcp_server.fellow_api import FellowApi
from mcp_server.mcp_later import McpLater
from mcp_server.office import Office
from mcp_server.problems import http_problem
from mcp_server.rest import Rest
from mcp_server.sessions import Sessions
from mcp_server.signin import SignIn
from mcp_server.streams import Streams
from mcp_server.system import System

DRAIN_S = 2.0  # for changes that nobody waits for any more


@dataclass
class Doors:
    """What the doors are made from."""

    office: Office
    sessions: Sessions
    names: Names = field(default_factory=Names)
    public_url: str | None = None
    console: Path = FOLDER
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set it to end held requests and live streams."""


def build_app(doors: Doors) -> Starlette:
    """The leader's application."""
    calls, reception = Calls(doors.office, doors.closing), Reception(doors.office, doors.sessions)
    mcp = McpLater(calls, reception, doors.names)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        sessions = asyncio.create_task(mcp.run(doors.closing), name="mcp")
        try:
            yield
        finally:
            doors.closing.set()
            await calls.drain(DRAIN_S)
            await asyncio.gather(sessions, return_exceptions=True)

    routes: list[BaseRoute] = [
        Route("/mcp", mcp, name="mcp"),
        *Streams(calls, reception, doors.closing).routes(),
        *Rest(calls, reception).routes(),
        *FellowApi(doors.office, reception, doors.closing).routes(),
        *SignIn(reception, doors.public_url).routes(),
        *System(calls, reception, doors.closing).routes(),
        # Matches every path, so it is last; by method too, so that others' 405 stay theirs.
        Route("/{path:path}", Console(doors.console), methods=["GET"], name="console"),
    ]
    return Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(OwnHeaders), Middleware(HostGuard, names=doors.names)],
        exception_handlers={HTTPException: http_problem},
    )
