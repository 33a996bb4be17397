"""Large frames in pieces: whole at the other end, through cuts, and refused when they fit none."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.transport.ends import JOB, Ends, data, direct_ends, loopback_ends
from tests.unit.transport.test_links import MakeEnds
from transport.frames import (
    HEADER_BYTES,
    TAKES_PIECES,
    Direction,
    Frame,
    FrameRefused,
    Header,
    Kind,
    decode,
    encode,
    job_tag,
)
from transport.link import Link, LinkName
from transport.loopback import Line
from transport.pieces import PIECE_BYTES, FrameSizes, Puzzle, check_inner, in_pieces

LARGE = 3 * PIECE_BYTES + 17


@pytest.fixture(params=[loopback_ends, direct_ends], ids=["loopback", "direct"])
def make_ends(request: pytest.FixtureRequest) -> MakeEnds:
    make: MakeEnds = request.param
    return make


def large(seed: int, size: int = LARGE) -> tuple[Header, bytes]:
    header = Header(
        Kind.DATA, b"", 0, step=seed, direction=Direction.FORWARD, dtype="uint8", shape=(size,)
    )
    return header, random.Random(seed).randbytes(size)


def test_large_frames_arrive_whole_in_order_and_once_through_cuts(make_ends: MakeEnds) -> None:
    there: list[int] = []

    def take() -> int:
        while (frame := ends.far.receive()) is not None:
            seed = frame.header.step
            size = LARGE if seed % 2 else 64
            assert bytes(frame.payload) == large(seed, size)[1]
            there.append(seed)
        return len(there)

    with make_ends() as ends:
        ends.run_until(lambda: ends.near.is_up and ends.far.is_up)
        for seed in range(12):
            ends.near.send(*large(seed, LARGE if seed % 2 else 64))
            if seed in (3, 8):
                ends.run_until(lambda: take() > 0)
                ends.cut()
                ends.run_until(lambda: not ends.near.is_up)
                ends.mend()
        ends.run_until(lambda: take() == 12)
        assert there == list(range(12))
        assert ends.far.failure is None
        assert ends.near.counts.sent_bytes > 6 * LARGE


def of_pieces(line: Line) -> list[Kind]:
    """The kinds of the frames that wait at end 1."""
    events = [event for event in line.ends[1].events() if isinstance(event, bytearray)]
    return [decode(event, crc=True).header.kind for event in events]


@pytest.mark.parametrize(
    ("told", "kinds"),
    [(0, [Kind.DATA]), (TAKES_PIECES, 4 * [Kind.PIECE])],
    ids=["an older version", "this version"],
)
def test_only_a_neighbour_that_says_so_is_sent_pieces(told: int, kinds: list[Kind]) -> None:
    line = Line()
    near = Link(LinkName(JOB, 1, 0, 1), line.ends[0])
    hello = Header(Kind.HELLO, job_tag(JOB), 1, micro_batch=told)
    line.ends[1].send(encode(hello, crc=True))
    near.service()
    of_pieces(line)
    near.send(*large(1))
    assert of_pieces(line) == kinds


def pieces_of(sequence: int, size: int = LARGE, attempt: int = 1) -> list[bytearray]:
    header = replace(large(1, size)[0], job=job_tag(JOB), attempt=attempt, sequence=sequence)
    frame = encode(header, large(1, size)[1], crc=True)
    about = Header(Kind.PIECE, job_tag(JOB), attempt, sequence=sequence)
    return list(in_pieces(frame, about, crc=True))


def a_piece(payload: bytes, *, sequence: int = 0, offset: int = 0) -> bytearray:
    header = Header(
        Kind.PIECE, job_tag(JOB), 1, sequence=sequence, step=offset, dtype="uint8",
        shape=(len(payload),),
    )  # fmt: skip
    return encode(header, payload, crc=True)


def inner(**changes: object) -> bytes:
    header = replace(
        Header(Kind.DATA, job_tag(JOB), 1, direction=Direction.FORWARD, dtype="uint8", shape=(64,)),
        **changes,  # type: ignore[arg-type]
    )
    return bytes(encode(header, bytes(header.payload_bytes), crc=True))


@pytest.mark.parametrize(
    ("frames", "word"),
    [
        ([a_piece(bytes(71))], "holds no header"),
        ([a_piece(inner(shape=(5_000,))[:100])], "the plan allows 4096"),
        ([a_piece(inner() + b"x")], "pieces of more than"),
        ([a_piece(inner(sequence=1))], "another frame"),
        ([a_piece(inner(attempt=2))], "another frame"),
        ([a_piece(inner(kind=Kind.PAUSE, direction=Direction.NONE))], "another frame"),
        ([a_piece(bytes(HEADER_BYTES))], "start like a frame"),
        ([a_piece(inner(sequence=n), sequence=n) for n in range(17)], "unasked"),
    ],
    ids=["short", "large", "long", "number", "attempt", "kind", "zeros", "flood"],
)
def test_pieces_that_make_no_frame_of_the_plan_are_refused(
    frames: list[bytearray], word: str
) -> None:
    line = Line()
    far = Link(LinkName(JOB, 1, 1, 0), line.ends[1], sizes=FrameSizes(4096))
    for frame in frames:
        line.ends[0].send(frame)
    far.service()
    assert isinstance(far.failure, FrameRefused)
    assert word in far.failure.message


def test_a_missing_piece_is_asked_for_once_and_the_frame_comes_again() -> None:
    line = Line()
    far = Link(LinkName(JOB, 1, 1, 0), line.ends[1])
    first, _, third, fourth = pieces_of(0)
    for piece in (first, third, fourth):
        line.ends[0].send(piece)
    far.service()
    told = [decode(e, crc=True) for e in line.ends[0].events() if isinstance(e, bytearray)]
    assert [frame.header.kind for frame in told] == [Kind.HELLO]
    assert far.receive() is None
    for piece in pieces_of(0):
        line.ends[0].send(piece)
    far.service()
    frame = far.receive()
    assert frame is not None
    assert bytes(frame.payload) == large(1)[1]


def test_pieces_of_another_attempt_are_dropped_and_counted() -> None:
    line = Line()
    far = Link(LinkName(JOB, 1, 1, 0), line.ends[1])
    for piece in pieces_of(0, attempt=2):
        line.ends[0].send(piece)
    far.service()
    assert (far.counts.fenced_frames, far.receive(), far.failure) == (4, None, None)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=60))
def test_whatever_pieces_come_a_frame_is_made_of_all_of_its_own_in_order(
    come: list[tuple[int, int]],
) -> None:
    """Pieces of three frames, 10 bytes each, in any order and number: what is made is right."""
    wholes = [inner(sequence=n) for n in range(3)]
    puzzle, expected = Puzzle(), 0
    for number, piece in [*come, *((n, at) for n in range(3) for at in range(15))]:
        offset = 10 * piece if piece else 0
        header = Header(Kind.PIECE, job_tag(JOB), 1, sequence=number, step=offset)
        data_ = wholes[number][offset : offset + (10 if piece else 80)]
        puzzle.put(Frame(header, memoryview(data_)), expected)
        if (whole := puzzle.take()) is not None:
            frame = decode(whole, crc=True)
            check_inner(replace(header, sequence=expected), frame.header)
            assert bytes(whole) == wholes[expected]
            expected += 1
    assert expected == 3


def test_a_small_frame_crosses_as_it_always_did() -> None:
    with loopback_ends() as ends:
        run(ends)
        before = ends.near.counts.sent_bytes
        ends.near.send(*data(0))
        assert ends.near.counts.sent_bytes == before + HEADER_BYTES + 64


def run(ends: Ends) -> None:
    ends.run_until(lambda: ends.near.is_up and ends.far.is_up)
