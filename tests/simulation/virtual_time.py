"""An event loop on which hours pass in milliseconds, the same way in every run.

Nothing sleeps: when every task waits, the loop's clock jumps to the next timer. Nothing runs
beside it either: what the product hands to threads runs at once in the loop's own thread, and the
database's connection is real SQLite without its thread. So a run is a function of its seed.
"""

import asyncio
import heapq
import selectors
import sqlite3
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")
EPOCH = 1_800_000_000.0
"""Unix time at which a simulated world begins."""


class NothingLeft(Exception):
    """Every task waits for something that can never happen."""


class _Jump(selectors.SelectSelector):
    """Lets the time pass instead of waiting."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise NothingLeft
        self.passed += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time() is virtual."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        """Seconds since the world began."""
        return self._jump.passed

    def _run_once(self) -> None:
        """One round: what asyncio's own does, without asking the machine for sockets or time.

        Most rounds run a single callback, so that the round itself is what costs.
        """
        timers, ready = self._scheduled, self._ready
        while timers and timers[0]._cancelled:
            self._drop_timer()
        if not ready and not self._stopping:
            self._jump.select(max(timers[0].when() - self.time(), 0.0) if timers else None)
        while timers and timers[0].when() <= self._jump.passed:
            ready.append(self._drop_timer())
        for _ in range(len(ready)):
            callback = ready.popleft()
            if not callback._cancelled:
                callback._run()

    def _drop_timer(self) -> asyncio.TimerHandle:
        first = heapq.heappop(self._scheduled)
        first._scheduled = False  # type: ignore[attr-defined]
        return first

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> "asyncio.Future[T]":
        """Run it now; whoever waits goes on in the loop's next round, as with a thread."""
        done: asyncio.Future[T] = self.create_future()
        try:
            value = func(*args)
        except Exception as error:  # noqa: BLE001 - carried to the one who asked
            self.call_soon(_settle, done, None, error)
        else:
            self.call_soon(_settle, done, value, None)
        return done


def _settle(done: "asyncio.Future[Any]", value: Any, error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(value)
    else:
        done.set_exception(error)


async def passed(seconds: float) -> None:
    """Return once so many virtual seconds are over; with 0, in the loop's next round."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    timer = loop.call_later(seconds, _settle, over, None, None)
    try:
        await over
    finally:
        timer.cancel()


class NextRound:
    """Awaited: goes on in the loop's next round, without a timer."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class LoopClock:
    """The leader's clock on a virtual loop. A machine's clock may be wrong by `off_s`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.off_s = 0.0

    def now(self) -> float:
        """Unix seconds."""
        return EPOCH + self.off_s + self._loop.time()

    def monotonic(self) -> float:
        """Seconds since the world began."""
        return self._loop.time()

    async def wait(self, seconds: float) -> None:
        """Return after so many virtual seconds."""
        await passed(seconds)


class InlineConnection:
    """The database's connection without its thread; `crash` makes it as dead as its process."""

    stopped = None
    opened: "list[InlineConnection]" = []
    """Those of the running world, newest last."""

    def __init__(self, connector: Callable[[], sqlite3.Connection], _: int) -> None:
        self._connector = connector
        self._tx: sqlite3.Connection | None = None
        self.is_crashed = False

    def __await__(self) -> Generator[Any, None, "InlineConnection"]:
        yield
        self._tx = self._connector()
        # Nothing here loses power: commits need not reach a disk, only the file.
        self._tx.execute("PRAGMA synchronous=OFF")
        # And nobody else has the file: no lock is taken and given back for each transaction, and
        # what would take one back may lie in memory.
        self._tx.execute("PRAGMA locking_mode=EXCLUSIVE")
        self._tx.execute("PRAGMA journal_mode=MEMORY")
        self.opened.append(self)
        return self

    async def visit(self, run: Callable[[sqlite3.Connection], T]) -> T:
        """Run a closure, as the thread would between two rounds of the loop."""
        await NextRound()
        if self.is_crashed or self._tx is None:
            raise sqlite3.OperationalError("the leader was killed")
        return run(self._tx)

    async def close(self) -> None:
        """Close the file."""
        if self._tx is not None:
            self._tx.close()
            self._tx = None

    def fill_disk(self, *, is_full: bool) -> None:
        """Let the file grow no further: SQLite's own "database or disk is full"."""
        if self._tx is not None:
            # Asked for less than it has, SQLite takes what it has as the limit.
            self._tx.execute(f"PRAGMA max_page_count={1 if is_full else 2**30}")

    def crash(self) -> None:
        """From now on no closure runs: what was not committed is lost."""
        self.is_crashed = True


def run_virtual(world: Coroutine[Any, Any, T]) -> T:
    """Run a world to its end on a loop of its own.

    Raises:
        NothingLeft: its tasks wait for each other for ever.
    """
    loop = VirtualLoop()
    InlineConnection.opened.clear()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(world)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        asyncio.set_event_loop(None)
        loop.close()
