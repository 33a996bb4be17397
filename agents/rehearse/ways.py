"""The way between one fellow and its leader: a TCP proxy that can be slow, or cut.

All ways of a rehearsal live on one event loop in a thread. A cut way keeps connections open and
moves nothing, as a broken network does; it refuses nobody.
"""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
LOOPBACK = "127.0.0.1"
BLOCK = 65_536
START_S = 10.0


class Way:
    """One proxy. Change `delay_s` at any time, from any thread; cut it by `Ways.cut`."""

    def __init__(self, target_port: int, delay_s: float) -> None:
        self.port = 0
        self.usual_delay_s = delay_s
        self.delay_s = delay_s
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
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._carry(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            onward, back = await asyncio.open_connection(LOOPBACK, self._target_port)
            try:
                await asyncio.gather(self._pump(reader, back), self._pump(onward, writer))
            finally:
                back.close()

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while block := await source.read(BLOCK):
                await asyncio.sleep(self.delay_s)
                await self.flows.wait()
                target.write(block)
                await target.drain()
        with contextlib.suppress(OSError):
            target.write_eof()


class Ways:
    """All ways of a rehearsal, by the fellow's name."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ways", daemon=True)
        self._thread.start()
        self.by_fellow: dict[str, Way] = {}

    def open(self, fellow: str, leader_port: int, delay_s: float) -> Way:
        """Open the way of one fellow."""
        way = Way(leader_port, delay_s)
        self._run(way.open())
        self.by_fellow[fellow] = way
        return way

    def cut(self, fellow: str, *, is_cut: bool) -> None:
        """Let nothing through, or everything that waits and what comes."""
        flows = self.by_fellow[fellow].flows
        self._loop.call_soon_threadsafe(flows.clear if is_cut else flows.set)

    def close(self) -> None:
        """Close all, and end the thread."""
        for way in self.by_fellow.values():
            self._run(way.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_S)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_S)
