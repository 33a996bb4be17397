"""A link: numbered frames between two neighbouring stages, in order, each exactly once.

`wire.Wire` is the port: something that carries messages and may lose them when its connection
breaks (`zmq_wire.ZmqWire` over ZeroMQ, `loopback.LoopbackWire` in memory). `Link` puts go-back-N
on top: one mechanism for reconnects of any cause, and for moving from one wire to a better one in
the middle of a run. Large frames cross in pieces. Knows nothing of tensors, steps or plans, nor
where a neighbour is reached.

One thread owns a link and calls everything here. Use it so:
    link.send(Header fields ...)   # queued at once; transmitted within a window of 16 frames
    link.service()                 # take what came, send what is due, notice failures
    link.receive()                 # next frame in order, or None
    link.failure                   # set once, for good
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

import zmq

from transport.errors import SwarmError
from transport.frames import (
    HEADER_BYTES,
    MAX_REASON_BYTES,
    TAKES_PIECES,
    Buffer,
    Frame,
    Header,
    Kind,
    decode,
    encode,
    job_tag,
)
from transport.go_back_n import GoBackN
from transport.pieces import FrameSizes, Puzzle, check_inner, in_pieces
from transport.wire import Change, Path, Pollable, Upkeep, Wire

ACK_AFTER_FRAMES: Final = 4
MAX_BREAKS_WITHOUT_PROGRESS: Final = 20
LINGER_S: Final = 0.5
FAREWELL_S: Final = 0.3
FRAME_SIZES: Final = FrameSizes()


class LinkFailed(SwarmError):
    """A neighbour stopped, went away or stayed silent. facts["echo"]: it said so itself."""

    def __init__(self, message: str, *, echo: bool = False, hint: str = "") -> None:
        super().__init__("stage-failed", message, hint=hint, facts={"echo": echo})


@dataclass(frozen=True, slots=True)
class LinkName:
    """Which link this is. Frames of another job or attempt are dropped and counted."""

    job_id: str
    attempt: int
    stage: int
    neighbour: int


@dataclass(slots=True)
class LinkCounts:
    """What happened on a link so far. Bytes are whole frames, resent ones included."""

    sent_bytes: int = 0
    received_bytes: int = 0
    sent_frames: int = 0
    resent_frames: int = 0
    duplicate_frames: int = 0
    gap_frames: int = 0
    fenced_frames: int = 0
    connections: int = 0
    breaks: int = 0
    switches: int = 0
    """How often the frames moved to another wire."""


class Link:
    """Frames to and from one neighbour over one wire, or the best of several.

    Args:
        name: job, attempt and the two stages.
        wire: owned from now on; None when `add` brings the first one.
        reconnect_grace_s: how long a broken connection may take to come back.
        sizes: of the frames that come, and of the pieces that go.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        name: LinkName,
        wire: Wire | None,
        *,
        reconnect_grace_s: float = 5.0,
        sizes: FrameSizes = FRAME_SIZES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.counts = LinkCounts()
        self.failure: SwarmError | None = None
        self.has_left = False
        """The neighbour closed in order: nothing more will come."""
        self.is_up = False
        self.upkeep: Upkeep | None = None
        self.version = 0
        """Rises whenever `pollables` are others."""
        self._paths: list[Path] = []
        self._active: Path | None = None
        self._crc = wire is not None and wire.needs_crc
        self._grace_s = reconnect_grace_s
        self._clock = clock
        self._core = GoBackN()
        self._puzzle = Puzzle(sizes.largest_bytes)
        self._piece_bytes = sizes.piece_bytes
        self._takes_pieces = False  # until the neighbour says so
        self._job = job_tag(name.job_id)
        self._down_since: float | None = None
        self._breaks_in_a_row = 0
        self._acked = 0
        self._gap_told = -1
        self._owed: dict[Kind, None] = {}
        self._is_closed = False
        if wire is not None:
            self.add(wire)

    @property
    def pollables(self) -> list[Pollable]:
        """Wait on these, then call `service`."""
        more = self.upkeep.pollables if self.upkeep is not None else []
        return [*(one for path in self._paths for one in path.wire.pollables), *more]

    @property
    def trouble(self) -> str:
        """Why the neighbour is not connected, as far as known."""
        if self.is_up:
            return ""
        told = (path.wire.trouble for path in self._paths if path.wire.trouble)
        return "; ".join(dict.fromkeys(told))

    @property
    def active(self) -> Path | None:
        """The path that frames are sent on, whether or not it is up."""
        return self._active

    def add(self, wire: Wire, rank: int = 0) -> Path:
        """Take another wire to the same neighbour; it is used once it is up and the best."""
        assert wire.needs_crc == self._crc, "frames are written once, for every wire"
        path = Path(wire, rank)
        self._paths.append(path)
        self._active = self._active or path
        self.version += 1
        return path

    def remove(self, path: Path) -> None:
        """Close a wire. What was lost with it goes again on the one that is left."""
        self._paths.remove(path)
        path.is_up = False
        self.version += 1
        path.wire.close(LINGER_S)
        self._choose()
        if path is self._active:
            self._active = self._paths[0] if self._paths else None
            self._core.rewind()

    @property
    def expected(self) -> int:
        """The number of the next frame that `receive` gives."""
        return self._core.used

    @property
    def unconfirmed(self) -> int:
        """Frames that the neighbour has not confirmed."""
        return len(self._core.kept)

    def send(self, header: Header, payload: Buffer = b"") -> int:
        """Queue a DATA or CONTROL frame and send what the window lets out. Never waits.

        header: job, attempt, sequence and ack are filled in here.

        Returns:
            The frame's number, for `is_clear`.
        """
        core = self._core
        numbered = replace(
            header,
            job=self._job,
            attempt=self.name.attempt,
            sequence=core.next,
            ack=core.used,
        )
        sequence = core.keep(encode(numbered, payload, crc=self._crc))
        self._guarded(self._pump)
        return sequence

    def is_clear(self, sequence: int) -> bool:
        """Whether no more than a window of frames up to this one is waiting to be used."""
        return self._core.is_clear(sequence)

    def receive(self) -> Frame | None:
        """The next frame in order, or None when it has not come (call `service` to look)."""
        core = self._core
        if not core.inbox:
            return None
        frame = core.inbox.popleft()
        if core.used - self._acked >= ACK_AFTER_FRAMES:
            self.acknowledge()
        return frame

    def acknowledge(self) -> None:
        """Tell the neighbour now what was used up; call it before waiting long."""
        if self._core.used > self._acked:
            self._owe(Kind.ACK)
            self._acked = self._core.used
            self._guarded(self._pump)

    def service(self) -> None:
        """Take what arrived, send what is due, notice failures. Never waits, never raises."""
        self._guarded(self._service)

    def pause(self, reason: str) -> None:
        """Tell the neighbour that this stage stops, with the reason. At once, past the window."""
        text = reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore").encode()
        header = Header(Kind.PAUSE, self._job, self.name.attempt)
        if text:
            header = replace(header, dtype="uint8", shape=(len(text),))
        if not self._is_closed:
            self._transmit(encode(header, text, crc=self._crc))

    def close(self, drain_s: float = 0.0) -> None:
        """Wait up to drain_s until the neighbour has confirmed everything, say goodbye, close.

        Takes at most drain_s and, for the goodbye to be heard, 0.3 s.
        """
        if self._is_closed:
            return
        self._serve_while(lambda: self.unconfirmed > 0 and not self.has_left, drain_s)
        self.acknowledge()
        if self.failure is None:
            self._owe(Kind.BYE)
            self._guarded(self._pump)
            # A connection that is closed over unread bytes takes the goodbye along.
            self._serve_while(lambda: self.is_up and not self.has_left, min(drain_s, FAREWELL_S))
        self._is_closed = True
        if self.upkeep is not None:
            self.upkeep.close()
        for path in self._paths:
            path.wire.close(LINGER_S)

    def _serve_while(self, is_needed: Callable[[], bool], limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while is_needed() and self.failure is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return
            poller_of([self]).poll(round(min(left_s, 0.1) * 1000) + 1)
            self.service()

    def _guarded(self, action: Callable[[], None]) -> None:
        if self.failure is not None or self._is_closed:
            return
        try:
            action()
        except SwarmError as error:
            self.failure = error
        except zmq.ZMQError as error:
            self.failure = LinkFailed(f"the link to stage {self.name.neighbour} broke: {error}")

    def _service(self) -> None:
        if self.upkeep is not None:
            self.upkeep.tick()
        for path in list(self._paths):
            for event in path.wire.events():
                if isinstance(event, Change):
                    self._on_change(path, event)
                else:
                    path.is_heard = True
                    self._on_bytes(event)
        self._check_grace()
        self._pump()

    def _on_change(self, path: Path, change: Change) -> None:
        path.owes_hello = True
        path.is_heard = False
        path.is_up = change.is_up
        self._gap_told = -1
        if change.is_up:
            self.counts.connections += 1
            self._choose()
            self._down_since = None
            return
        self.counts.breaks += 1
        if path is self._active:
            self._on_break()
        self._choose()
        if not self.is_up and self._down_since is None:
            self._down_since = self._clock()

    def _on_break(self) -> None:
        # A bound socket may have a second, newer connection: what went into the broken one is
        # asked for by nobody, so send it again here.
        self._core.rewind()
        self._breaks_in_a_row += 1
        if self._breaks_in_a_row > MAX_BREAKS_WITHOUT_PROGRESS and not self.has_left:
            raise LinkFailed(
                f"the connection to stage {self.name.neighbour} broke {self._breaks_in_a_row} "
                "times without a frame getting through",
                hint="look at the network between the two fellows and at the other stage's log",
            )

    def _choose(self) -> None:
        """Send on the best path that is up: all that is not confirmed goes again there."""
        best = min((path for path in self._paths if path.is_up), key=_rank, default=None)
        self.is_up = best is not None
        if best is not None and best is not self._active:
            self._active = best
            self.counts.switches += 1
            self._core.rewind()

    def _check_grace(self) -> None:
        if self._down_since is None or self.has_left:
            return
        if self._clock() - self._down_since >= self._grace_s:
            raise LinkFailed(
                f"the connection to stage {self.name.neighbour} closed and did not come back "
                f"within {self._grace_s:g} s",
                hint="its worker or its fellow is gone, or the network between them is",
            )

    def _on_bytes(self, data: Buffer) -> None:
        self.counts.received_bytes += len(data)
        frame = decode(data, crc=self._crc)
        header = frame.header
        if header.job != self._job or header.attempt != self.name.attempt:
            self.counts.fenced_frames += 1
            return
        match header.kind:
            case Kind.DATA | Kind.CONTROL:
                self._core.acknowledge(header.ack)
                self._on_numbered(frame)
            case Kind.PIECE:
                self._core.acknowledge(header.ack)
                self._on_piece(frame)
            case Kind.ACK:
                self._core.acknowledge(header.ack)
            case Kind.HELLO:
                self._takes_pieces = header.micro_batch == TAKES_PIECES
                self._core.rewind(header.ack)
                self._core.acknowledge(header.sequence)
                self._owe(Kind.ACK)  # tells the other side that this path works
            case Kind.PAUSE:
                raise LinkFailed(_stopped(self.name.neighbour, frame.payload), echo=True)
            case Kind.BYE:
                if not self.has_left:
                    self._owe(Kind.BYE)  # tells the other side that it was heard
                self.has_left = True

    def _on_numbered(self, frame: Frame) -> None:
        if self._core.accept(frame):
            self._breaks_in_a_row = 0
        elif frame.header.sequence < self._core.expected:
            self.counts.duplicate_frames += 1
        else:
            self._on_gap()

    def _on_piece(self, piece: Frame) -> None:
        core, header = self._core, piece.header
        if header.sequence < core.expected:
            self.counts.duplicate_frames += header.step == 0
            return
        if header.sequence == core.expected:
            core.check_room()
        if not self._puzzle.put(piece, core.expected):
            self._on_gap()
        elif (whole := self._puzzle.take()) is not None:
            frame = decode(whole, crc=self._crc)
            check_inner(header, frame.header)
            self._on_numbered(frame)

    def _on_gap(self) -> None:
        self.counts.gap_frames += 1
        # Ask once for each missing frame: every later one is a gap too until it comes.
        if self._gap_told != self._core.expected:
            self._gap_told = self._core.expected
            if self._active is not None:
                self._active.owes_hello = True

    def _owe(self, kind: Kind) -> None:
        self._owed[kind] = None

    def _pump(self) -> None:
        """Send what is owed until the wire takes no more."""
        core = self._core
        for path in self._paths:
            if path.owes_hello and self._transmit(self._hello(), path):
                path.owes_hello = False
        if self._active is None or self._active.owes_hello:
            return
        while (frame := core.due()) is not None and self._transmit_numbered(frame):
            self.counts.resent_frames += core.mark_transmitted()
        for kind in list(self._owed):
            header = Header(kind, self._job, self.name.attempt, ack=core.used)
            if not self._transmit(encode(header, crc=self._crc)):
                return
            del self._owed[kind]

    def _hello(self) -> bytearray:
        core = self._core
        header = Header(
            Kind.HELLO, self._job, self.name.attempt, micro_batch=TAKES_PIECES,
            sequence=core.used, ack=core.expected,
        )  # fmt: skip
        return encode(header, crc=self._crc)

    def _transmit_numbered(self, frame: bytearray) -> bool:
        """Send the frame that is due, in pieces when it is large and the neighbour takes them."""
        if not self._takes_pieces or len(frame) <= self._piece_bytes:
            return self._transmit(frame)
        core = self._core
        about = Header(
            Kind.PIECE, self._job, self.name.attempt, sequence=core.to_transmit, ack=core.used
        )
        # A connection that goes meanwhile takes the first pieces along: all come again after it.
        pieces = in_pieces(frame, about, self._piece_bytes, crc=self._crc)
        return all(self._transmit(piece) for piece in pieces)

    def _transmit(self, frame: bytearray, path: Path | None = None) -> bool:
        path = path or self._active
        if path is None or not path.wire.send(frame):
            return False
        self.counts.sent_bytes += len(frame)
        self.counts.sent_frames += 1
        return True


def _rank(path: Path) -> int:
    return path.rank


def poller_of(links: Iterable[Link], *more: int) -> zmq.Poller:
    """A poller that wakes when any of the links, or another file descriptor, has something."""
    poller = zmq.Poller()
    for link in links:
        for pollable in link.pollables:
            poller.register(pollable, zmq.POLLIN)
    for fd in more:
        poller.register(fd, zmq.POLLIN)
    return poller


def _stopped(stage: int, reason: memoryview) -> str:
    """What a neighbour's PAUSE says; its text is untrusted: printable characters only."""
    text = "".join(c if c.isprintable() else " " for c in bytes(reason).decode(errors="replace"))
    return f"stage {stage} stopped" + (f": {text.strip()}" if text.strip() else "")


assert HEADER_BYTES == 72  # golden frames and MAXMSGSIZE stand on it
