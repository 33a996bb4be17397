"""A large frame in pieces: one is encrypted while the one before it is on the line.

CURVE encrypts a message whole before its first byte leaves, and decrypts it whole when its last
byte has come: 8 MB in one message wait twice for that. In pieces only the first and the last one
do. Pieces stand below the numbers of go-back-N: a frame counts once its last piece has come, and
after a broken connection it is sent again from its first.

A stage sends pieces only to a neighbour whose HELLO says that it takes them, so an older version
gets whole frames. Pure: no socket, no clock.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from transport.frames import (
    HEADER_BYTES,
    MAX_PIECE_BYTES,
    Direction,
    Frame,
    FrameRefused,
    Header,
    Kind,
    claimed_bytes,
    encode,
)

PIECE_BYTES: Final = 256 * 1024
"""A larger frame goes in pieces of this size, their headers included."""
MAX_FRAME_BYTES: Final = HEADER_BYTES + 1_000_000_000
assert PIECE_BYTES <= MAX_PIECE_BYTES


@dataclass(frozen=True, slots=True)
class FrameSizes:
    """Of one link's frames."""

    largest_bytes: int = MAX_FRAME_BYTES
    """That the neighbour may send, in pieces or whole."""
    piece_bytes: int = PIECE_BYTES
    """Larger frames are sent in pieces of this size."""


def in_pieces(
    frame: bytearray, about: Header, piece_bytes: int = PIECE_BYTES, *, crc: bool
) -> Iterator[bytearray]:
    """The frame as PIECE frames, in order.

    Args:
        frame: encoded.
        about: job, attempt, and the frame's sequence; ack: of this moment.
    """
    whole = memoryview(frame)
    size = piece_bytes - HEADER_BYTES
    for offset in range(0, len(frame), size):
        piece = whole[offset : offset + size]
        header = replace(
            about, kind=Kind.PIECE, step=offset, direction=Direction.NONE, dtype="uint8",
            shape=(len(piece),),
        )  # fmt: skip
        yield encode(header, piece, crc=crc)


@dataclass(slots=True)
class Puzzle:
    """The next frame of a link, as far as its pieces have come.

    One is enough: frames come in order on every connection, so pieces of a later one come only
    when something was lost, and then all are sent again.
    """

    limit_bytes: int = MAX_FRAME_BYTES
    sequence: int = -1
    total_bytes: int = 0
    come: bytearray = field(default_factory=bytearray)

    def put(self, piece: Frame, expected: int) -> bool:
        """Take a piece of frame `expected`. Those that came before are passed over.

        Returns:
            Whether it fits: False when it is of a later frame, or one before it is missing.

        Raises:
            FrameRefused: it begins a frame that is larger than the plan allows, or is too long.
        """
        header, data = piece.header, piece.payload
        if header.sequence < expected:
            return True
        if self.sequence != expected:
            self.sequence, self.total_bytes, self.come = expected, 0, bytearray()
        offset, has = header.step, len(self.come)
        if header.sequence > expected or offset > has:
            return False
        if not has:
            self.total_bytes = self._size_of(data)
        self.come += data[has - offset :]
        if len(self.come) > self.total_bytes:
            raise FrameRefused(f"pieces of more than {self.total_bytes} bytes came for one frame")
        return True

    def take(self) -> bytearray | None:
        """The frame's bytes when all have come, once."""
        if not self.come or len(self.come) < self.total_bytes:
            return None
        whole, self.come, self.sequence = self.come, bytearray(), -1
        return whole

    def _size_of(self, start: memoryview) -> int:
        if len(start) < HEADER_BYTES:
            raise FrameRefused(f"its first piece of {len(start)} bytes holds no header")
        size = HEADER_BYTES + claimed_bytes(start)
        if size > self.limit_bytes:
            raise FrameRefused(f"it says it has {size} bytes, the plan allows {self.limit_bytes}")
        return size


def check_inner(outer: Header, inner: Header) -> None:
    """Refuse a frame of pieces that could not have come whole.

    Raises:
        FrameRefused: it is not numbered, or says another number, job or attempt than its pieces.
    """
    named = (outer.sequence, outer.job, outer.attempt)
    is_numbered = inner.kind in (Kind.DATA, Kind.CONTROL)
    if not is_numbered or (inner.sequence, inner.job, inner.attempt) != named:
        raise FrameRefused("pieces hold another frame than they say")
