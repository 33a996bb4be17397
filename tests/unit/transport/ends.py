"""Two linked stages in one process, over either wire, and bounded waiting for what they do."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.unit.transport.splice import Splice
from transport.direct import LinkOptions, PipelineLinks
from transport.frames import Direction, Frame, Header, Kind
from transport.link import Link, LinkName, poller_of
from transport.loopback import Line
from transport.orders import Links, Neighbour

JOB = "j-aaaabbbb"


@dataclass
class Ends:
    """The link of stage 0 to stage 1 (near) and that of stage 1 to stage 0 (far)."""

    near: Link
    far: Link
    cut: Callable[[], None]
    """Break the connection, losing what is under way; it may come back only by `mend`."""
    mend: Callable[[], None]
    now: list[float] = field(default_factory=lambda: [0.0])
    """The clock of both; move it by hand."""

    def run_until(self, is_true: Callable[[], bool], timeout_s: float = 10) -> None:
        """Serve both links until it is true."""
        poller = poller_of([self.near, self.far])
        deadline = time.monotonic() + timeout_s
        while True:
            self.near.service()
            self.far.service()
            if is_true():
                return
            assert time.monotonic() < deadline, (self.near.failure, self.far.failure)
            poller.poll(50)


@contextmanager
def loopback_ends(attempts: tuple[int, int] = (1, 1)) -> Iterator[Ends]:
    line, now = Line(), [0.0]
    near, far = (
        Link(LinkName(JOB, attempts[end], end, 1 - end), line.ends[end], clock=lambda: now[0])
        for end in (0, 1)
    )
    yield Ends(near, far, line.cut, line.mend, now)
    near.close()
    far.close()


@contextmanager
def direct_ends(attempts: tuple[int, int] = (1, 1)) -> Iterator[Ends]:
    now = [0.0]
    options = LinkOptions(clock=lambda: now[0])
    near, far = (
        PipelineLinks.open(LinkName(JOB, attempts[end], end, end), 2, "127.0.0.1", options)
        for end in (0, 1)
    )
    splice = Splice(int(far.endpoint.endpoints[0].rsplit(":", 1)[1]))
    far.connect(Links(previous=neighbour(0, near), next=None))
    dialled = neighbour(1, far, [f"tcp://127.0.0.1:{splice.port}"])
    near.connect(Links(previous=None, next=dialled))
    assert near.next is not None
    assert far.previous is not None
    try:
        yield Ends(near.next, far.previous, lambda: splice.cut(for_good=True), splice.mend, now)
    finally:
        near.close(0)
        far.close(0)
        splice.close()


def neighbour(stage: int, links: PipelineLinks, endpoints: list[str] | None = None) -> Neighbour:
    """What the leader tells others of a stage."""
    return Neighbour(
        stage=stage,
        fellow_id="f-aaaaaaaa",
        public_key=links.endpoint.public_key,
        endpoints=links.endpoint.endpoints if endpoints is None else endpoints,
    )


def data(number: int) -> tuple[Header, bytes]:
    """A DATA frame that says its number."""
    header = Header(
        Kind.DATA, b"", 0, step=number, direction=Direction.FORWARD, dtype="uint8", shape=(64,)
    )
    return header, number.to_bytes(4, "little") * 16


def number_of(frame: Frame) -> int:
    """The number of a `data` frame, its content checked."""
    assert bytes(frame.payload) == data(frame.header.step)[1]
    return frame.header.step
