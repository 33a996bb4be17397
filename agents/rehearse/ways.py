"""The ways of a rehearsal: TCP proxies that can be slow, narrow, cut, or break their connections.

One lies between a fellow and its leader, one before the socket that a fellow's neighbours dial. All
live on one event loop in a thread. A cut way keeps connections open and moves nothing, as a broken
network does; it refuses nobody.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
LOOPBACK = "127.0.0.1"
BLOCK = 16_384
WAITING = 256
"""Blocks on their way in one direction: 4 MB. A sender waits when there are more."""
START_S = 10.0


@dataclass(frozen=True)
class Shape:
    """What each direction of a way is like."""

    delay_s: float = 0.0
    bytes_s: float | None = None
    """None = as fast as it goes."""


class Way:
    """One proxy. Change `shape` at any time, from any thread; cut and break it by `Ways`."""

    def __init__(self, target_port: int, shape: Shape) -> None:
        self.port = 0
        self.usual = shape
        self.shape = shape
        self.flows = asyncio.Event()
        self.flows.set()
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen on a free port of the loopback interface."""
        self._server = await asyncio.start_server(self._accept, LOOPBACK, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Let go of everything."""
        assert self._server is not None
        self._server.close()
        await self.hang_up()

    async def hang_up(self) -> None:
        """End all connections; new ones are taken."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._carry(reader, writer))
        self._tasks.add(task)
        await asyncio.wait([task])
        self._tasks.discard(task)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            onward, back = await asyncio.open_connection(LOOPBACK, self._target_port)
            async with _ended(back), asyncio.TaskGroup() as both:
                both.create_task(self._direction(reader, back))
                both.create_task(self._direction(onward, writer))
            writer.close()
        except* OSError:
            pass
        finally:
            if not writer.is_closing():
                writer.transport.abort()

    async def _direction(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """Bring what comes to the other side, each block when it is due."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(WAITING)
        async with asyncio.TaskGroup() as both:
            both.create_task(self._take(source, queue))
            both.create_task(self._give(queue, target))

    async def _take(
        self, source: asyncio.StreamReader, queue: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        loop = asyncio.get_running_loop()
        free_at = loop.time()
        block = b" "
        while block:
            try:
                block = await source.read(BLOCK)
            except OSError:
                block = b""
            shape = self.shape
            free_at = max(loop.time(), free_at) + len(block) / (shape.bytes_s or float("inf"))
            await queue.put((free_at + shape.delay_s, block))

    async def _give(
        self, queue: asyncio.Queue[tuple[float, bytes]], target: asyncio.StreamWriter
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_at, block = await queue.get()
            await asyncio.sleep(max(0.0, due_at - loop.time()))
            await self.flows.wait()
            if not block:
                break
            target.write(block)
            await target.drain()
        target.write_eof()


@contextlib.asynccontextmanager
async def _ended(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    """Closed after what was written when all went well, otherwise at once."""
    try:
        yield
    except BaseException:
        writer.transport.abort()
        raise
    writer.close()


class Ways:
    """All ways of a rehearsal, by name."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ways", daemon=True)
        self._thread.start()
        self.by_name: dict[str, Way] = {}

    def open(self, name: str, target_port: int, shape: Shape) -> Way:
        """Open a way to a port of this machine."""
        way = Way(target_port, shape)
        self._run(way.open())
        self.by_name[name] = way
        return way

    def cut(self, name: str, *, is_cut: bool) -> None:
        """Let nothing through, or everything that waits and what comes."""
        flows = self.by_name[name].flows
        self._loop.call_soon_threadsafe(flows.clear if is_cut else flows.set)

    def hang_up(self, name: str) -> None:
        """Break all connections of a way, losing what is on it."""
        self._run(self.by_name[name].hang_up())

    def close(self) -> None:
        """Close all, and end the thread."""
        for way in self.by_name.values():
            self._run(way.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_S)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_S)
