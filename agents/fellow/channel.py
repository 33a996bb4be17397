"""One line after another over a local socket, both ways, bounded.

Carries JSON lines between the daemon and a worker, and the forkserver's answers. Knows nothing of
what the lines say.
"""

import asyncio
import socket
from collections.abc import AsyncIterator

_CHUNK = 65_536


class Channel:
    """The daemon's end of a socket pair.

    A line longer than the limit is cut there; the rest of it is skipped, so that one babbling
    worker costs its own words and nothing else.
    """

    def __init__(self, end: socket.socket, limit_bytes: int = 1_000_000) -> None:
        end.setblocking(False)
        self.socket = end
        self._limit_bytes = limit_bytes

    async def lines(self) -> AsyncIterator[str]:
        """Lines until the other side is gone; undecodable bytes become replacement characters."""
        loop = asyncio.get_running_loop()
        kept, skipping = bytearray(), False
        while True:
            try:
                chunk = await loop.sock_recv(self.socket, _CHUNK)
            except OSError:
                chunk = b""
            *whole, rest = chunk.split(b"\n")
            for part in whole:
                if not skipping:
                    yield bytes(kept + part)[: self._limit_bytes].decode(errors="replace")
                kept.clear()
                skipping = False
            kept += b"" if skipping else rest
            if len(kept) > self._limit_bytes:
                yield bytes(kept[: self._limit_bytes]).decode(errors="replace")
                kept.clear()
                skipping = True
            if not chunk:
                break
        if kept:
            yield bytes(kept).decode(errors="replace")

    async def send(self, line: str, timeout_s: float = 5.0) -> bool:
        """Write one line; False when the other side is gone or does not read."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                await loop.sock_sendall(self.socket, line.encode() + b"\n")
        except (OSError, TimeoutError):
            return False
        return True

    def close(self) -> None:
        """Hang up; a worker that reads the other end then exits."""
        self.socket.close()


def pair(limit_bytes: int = 1_000_000) -> tuple[Channel, socket.socket]:
    """A channel, and the end that a child process gets."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Channel(ours, limit_bytes), theirs
