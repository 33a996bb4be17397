"""One frame: a fixed header and one payload, in one part.

Knows how a frame is written and which bytes are none. Does not know which frames a stage expects:
the process group compares dtype, shape and position with its plan. Nothing here unpickles.

Layout, little endian, 72 bytes: magic, version, kind, direction, dtype, rank, (pad), micro-batch,
attempt, step, job, sequence, ack, shape x 4, payload bytes, CRC-32 of everything else.
"""

import hashlib
import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import Final

from transport.cards import PROTOCOL
from transport.errors import SwarmError

Buffer = bytes | bytearray | memoryview

MAGIC: Final = b"SWRM"
_HEADER: Final = struct.Struct("<4sBBBBBxHII8sQQ4IQI")
HEADER_BYTES: Final = _HEADER.size
MAX_RANK: Final = 4
VOTE: Final = 0xFFFF
"""The micro-batch number of the engine's static-shape vote, which belongs to no micro-batch."""
BASIS: Final = 0xFFFE
"""The micro-batch number of what a codec is calibrated to, sent once before the first step."""
MAX_CONTROL_VALUES: Final = 64
MAX_REASON_BYTES: Final = 500
MAX_PIECE_BYTES: Final = 1 << 20
TAKES_PIECES: Final = 1
"""The micro-batch number of a HELLO whose sender takes large frames in pieces. Versions before
that say 0 there, and read nothing from it.
"""
_CRC_AT: Final = HEADER_BYTES - 4
_CLAIMED: Final = struct.Struct("<Q")

# Index = code on the wire; width in bytes. Append only: golden frames keep each release's codes.
DTYPES: Final = (
    ("none", 0),
    ("float32", 4),
    ("bfloat16", 2),
    ("float16", 2),
    ("int8", 1),
    ("int32", 4),
    ("float64", 8),
    ("uint8", 1),
    ("int64", 8),
)
_CODES: Final = {name: code for code, (name, _) in enumerate(DTYPES)}


class Kind(IntEnum):
    """What a frame is for. DATA and CONTROL are numbered and sent again until they arrive.

    A PIECE holds bytes of such a frame: `sequence` is that frame's, `step` the place in it.
    """

    DATA = 1
    ACK = 2
    HELLO = 3
    PAUSE = 4
    CONTROL = 5
    BYE = 6
    PIECE = 7


class Direction(IntEnum):
    """Which way the pipeline it flows: activations forward, gradients backward."""

    NONE = 0
    FORWARD = 1
    BACKWARD = 2


class FrameRefused(SwarmError):
    """Bytes from a neighbour that are no frame, or a frame that the plan does not announce."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            "stage-failed",
            f"a neighbour's frame was refused: {reason}",
            hint="run the same version of Swarm on every fellow; if it is, one of them misbehaves",
            facts={"refused": reason},
        )
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Header:
    """All of a frame but its payload.

    `ack` tells how many frames of the other side this one has used up; in a HELLO, how many
    arrived (and `sequence` then tells how many it has used up).
    """

    kind: Kind
    job: bytes
    """`job_tag` of the job's id: 8 bytes."""
    attempt: int
    step: int = 0
    micro_batch: int = 0
    direction: Direction = Direction.NONE
    sequence: int = 0
    ack: int = 0
    dtype: str = "none"
    shape: tuple[int, ...] = ()

    @property
    def payload_bytes(self) -> int:
        """Bytes that dtype and shape ask for."""
        return prod(self.shape) * DTYPES[_CODES[self.dtype]][1]


@dataclass(frozen=True, slots=True)
class Frame:
    """A decoded frame. The payload is a view of the received bytes, not a copy."""

    header: Header
    payload: memoryview


def job_tag(job_id: str) -> bytes:
    """The 8 bytes by which frames name their job."""
    return hashlib.blake2b(job_id.encode(), digest_size=8).digest()


