"""The MCP door, built in the background: its library is two fifths of the leader's starting time.

A request that comes before it is there waits for it, a few tenths of a second at most.
"""

import asyncio
import importlib
import logging
from typing import TYPE_CHECKING, Any

from starlette.types import Receive, Scope, Send

from mcp_server.access import Names, Reception
from mcp_server.calls import Calls
from mcp_server.problems import problem_response
from transport.errors import SwarmError

if TYPE_CHECKING:
    from mcp_server.mcp_http import McpDoor

log = logging.getLogger(__name__)


class McpLater:
    """An ASGI app for /mcp. run() must be going on while it serves."""

    def __init__(self, calls: Calls, reception: Reception, names: Names) -> None:
        self._parts = (calls, reception, names)
        self._door: McpDoor | None = None
        self._settled = asyncio.Event()

    async def run(self, closing: asyncio.Event) -> None:
        """Build the door and keep its sessions until the leader shuts down."""
        try:
            built: Any = await asyncio.to_thread(importlib.import_module, "mcp_server.mcp_http")
            door = built.McpDoor(*self._parts)
            async with door.manager.run():
                self._door = door
                self._settled.set()
                await closing.wait()
        except Exception:
            log.exception("the MCP door could not be opened")
            raise
        finally:
            self._door = None
            self._settled.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._settled.wait()
        if self._door is None:
            closed = SwarmError("unavailable", "MCP is not served now", hint="ask again shortly")
            await problem_response(closed)(scope, receive, send)
            return
        await self._door(scope, receive, send)
