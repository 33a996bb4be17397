"""One measurement at a time on a machine, however many fellows run there.

Two that run at once would each tell half of what a card does. Linux only: a name in the abstract
socket space is taken for as long as a measurement runs, and freed by the system whatever happens.
"""

import asyncio
import errno
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

NAME = "\0swarm-measures"
AGAIN_S = 0.1


@asynccontextmanager
async def measuring_turn(patience_s: float, name: str = NAME) -> AsyncIterator[bool]:
    """Wait for one's turn.

    Yields:
        Whether it came; after `patience_s` it goes on without.
    """
    held = await _taken(patience_s, f"{name}-{os.getuid()}") if sys.platform == "linux" else None
    try:
        yield held is not None
    finally:
        if held is not None:
            held.close()


async def _taken(patience_s: float, name: str) -> socket.socket | None:
    until = time.monotonic() + patience_s
    while True:
        turn = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            turn.bind(name)
        except OSError as error:
            turn.close()
            if error.errno != errno.EADDRINUSE or time.monotonic() >= until:
                return None
            await asyncio.sleep(AGAIN_S)
        else:
            return turn