def encode(header: Header, payload: Buffer = b"", *, crc: bool) -> bytearray:
    """Write a frame; the payload is copied once.

    crc: protect the frame by a CRC-32. Off under CURVE, whose Poly1305 already does (the field
    is then 0).
    """
    body = memoryview(payload).cast("B") if len(payload) else b""
    assert len(body) == header.payload_bytes, (len(body), header)
    frame = bytearray(HEADER_BYTES + len(body))
    shape = header.shape + (0,) * (MAX_RANK - len(header.shape))
    _HEADER.pack_into(
        frame, 0, MAGIC, PROTOCOL, header.kind, header.direction, _CODES[header.dtype],
        len(header.shape), header.micro_batch, header.attempt, header.step, header.job,
        header.sequence, header.ack, *shape, len(body), 0,
    )  # fmt: skip
    frame[HEADER_BYTES:] = body
    if crc:
        struct.pack_into("<I", frame, _CRC_AT, _crc(frame))
    return frame


def decode(data: Buffer, *, crc: bool) -> Frame:
    """Read a frame, allocating nothing of the size that it claims.

    Raises:
        FrameRefused: for any bytes that `encode` with the same `crc` would not have written.
    """
    view = memoryview(data).cast("B")
    if len(view) < HEADER_BYTES:
        raise FrameRefused(f"{len(view)} bytes are shorter than a header of {HEADER_BYTES}")
    magic, version, *rest, claimed, told_crc = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise FrameRefused("it does not start like a frame")
    if version != PROTOCOL:
        raise FrameRefused(f"it speaks protocol {version}, this stage speaks {PROTOCOL}")
    if view[9]:
        raise FrameRefused("its padding is not empty")
    header = _header(rest)
    payload = view[HEADER_BYTES:]
    if not claimed == header.payload_bytes == len(payload):
        raise FrameRefused(
            f"{header.dtype}{list(header.shape)} has {header.payload_bytes} bytes, "
            f"the header says {claimed}, {len(payload)} came"
        )
    if told_crc != (_crc(view) if crc else 0):
        raise FrameRefused("its checksum is wrong")
    _check_form(header)
    return Frame(header, payload)


def claimed_bytes(start: Buffer) -> int:
    """The payload's size that an encoded frame claims: of its first 72 bytes or more."""
    (size,) = _CLAIMED.unpack_from(start, _CRC_AT - _CLAIMED.size)
    assert isinstance(size, int)
    return size


def _header(fields: list[int | bytes]) -> Header:
    """The header of unpacked fields kind .. shape; refuses unknown codes."""
    kind, direction, dtype, rank, micro_batch, attempt, step, job, sequence, ack, *shape = fields
    try:
        known = Kind(int(kind)), Direction(int(direction))
        name = DTYPES[int(dtype)][0]
    except (ValueError, IndexError):
        raise FrameRefused(
            f"unknown kind {kind!r}, direction {direction!r} or dtype {dtype!r}"
        ) from None
    dims = tuple(int(dim) for dim in shape)
    if int(rank) > MAX_RANK or any(dims[int(rank) :]) or 0 in dims[: int(rank)]:
        raise FrameRefused(f"its shape {list(dims)} has rank {rank!r}")
    assert isinstance(job, bytes)
    return Header(
        kind=known[0], job=job, attempt=int(attempt), step=int(step),
        micro_batch=int(micro_batch), direction=known[1], sequence=int(sequence), ack=int(ack),
        dtype=name, shape=dims[: int(rank)],
    )  # fmt: skip


def _check_form(header: Header) -> None:
    """Refuse a payload that frames of this kind do not have."""
    form = (header.dtype, len(header.shape))
    match header.kind:
        case Kind.DATA:
            is_right = header.dtype != "none" and header.direction is not Direction.NONE
        case Kind.CONTROL:
            is_right = form == ("float64", 1) and header.shape[0] <= MAX_CONTROL_VALUES
        case Kind.PAUSE:
            is_right = form == ("none", 0) or (
                form == ("uint8", 1) and header.shape[0] <= MAX_REASON_BYTES
            )
        case Kind.PIECE:
            is_right = form == ("uint8", 1) and header.shape[0] <= MAX_PIECE_BYTES
        case _:
            is_right = form == ("none", 0)
    if not is_right:
        raise FrameRefused(
            f"a {header.kind.name} frame does not carry {header.dtype}{list(header.shape)}"
        )


def _crc(frame: Buffer) -> int:
    """CRC-32 of header and payload without the field that holds it."""
    view = memoryview(frame)
    return zlib.crc32(view[HEADER_BYTES:], zlib.crc32(view[:_CRC_AT]))
