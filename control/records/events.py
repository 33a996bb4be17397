"""What moved, told to whoever listens: numbered, newest kept in memory, nobody waited for.

Says what to look at again, not what it became. A slow listener loses the oldest.
"""

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Literal

Topic = Literal["fellows", "jobs", "logs", "buckets", "models", "pools"]
KEPT = 1000
QUEUE = 256  # of one listener


@dataclass(frozen=True)
class Event:
    """Something moved."""

    number: int
    """Rises by one with every event of this leader's life."""
    topic: str
    pool: str
    what: str
    """One word: joined, online, offline, orders, step, state, ..."""
    job_id: str | None = None


class Events:
    """Publish and subscribe, within one process."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._kept: deque[Event] = deque(maxlen=KEPT)
        self._queues: set[asyncio.Queue[Event]] = set()

    def publish(self, topic: str, pool: str, what: str, job_id: str | None = None) -> None:
        """Tell every listener; never waits. Called on the event loop."""
        event = Event(next(self._numbers), topic, pool, what, job_id)
        self._kept.append(event)
        for queue in self._queues:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(event)

    @property
    def last_number(self) -> int:
        """Of the newest event; 0 before the first."""
        return self._kept[-1].number if self._kept else 0

    def since(self, number: int) -> list[Event] | None:
        """The events after one; None when some of them are no longer kept."""
        missed = self._kept and self._kept[0].number > number + 1
        return None if missed else [event for event in self._kept if event.number > number]

    @contextlib.asynccontextmanager
    async def subscribe(self) -> AsyncIterator[AsyncIterator[Event]]:
        """Every event from now on."""
        with self.queue() as queue:
            yield _drain(queue)

    @contextlib.contextmanager
    def queue(self) -> Iterator[asyncio.Queue[Event]]:
        """A queue that receives every event while the context is open."""
        queue: asyncio.Queue[Event] = asyncio.Queue(QUEUE)
        self._queues.add(queue)
        try:
            yield queue
        finally:
            self._queues.discard(queue)


async def _drain(queue: "asyncio.Queue[Event]") -> AsyncIterator[Event]:
    while True:
        yield await queue.get()
