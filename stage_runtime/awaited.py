"""What the process group waits for: frames that are due from a neighbour, and torch's works.

Knows what the next frame must be and says so in words. Does not move frames.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

import torch.distributed as dist

from stage_runtime.codecs.crossing import PLAIN, Crossing
from transport.frames import BASIS, VOTE, Direction, Header, Kind
from transport.link import Link, LinkFailed


@dataclass(eq=False)
class Awaited:
    """A frame that must come next from a peer, and what to do with its payload."""

    expected: Header
    take: Callable[[memoryview], None]
    is_done: bool = False


@dataclass(eq=False)
class Peer:
    """A neighbour: its link, what was asked of it, and where in the step both directions are."""

    link: Link
    stage: int
    inward: Direction
    outward: Direction
    awaited: deque[Awaited] = field(default_factory=deque)
    num_received: int = 0
    """Micro-batches whose recv was posted in this step."""
    num_sent: int = 0
    crossing: Crossing = PLAIN
    sent_bytes: int = 0
    """Payloads of activations and gradients, each frame once, from the first step on."""
    received_bytes: int = 0
    before_bytes: int = 0
    """Both ways before that: a base evaluation, and what codes are calibrated on and with."""

    def count(self, size: int, *, sent: bool, step: int) -> None:
        """A frame of this step has gone or come."""
        if step == 0:
            self.before_bytes += size
        elif sent:
            self.sent_bytes += size
        else:
            self.received_bytes += size


class NeighbourLinks(Protocol):
    """The links of a stage: `transport.direct.PipelineLinks`, or loopback ones in tests."""

    previous: Link | None
    next: Link | None

    def close(self, drain_s: float = 2.0) -> None:
        """Close both, giving each up to drain_s to deliver."""


class Waiting(Protocol):
    """What a work needs of its group."""

    def wait_until(
        self, is_done: Callable[[], bool], peer: "Peer", what: Callable[[], str]
    ) -> bool:
        """Serve the links until is_done, or raise."""


class SendWork(dist.Work):
    """A queued frame. Done once it is inside the window, whatever the peer computes."""

    def __init__(self, group: Waiting, peer: Peer, sequence: int) -> None:
        super().__init__()
        self._group, self._peer, self._sequence = group, peer, sequence

    def is_completed(self) -> bool:
        return self._peer.link.is_clear(self._sequence)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """True, or raises SwarmError. `timeout` is ignored: the job's link_timeout_s holds."""
        what = f"room to send frame {self._sequence}"
        return self._group.wait_until(self.is_completed, self._peer, lambda: what)


class RecvWork(dist.Work):
    """A posted receive."""

    def __init__(self, group: Waiting, peer: Peer, awaited: Awaited) -> None:
        super().__init__()
        self._group, self._peer, self._awaited = group, peer, awaited

    def is_completed(self) -> bool:
        return self._awaited.is_done

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """True, or raises SwarmError. `timeout` is ignored: the job's link_timeout_s holds."""
        return self._group.wait_until(
            self.is_completed, self._peer, lambda: describe(self._peer, self._awaited.expected)
        )


def difference(header: Header, expected: Header) -> str:
    """How a frame differs from the one that is due; "" when it does not."""

    def told(h: Header) -> tuple[Any, ...]:
        return (h.kind, h.direction, h.step, h.micro_batch, h.dtype, h.shape)

    if told(header) == told(expected):
        return ""
    return (
        f"{header.kind.name} {header.direction.name} {header.dtype}{list(header.shape)} "
        f"(step {header.step}, micro-batch {header.micro_batch})"
    )


def describe(peer: Peer, header: Header) -> str:
    """A frame in words: "the gradients of micro-batch 2 of step 5 (float32[2, 128, 384])"."""
    if header.kind is Kind.CONTROL:
        what = "the sums"
    elif header.micro_batch == VOTE:
        what = "the shape vote"
    elif header.micro_batch == BASIS:
        what = "the basis of the codes"
    else:
        name = "activations" if header.direction is Direction.FORWARD else "gradients"
        what = f"the {name} of micro-batch {header.micro_batch}"
    return f"{what} of step {header.step} ({header.dtype}{list(header.shape)})"


def too_late(peer: Peer, what: str, start: float, began_at: datetime) -> LinkFailed:
    """The failure of a wait that began at `start` (monotonic) and `began_at`."""
    link = peer.link
    state = "connected" if link.is_up else f"not connected ({link.trouble or 'no contact yet'})"
    return LinkFailed(
        f"waited {time.monotonic() - start:.1f} s, since {began_at:%H:%M:%S} UTC, for {what} "
        f"from stage {peer.stage}, next frame {link.expected}; it is {state}",
        hint="see that stage's log; if it is only slow, raise link_timeout_s",
    )
