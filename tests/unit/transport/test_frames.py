"""Frames: what is written is read back, everything else is refused, old bytes stay readable."""

import json
import struct
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.frames import (
    DTYPES,
    HEADER_BYTES,
    MAX_CONTROL_VALUES,
    MAX_PIECE_BYTES,
    MAX_REASON_BYTES,
    Direction,
    Frame,
    FrameRefused,
    Header,
    Kind,
    decode,
    encode,
    job_tag,
)

WIDTHS = dict(DTYPES)
U16, U32, U64 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)


def _shapes(kind: Kind) -> st.SearchStrategy[tuple[str, tuple[int, ...]]]:
    """dtype and shape that a frame of this kind may have."""
    if kind is Kind.DATA:
        dtypes = st.sampled_from([name for name, width in DTYPES if width])
        return st.tuples(dtypes, st.lists(st.integers(1, 5), max_size=4).map(tuple))
    if kind is Kind.CONTROL:
        return st.tuples(st.just("float64"), st.integers(1, MAX_CONTROL_VALUES).map(lambda n: (n,)))
    if kind is Kind.PIECE:
        return st.tuples(st.just("uint8"), st.integers(1, 2000).map(lambda n: (n,)))
    if kind is Kind.PAUSE:
        return st.tuples(st.just("uint8"), st.integers(1, MAX_REASON_BYTES).map(lambda n: (n,)))
    return st.just(("none", ()))


@st.composite
def headers(draw: st.DrawFn) -> Header:
    kind = draw(st.sampled_from(Kind))
    dtype, shape = draw(_shapes(kind))
    directions = [Direction.FORWARD, Direction.BACKWARD]
    return Header(
        kind=kind,
        job=draw(st.binary(min_size=8, max_size=8)),
        attempt=draw(U32),
        step=draw(U32),
        micro_batch=draw(U16),
        direction=draw(st.sampled_from(directions)),
        sequence=draw(U64),
        ack=draw(U64),
        dtype=dtype,
        shape=shape,
    )


@st.composite
def frames(draw: st.DrawFn) -> tuple[Header, bytes, bool]:
    header = draw(headers())
    size = prod(header.shape) * WIDTHS[header.dtype]
    return header, draw(st.binary(min_size=size, max_size=size)), draw(st.booleans())


@given(frames())
def test_what_is_written_is_read_back(written: tuple[Header, bytes, bool]) -> None:
    header, payload, crc = written
    frame = decode(encode(header, payload, crc=crc), crc=crc)
    assert (frame.header, bytes(frame.payload)) == (header, payload)


@given(frames(), st.data())
def test_a_changed_byte_is_refused_or_was_no_change(
    written: tuple[Header, bytes, bool], data: st.DataObject
) -> None:
    header, payload, _ = written
    raw = encode(header, payload, crc=True)
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FrameRefused):
        decode(raw, crc=True)


@given(frames(), st.data())
def test_bytes_that_no_checksum_protects_give_a_frame_or_a_refusal(
    written: tuple[Header, bytes, bool], data: st.DataObject
) -> None:
    raw = bytearray(encode(written[0], written[1], crc=False))
    for at in data.draw(st.lists(st.integers(0, HEADER_BYTES - 1), max_size=6)):
        raw[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    _frame_or_refusal(bytes(raw[: cut or len(raw)]))


@given(st.binary(max_size=300))
def test_any_bytes_give_a_frame_or_a_refusal(raw: bytes) -> None:
    _frame_or_refusal(raw)
    _frame_or_refusal(b"SWRM\x01" + raw)


def _frame_or_refusal(raw: bytes) -> None:
    try:
        frame = decode(raw, crc=False)
    except FrameRefused:
        return
    assert len(frame.payload) == frame.header.payload_bytes == len(raw) - HEADER_BYTES


def a_header(**changes: Any) -> Header:
    values: dict[str, Any] = {
        "kind": Kind.DATA,
        "job": job_tag("j-aaaabbbb"),
        "attempt": 1,
        "direction": Direction.FORWARD,
        "dtype": "float32",
        "shape": (2, 3),
    }
    return Header(**(values | changes))


def test_a_shape_of_exabytes_is_refused_without_allocating_them() -> None:
    raw = bytearray(encode(a_header(), bytes(24), crc=False))
    struct.pack_into("<4I", raw, 44, 2**32 - 1, 2**32 - 1, 0, 0)
    with pytest.raises(FrameRefused) as refusal:
        decode(raw, crc=False)
    assert str((2**32 - 1) ** 2 * 4) in refusal.value.reason


@pytest.mark.parametrize(
    ("offset", "value", "word"),
    [
        (0, 0, "start"),
        (4, 2, "protocol 2"),
        (5, 99, "kind"),
        (6, 3, "direction"),
        (7, len(DTYPES), "dtype"),
        (8, 5, "rank"),
        (9, 1, "padding"),
        (44, 0, "shape"),
        (60, 1, "header says"),
        (68, 1, "checksum"),
    ],
)
def test_each_wrong_field_is_named(offset: int, value: int, word: str) -> None:
    raw = encode(a_header(), bytes(24), crc=False)
    raw[offset] = value
    with pytest.raises(FrameRefused, match=word):
        decode(raw, crc=False)


@pytest.mark.parametrize(
    "header",
    [
        a_header(direction=Direction.NONE),
        a_header(kind=Kind.ACK),
        a_header(kind=Kind.HELLO),
        a_header(kind=Kind.PAUSE),
        a_header(kind=Kind.CONTROL),
        a_header(kind=Kind.CONTROL, dtype="float64", shape=(MAX_CONTROL_VALUES + 1,)),
        a_header(kind=Kind.PAUSE, dtype="uint8", shape=(MAX_REASON_BYTES + 1,)),
        a_header(kind=Kind.PIECE),
        a_header(kind=Kind.PIECE, dtype="uint8", shape=(MAX_PIECE_BYTES + 1,)),
    ],
)
def test_a_payload_that_its_kind_does_not_have_is_refused(header: Header) -> None:
    raw = encode(header, bytes(header.payload_bytes), crc=False)
    with pytest.raises(FrameRefused):
        decode(raw, crc=False)


def test_a_frame_with_a_checksum_where_none_belongs_is_refused() -> None:
    with pytest.raises(FrameRefused, match="checksum"):
        decode(encode(a_header(), bytes(24), crc=True), crc=False)


GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "frames_protocol_1.json"


def golden() -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return told


@pytest.mark.parametrize("kept", golden(), ids=lambda kept: kept["name"])
def test_frames_of_protocol_1_are_written_and_read_as_on_the_day_of_its_release(
    kept: dict[str, Any],
) -> None:
    told = kept["header"]
    header = Header(
        kind=Kind[told["kind"]],
        job=job_tag(told["job_id"]),
        direction=Direction[told["direction"]],
        shape=tuple(told["shape"]),
        **{name: told[name] for name in ("attempt", "step", "micro_batch")},
        **{name: told[name] for name in ("sequence", "ack", "dtype")},
    )
    payload = bytes.fromhex(kept["payload"])
    assert encode(header, payload, crc=kept["crc"]).hex() == kept["frame"]
    frame = decode(bytes.fromhex(kept["frame"]), crc=kept["crc"])
    assert frame == Frame(header, memoryview(payload))
