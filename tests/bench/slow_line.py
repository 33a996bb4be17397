"""A line between two machines, in user space: so many bits a second each way, and a delay.

A TCP proxy on loopback, in a process of its own. Each direction holds pieces until they are due:
when the line is free again, plus the delay. Reading stops while too much waits, as a full line
makes a sender wait.
"""

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

PIECE = 16_384
WAITING = 64
"""Pieces on their way in one direction: 1 MB."""


@dataclass(frozen=True)
class Line:
    """What a line is like, each way."""

    bits_per_s: float
    delay_s: float = 0.0


async def _until(loop: asyncio.AbstractEventLoop, due: float) -> None:
    """Return when it is that late."""
    if due > loop.time():
        reached = loop.create_future()
        loop.call_at(due, reached.set_result, None)
        await reached


async def _carry(line: Line, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Bring what comes to the other side, each piece when it is due."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(WAITING)

    async def take() -> None:
        free = loop.time()
        while piece := await reader.read(PIECE):
            free = max(loop.time(), free) + 8 * len(piece) / line.bits_per_s
            await queue.put((free + line.delay_s, piece))
        await queue.put((0.0, b""))

    taking = asyncio.create_task(take())
    while (entry := await queue.get())[1]:
        due, piece = entry
        await _until(loop, due)
        writer.write(piece)
        await writer.drain()
    writer.close()
    await taking


async def _serve(line: Line, port: int, channel: Connection) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(
            _carry(line, reader, back), _carry(line, there, writer), return_exceptions=True
        )

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    channel.send(server.sockets[0].getsockname()[1])
    async with server:
        await server.serve_forever()


def _run(line: Line, port: int, channel: Connection) -> None:
    asyncio.run(_serve(line, port, channel))


@contextmanager
def slow_line(line: Line | None, port: int) -> Iterator[int]:
    """A port that leads to `port` over the line; None: the port itself."""
    if line is None:
        yield port
        return
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(line, port, theirs))
    process.start()
    try:
        assert ours.poll(120), "the line did not come up in 120 s"
        yield int(ours.recv())
    finally:
        process.kill()
        process.join()
