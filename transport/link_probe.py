"""One end of a measured link between two fellows: `python -m transport.link_probe`.

Over the same links that training uses: CURVE, the same choice of ways, the same window. No torch,
no leader. Lines of JSON: in, a Start; out, an End; in, Links; out, Figures. The end that dials asks
first: round trips, then as much as goes over in a second, then the same back.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from struct import pack, unpack
from typing import Final

from pydantic import BaseModel

from transport.cards import PathKind
from transport.direct import LinkOptions, PipelineLinks
from transport.errors import SwarmError
from transport.frames import Direction, Frame, Header, Kind
from transport.link import Link, LinkName, poller_of
from transport.orders import Links
from transport.probe_words import End, Figures, Start
from transport.reach import Reached

ROUND_TRIPS: Final = 21
SEND_S: Final = 1.0
FRAME_BYTES: Final = 64 * 1024
MOST_BYTES: Final = 256_000_000
LIMIT_S: Final = 25.0
"""From the neighbour's name to the figures."""


class Probe:
    """One end."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._path: PathKind = "none"
        number = 0 if start.dials else 1
        options = LinkOptions(
            more_addresses=start.more_addresses,
            listen_port=start.listen_port,
            announced=start.announced,
            on_path=self._note,
        )
        self.links = PipelineLinks.open(
            LinkName(start.name, 1, number, number), 2, start.listen_address, options
        )

    def _note(self, _: Link, reached: Reached) -> None:
        if reached.kind != "none":
            self._path = reached.kind

    def run(self, neighbours: Links) -> Figures:
        """Measure with the neighbour; never raises for what the network does."""
        self.links.connect(neighbours, self._start.relay_host)
        link = self.links.next or self.links.previous
        assert link is not None
        try:
            figures = _Talk(link).measure() if self._start.dials else _Talk(link).answer()
        except SwarmError as error:
            figures = Figures(error=error.message[:500])
        self.links.close(2.0)
        return figures.model_copy(update={"path": self._path})


class _Talk:
    """What both ends say to each other."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._deadline = time.monotonic() + LIMIT_S

    def measure(self) -> Figures:
        trips = []
        for _ in range(ROUND_TRIPS):
            began = time.monotonic()
            self._say(0.0)
            self._hear()
            trips.append(time.monotonic() - began)
        latency_s = sorted(trips)[ROUND_TRIPS // 2] / 2
        self._pour()
        up = self._hear()
        down = self._drink()
        self._say(down)
        return Figures(latency_s=latency_s, up_bytes_s=up, down_bytes_s=down)

    def answer(self) -> Figures:
        for _ in range(ROUND_TRIPS):
            self._hear()
            self._say(0.0)
        self._say(self._drink())
        self._pour()
        self._hear()
        return Figures()

    def _say(self, value: float) -> None:
        header = Header(
            Kind.CONTROL, b"", 0, direction=Direction.FORWARD, dtype="float64", shape=(1,)
        )
        self._link.send(header, pack("<d", value))

    def _hear(self) -> float:
        frame = self._next()
        if frame.header.kind is not Kind.CONTROL:
            raise SwarmError("stage-failed", "the other end of a measurement lost its place")
        return float(unpack("<d", frame.payload)[0])

    def _pour(self) -> None:
        """Send as much as goes over in a second."""
        header = Header(
            Kind.DATA, b"", 0, direction=Direction.FORWARD, dtype="uint8", shape=(FRAME_BYTES,)
        )
        payload, until = bytes(FRAME_BYTES), time.monotonic() + SEND_S
        for _ in range(MOST_BYTES // FRAME_BYTES):
            number = self._link.send(header, payload)
            self._until(lambda number=number: self._link.is_clear(number))  # type: ignore[misc]
            if time.monotonic() > until:
                break
        self._say(0.0)

    def _drink(self) -> float:
        """Take all until the other end says that it was all; bytes a second after the first."""
        taken, first, last = -FRAME_BYTES, 0.0, 0.0
        while (frame := self._next()).header.kind is Kind.DATA:
            last = time.monotonic()
            first = first or last
            taken += len(frame.payload)
        return taken / (last - first) if last > first else 0.0

    def _next(self) -> Frame:
        found: list[Frame] = []

        def is_there() -> bool:
            frame = self._link.receive()
            if frame is not None:
                found.append(frame)
            return bool(found)

        self._until(is_there)
        return found[0]

    def _until(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            if self._link.failure is not None:
                raise self._link.failure
            if time.monotonic() > self._deadline:
                raise SwarmError(
                    "unreachable", f"the two fellows did not meet: {self._link.trouble or 'slow'}"
                )
            self._link.acknowledge()
            poller_of([self._link]).poll(100)
            self._link.service()


def say(told: BaseModel) -> None:
    """One line on stdout."""
    sys.stdout.write(told.model_dump_json() + "\n")
    sys.stdout.flush()


def main() -> int:
    """Speak on stdin and stdout; the exit code."""
    probe = Probe(Start.model_validate_json(sys.stdin.readline()))
    say(End(**asdict(probe.links.endpoint)))
    line = sys.stdin.readline()
    if not line:  # whoever asked has changed its mind
        return 0
    say(probe.run(Links.model_validate_json(line)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
