"""Sends the spool's reports in batches until the leader has stored them.

Waits with growing pauses while the leader is away. A batch that the leader cannot read is halved
until the one bad report is found and dropped, so that it never blocks the others.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence

from agents.fellow.leader_link import LeaderLink
from agents.fellow.spool import Line, Spool, finish_sync
from transport.errors import SwarmError
from transport.reports import Report

# Steps come several a second at best: waiting this long makes one request of many reports.
_GATHER_S = 0.1
_AT_ONCE = frozenset({"bound", "loaded", "saved", "done", "failed", "measured", "link-measured"})

log = logging.getLogger("swarm.fellow")


class Backoff:
    """Growing, jittered pauses between attempts to reach a leader that is away."""

    def __init__(self, first_s: float = 0.5, most_s: float = 10.0) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._failures = 0

    def succeeded(self) -> None:
        """Start from the shortest pause again."""
        self._failures = 0

    def pause_s(self) -> float:
        """The next pause: doubled each time, and spread so that fellows do not come back as one."""
        whole = min(self._most_s, self._first_s * 2.0 ** min(self._failures, 16))
        self._failures += 1
        return whole * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing


class Outbox:
    """Takes reports from the workers and sees to it that the leader gets them."""

    def __init__(self, spool: Spool, link: LeaderLink, fellow_id: str) -> None:
        self._spool = spool
        self._link = link
        self._fellow_id = fellow_id
        self._work = asyncio.Event()
        self._urgent = asyncio.Event()
        self._empty = asyncio.Event()
        self._most = 500
        self._backoff = Backoff()
        self._told_dropped = 0
        self._note_state()

    def put(self, report: Report) -> None:
        """Keep a report and send it soon. Never blocks, never fails."""
        if self._spool.append(report) is None and self._spool.dropped > self._told_dropped:
            # At the first and then at every doubling, not at each of thousands.
            log.warning("spool full, reports left out", extra={"dropped": self._spool.dropped})
            self._told_dropped = self._spool.dropped * 2
        if report.kind in _AT_ONCE:
            self._urgent.set()
        self._note_state()

    def committed(self, sequence: int) -> None:
        """The leader says that every report up to here is stored."""
        self._spool.commit(sequence)
        self._note_state()

    async def run(self, fatal: Callable[[SwarmError], None]) -> None:
        """Send for ever. `fatal` hears of a refusal of this fellow itself."""
        while True:
            await self._work.wait()
            await self._gather_more()
            lines = self._spool.batch(self._most)
            try:
                await self._send(lines)
                self._backoff.succeeded()
            except SwarmError as error:
                if error.code == "unauthenticated":
                    fatal(error)
                    return
                if error.code in ("invalid-input", "too-large"):
                    self._narrow(lines, error)
                else:
                    await asyncio.sleep(self._backoff.pause_s())

    async def flush(self, limit_s: float) -> bool:
        """Wait until all is sent, at most `limit_s`; `run` must be running."""
        self._urgent.set()
        try:
            async with asyncio.timeout(limit_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    async def _send(self, lines: Sequence[Line]) -> None:
        handle = self._spool.begin_sync()
        if handle is not None:
            await asyncio.to_thread(finish_sync, handle)
        taken = await self._link.reports(self._fellow_id, lines)
        self._most = 500
        if taken.refused:
            log.info("reports refused", extra={"count": len(taken.refused)})
            self._spool.drop(set(taken.refused))
        self.committed(taken.committed)

    def _narrow(self, lines: Sequence[Line], error: SwarmError) -> None:
        """After a batch that the leader cannot read: send half of it, or drop the last one."""
        if len(lines) > 1:
            self._most = len(lines) // 2
            return
        log.error("a report was refused", extra={"why": error.message, "report": lines[0].text})
        self._spool.drop({lines[0].sequence})
        self._note_state()

    async def _gather_more(self) -> None:
        try:
            async with asyncio.timeout(_GATHER_S):
                await self._urgent.wait()
        except TimeoutError:
            pass
        self._urgent.clear()

    def _note_state(self) -> None:
        if len(self._spool):
            self._work.set()
            self._empty.clear()
        else:
            self._work.clear()
            self._empty.set()
