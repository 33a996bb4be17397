"""How whatever is held open ends: when the leader shuts down, and when its sender hangs up."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from transport.errors import SwarmError

T = TypeVar("T")


async def unless_closing(wait: Awaitable[T], closing: asyncio.Event) -> T:
    """Wait for something, unless the leader closes first.

    Raises:
        SwarmError: unavailable, when it does.
    """
    task = asyncio.ensure_future(wait)
    bell = asyncio.ensure_future(closing.wait())
    try:
        await asyncio.wait({task, bell}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
    finally:
        task.cancel()
        bell.cancel()
    raise SwarmError("unavailable", "the leader is shutting down", hint="ask again shortly")


async def unless_hung_up(wait: Awaitable[T], request: Request) -> T:
    """Wait for something, unless whoever asked closes the connection first.

    Raises:
        ClientDisconnect: when it does; what was waited for is cancelled.
    """
    task = asyncio.ensure_future(wait)
    gone = asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
    finally:
        task.cancel()
        gone.cancel()
    raise ClientDisconnect


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
