"""Time and randomness as values that are passed in: the real ones, and a clock moved by hand.

The only file of this room that touches the machine's own clock and dice.
"""

import asyncio
import heapq
import itertools
import os
import time
from typing import Protocol

from transport.ids import RandomBytes


class Clock(Protocol):
    """Where the leader reads the time. Timeouts use the monotonic clock, people the other one."""

    def now(self) -> float:
        """Unix seconds, for display and for expiry."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back, for timeouts."""
        ...

    async def wait(self, seconds: float) -> None:
        """Return after so many seconds."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        """Unix seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since some start, never going back."""
        return time.monotonic()

    async def wait(self, seconds: float) -> None:
        """Sleep."""
        await asyncio.sleep(seconds)


class HandClock:
    """Stands still until advance() is called: hours pass in milliseconds."""

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self._start = start
        self._elapsed = 0.0
        self._order = itertools.count()
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        """Unix seconds: the start, and what was advanced."""
        return self._start + self._elapsed

    def monotonic(self) -> float:
        """Seconds advanced so far."""
        return self._elapsed

    async def wait(self, seconds: float) -> None:
        """Return once advance() has passed this moment."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (self._elapsed + seconds, next(self._order), future))
        await future

    async def advance(self, seconds: float) -> None:
        """Let time pass; those who wait for it wake in order, and run as far as they can."""
        await self._settle()  # so that who is about to wait does
        goal = self._elapsed + seconds
        while self._waiting and self._waiting[0][0] <= goal:
            self._elapsed, _, future = heapq.heappop(self._waiting)
            if not future.done():
                future.set_result(None)
                await self._settle()
        self._elapsed = goal
        await self._settle()

    async def _settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


async def wait_for_event(event: asyncio.Event, timeout_s: float, clock: Clock) -> bool:
    """Wait until the event is set, at most so long by this clock. Whether it was set."""
    if event.is_set():
        return True
    ringing = asyncio.ensure_future(event.wait())
    running_out = asyncio.ensure_future(clock.wait(timeout_s))
    try:
        await asyncio.wait({ringing, running_out}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ringing.cancel()
        running_out.cancel()
    return event.is_set()


system_random_bytes: RandomBytes = os.urandom
