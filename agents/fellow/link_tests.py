"""Measures links: to other fellows by a process at each end, to the leader by its own requests.

The processes speak JSON lines (transport.link_probe). Does not decide what is measured.
"""

import asyncio
import logging
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from agents.fellow.launcher import child_environment
from agents.fellow.leader_link import LeaderLink
from agents.fellow.listening import Listening
from agents.log_lines import clean
from transport.cards import ProbeEnd
from transport.errors import SwarmError
from transport.orders import Links, LinkTest, MeasureOrder, Neighbour
from transport.probe_words import End, Figures, Start
from transport.reports import LinkMeasured

log = logging.getLogger("swarm.fellow")

MEET_S: Final = 60.0
"""How long an end waits to be told the other one."""
TEST_S: Final = 40.0
TRIPS: Final = 9
FIRST_BYTES, MOST_BYTES = 64 * 1024, 8 * 1024 * 1024
ENOUGH_S: Final = 0.3
"""A transfer this long tells the speed; a shorter one is tried again with four times as much."""


@dataclass(frozen=True)
class Place:
    """Where this fellow's ends listen, and where relays without a host are."""

    listening: Listening
    relay_host: str


class LinkTests:
    """The link tests of a fellow.

    Args:
        changed: called when heartbeats have something new to tell.
    """

    def __init__(self, place: Place, changed: Callable[[], None]) -> None:
        self.ends: dict[str, ProbeEnd] = {}
        """What heartbeats tell, by the test's name."""
        self._place = place
        self._changed = changed
        self._neighbours: dict[str, asyncio.Future[Neighbour]] = {}

    def take(self, order: MeasureOrder) -> None:
        """Hear which ends may meet by now."""
        for test in order.links:
            waiting = self._neighbours.get(test.name)
            if test.neighbour is not None and waiting is not None and not waiting.done():
                waiting.set_result(test.neighbour)

    async def run(self, test: LinkTest, token: str) -> LinkMeasured:
        """Measure one link. What went wrong is in `error`."""
        self._neighbours[test.name] = asyncio.get_running_loop().create_future()
        try:
            figures = await self._measure(test)
        except (OSError, ValidationError, TimeoutError) as error:
            figures = Figures(error=f"the test did not come about ({type(error).__name__})")
        finally:
            self.ends.pop(test.name, None)
            del self._neighbours[test.name]
            self._changed()
        if figures.error:
            log.warning("a link was not measured", extra={"why": figures.error})
        return LinkMeasured(
            token=token,
            at=time.time(),
            peer=test.peer,
            path=figures.path,
            latency_s=figures.latency_s,
            up_bytes_s=figures.up_bytes_s or None,
            down_bytes_s=figures.down_bytes_s or None,
            error=clean(figures.error, 500),
        )

    async def _measure(self, test: LinkTest) -> Figures:
        place = self._place
        start = Start(
            name=test.name,
            dials=test.dials,
            listen_address=place.listening.address,
            more_addresses=list(place.listening.more),
            listen_port=place.listening.port,
            announced=list(place.listening.announced),
            relay_host=place.relay_host,
        )
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "transport.link_probe",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=child_environment(),
        )  # fmt: skip
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(start.model_dump_json().encode() + b"\n")
            end = End.model_validate_json(await asyncio.wait_for(child.stdout.readline(), 20))
            self.ends[test.name] = ProbeEnd(name=test.name, **end.model_dump())
            self._changed()
            neighbour = await asyncio.wait_for(self._neighbours[test.name], MEET_S)
            links = Links(
                previous=None if test.dials else neighbour, next=neighbour if test.dials else None
            )
            child.stdin.write(links.model_dump_json().encode() + b"\n")
            return Figures.model_validate_json(
                await asyncio.wait_for(child.stdout.readline(), TEST_S)
            )
        finally:
            if child.returncode is None:
                child.kill()
            child.stdin.close()
            await child.wait()


async def measure_leader(link: LeaderLink, token: str) -> LinkMeasured:
    """Round trips and transfers between this fellow and its leader, over their own connection."""
    try:
        trips = []
        for _ in range(TRIPS):
            began = time.monotonic()
            await link.receive(0)
            trips.append(time.monotonic() - began)
        trip_s = statistics.median(trips)
        down = await _speed(link.receive, trip_s)
        up = await _speed(link.give, trip_s)
    except SwarmError as error:
        return LinkMeasured(
            token=token, at=time.time(), peer="leader", path="none", latency_s=None,
            up_bytes_s=None, down_bytes_s=None, error=clean(error.message, 500),
        )  # fmt: skip
    return LinkMeasured(
        token=token, at=time.time(), peer="leader", path="direct", latency_s=trip_s / 2,
        up_bytes_s=up, down_bytes_s=down,
    )  # fmt: skip


async def _speed(move: Callable[[int], Awaitable[None]], trip_s: float) -> float:
    """Bytes a second of a transfer that takes long enough, its round trip taken off."""
    size = FIRST_BYTES
    while True:
        began = time.monotonic()
        await move(size)
        took = time.monotonic() - began
        if took >= ENOUGH_S or size >= MOST_BYTES:
            return size / max(took - trip_s, took / 10)
        size = min(4 * size, MOST_BYTES)
