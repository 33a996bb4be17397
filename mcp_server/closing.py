"""How whatever is held open ends when the leader shuts down."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

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
