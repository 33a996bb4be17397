"""Links: in order, exactly once, through cuts; bounded; fenced; stopped. Both wires alike."""

import random
import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Protocol

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.transport.ends import (
    JOB,
    Ends,
    data,
    direct_ends,
    loopback_ends,
    neighbour,
    number_of,
)
from transport.direct import LinkOptions, PipelineLinks
from transport.errors import SwarmError
from transport.frames import Header, Kind, decode, encode, job_tag
from transport.go_back_n import WINDOW_FRAMES, GoBackN
from transport.link import Link, LinkFailed, LinkName
from transport.loopback import Line
from transport.orders import Links
from transport.zap import dial_socket


class MakeEnds(Protocol):
    def __call__(self, attempts: tuple[int, int] = (1, 1)) -> AbstractContextManager[Ends]: ...


@pytest.fixture(params=[loopback_ends, direct_ends], ids=["loopback", "direct"])
def make_ends(request: pytest.FixtureRequest) -> MakeEnds:
    make: MakeEnds = request.param
    return make


@pytest.fixture
def ends(make_ends: MakeEnds) -> Iterator[Ends]:
    with make_ends() as both:
        yield both


def take_all(link: Link, into: list[int]) -> None:
    while (frame := link.receive()) is not None:
        into.append(number_of(frame))


def test_frames_go_both_ways_in_order(ends: Ends) -> None:
    there: list[int] = []
    back: list[int] = []

    def is_all_there() -> bool:
        take_all(ends.far, there)
        take_all(ends.near, back)
        return len(there) == len(back) == 10

    for number in range(10):
        ends.near.send(*data(number))
        ends.far.send(*data(100 + number))
    ends.run_until(is_all_there)
    assert (there, back) == (list(range(10)), list(range(100, 110)))
    sent, received = ends.near.counts.sent_bytes, ends.far.counts.received_bytes
    assert sent >= received >= 10 * (72 + 64)


def test_frames_arrive_exactly_once_through_many_cuts(ends: Ends) -> None:
    dice = random.Random(7)
    there: list[int] = []
    back: list[int] = []
    wanted = list(range(60))
    for goal in range(10, 61, 10):
        for number in range(goal - 10, goal):
            ends.near.send(*data(number))
            ends.far.send(*data(number))
        cut_at = goal - dice.randint(1, 9)

        def has(count: int) -> bool:
            take_all(ends.far, there)
            take_all(ends.near, back)
            return min(len(there), len(back)) >= count

        ends.run_until(lambda: has(cut_at))  # noqa: B023 (called before the next round)
        ends.cut()
        ends.run_until(lambda: not ends.near.is_up)
        ends.mend()
        ends.run_until(lambda: has(goal))  # noqa: B023
    assert (there, back) == (wanted, wanted)
    assert ends.near.counts.breaks >= 6
    assert ends.near.counts.connections >= 6


def test_a_sender_waits_for_a_slow_consumer_after_a_window_of_frames(ends: Ends) -> None:
    numbers = [ends.near.send(*data(number)) for number in range(3 * WINDOW_FRAMES)]
    full = WINDOW_FRAMES * (72 + 64)
    ends.run_until(lambda: ends.far.counts.received_bytes >= full)
    ends.run_until(lambda: True)
    assert [ends.near.is_clear(n) for n in numbers] == [n < WINDOW_FRAMES for n in numbers]

    there: list[int] = []

    def is_all_there() -> bool:
        take_all(ends.far, there)
        return len(there) == 3 * WINDOW_FRAMES

    ends.run_until(is_all_there)
    assert there == list(range(3 * WINDOW_FRAMES))
    ends.far.acknowledge()
    ends.run_until(lambda: ends.near.unconfirmed == 0)


def test_a_pause_reaches_the_neighbour_with_its_reason(ends: Ends) -> None:
    ends.run_until(lambda: ends.near.is_up and ends.far.is_up)
    ends.far.pause("card\x1b[31m lost\n" + "x" * 600)
    ends.run_until(lambda: ends.near.failure is not None)
    assert isinstance(ends.near.failure, LinkFailed)
    assert ends.near.failure.facts["echo"] is True
    assert ends.near.failure.message.startswith("stage 1 stopped: card [31m lost xxx")
    assert len(ends.near.failure.message) < 530


def test_a_link_closes_when_everything_has_arrived_and_says_goodbye(ends: Ends) -> None:
    ends.run_until(lambda: ends.near.is_up and ends.far.is_up)
    for number in range(5):
        ends.near.send(*data(number))
    there: list[int] = []

    def is_all_there() -> bool:
        take_all(ends.far, there)
        ends.far.acknowledge()
        return ends.near.unconfirmed == 0

    ends.run_until(is_all_there)
    ends.near.close(drain_s=5)
    ends.run_until(lambda: ends.far.has_left)
    ends.now[0] += 1_000
    ends.run_until(lambda: not ends.far.is_up)
    assert there == list(range(5))
    assert ends.far.failure is None


def test_a_neighbour_that_does_not_come_back_is_a_failure_after_the_grace(ends: Ends) -> None:
    ends.run_until(lambda: ends.near.is_up and ends.far.is_up)
    ends.near.send(*data(0))
    ends.run_until(lambda: ends.far.receive() is not None)
    ends.cut()
    ends.run_until(lambda: not ends.near.is_up and not ends.far.is_up)
    ends.now[0] += 4.9
    ends.run_until(lambda: True)
    assert (ends.near.failure, ends.far.failure) == (None, None)

    ends.now[0] += 0.2
    ends.run_until(lambda: True)
    assert ends.near.failure is not None
    assert ends.far.failure is not None
    assert "stage 1 closed and did not come back within 5 s" in ends.near.failure.message


@pytest.mark.parametrize("attempts", [(1, 2), (2, 1)], ids=["older", "newer"])
def test_frames_of_another_attempt_are_dropped_and_counted(attempts: tuple[int, int]) -> None:
    with loopback_ends(attempts) as ends:
        ends.near.send(*data(0))
        ends.run_until(lambda: ends.far.counts.fenced_frames >= 2)
        assert ends.far.receive() is None
        assert ends.far.failure is None
        assert ends.far.expected == 0


def test_frames_of_another_job_are_dropped_and_counted() -> None:
    line = Line()
    far = Link(LinkName(JOB, 1, 1, 0), line.ends[1])
    header = Header(Kind.DATA, job_tag("j-ccccdddd"), 1, direction=data(0)[0].direction,
                    dtype="uint8", shape=(64,))  # fmt: skip
    line.ends[0].send(encode(header, bytes(64), crc=True))
    far.service()
    assert (far.counts.fenced_frames, far.receive(), far.failure) == (1, None, None)


def a_raw_end() -> tuple[Line, Link]:
    """A line whose end 0 a test holds by hand, and the link of stage 1 at the other."""
    line = Line()
    return line, Link(LinkName(JOB, 1, 1, 0), line.ends[1])


def numbered(sequence: int, ack: int = 0) -> bytearray:
    header = Header(
        Kind.DATA, job_tag(JOB), 1, direction=data(0)[0].direction, sequence=sequence,
        ack=ack, dtype="uint8", shape=(64,),
    )  # fmt: skip
    return encode(header, bytes(64), crc=True)


@pytest.mark.parametrize(
    ("frames", "word"),
    [
        ([numbered(n) for n in range(WINDOW_FRAMES + 1)], "unasked"),
        ([numbered(0, ack=1)], "confirms"),
        ([encode(Header(Kind.HELLO, job_tag(JOB), 1, ack=9), crc=True)], "confirms"),
        ([bytearray(b"GET / HTTP/1.1\r\n\r\n" + bytes(99))], "start"),
        ([bytearray(5)], "shorter"),
    ],
    ids=["flood", "acks the unsent", "hello of the unsent", "http", "short"],
)
def test_a_neighbour_that_breaks_the_rules_is_refused(frames: list[bytearray], word: str) -> None:
    line, far = a_raw_end()
    for frame in frames:
        line.ends[0].send(frame)
    far.service()
    assert far.failure is not None
    assert word in far.failure.message


def test_a_gap_is_asked_for_once() -> None:
    line, far = a_raw_end()
    for sequence in (3, 4, 5):
        line.ends[0].send(numbered(sequence))
    far.service()
    told = [
        decode(event, crc=True) for event in line.ends[0].events() if isinstance(event, bytearray)
    ]
    assert [frame.header.kind for frame in told] == [Kind.HELLO]
    assert (far.counts.gap_frames, far.failure) == (3, None)


def test_a_connection_that_only_breaks_is_given_up() -> None:
    line, far = a_raw_end()
    while far.failure is None:
        line.cut()
        line.mend()
        far.service()
        assert far.counts.breaks <= 30
    assert "without a frame getting through" in far.failure.message


def test_strangers_at_the_bound_socket_leave_the_run_alone() -> None:
    with direct_pair() as (near, far, port):
        ends = Ends(near, far, lambda: None, lambda: None)
        ends.run_until(lambda: near.is_up and far.is_up)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        for _ in range(7):
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            dealer = context.socket(zmq.DEALER)
            dealer.linger = 0
            dealer.connect(f"tcp://127.0.0.1:{port}")
            near.send(*data(1))
            ends.run_until(lambda: far.receive() is not None)
            dealer.close()
        context.term()
        assert (far.counts.breaks, near.counts.breaks) == (0, 0)
        assert (far.failure, near.failure) == (None, None)


@contextmanager
def direct_pair() -> Iterator[tuple[Link, Link, int]]:
    near = PipelineLinks.open(LinkName(JOB, 1, 0, 0), 2, "127.0.0.1")
    far = PipelineLinks.open(LinkName(JOB, 1, 1, 1), 2, "127.0.0.1")
    near.connect(Links(previous=None, next=neighbour(1, far)))
    far.connect(Links(previous=neighbour(0, near), next=None))
    assert near.next is not None
    assert far.previous is not None
    yield near.next, far.previous, int(far.endpoint.endpoints[0].rsplit(":", 1)[1])
    near.close(0)
    far.close(0)


def test_a_neighbour_with_the_right_key_that_floods_is_dropped_at_the_first_look() -> None:
    """What it can fill is bounded by the time between two looks: a block of a stage's compute."""
    far = PipelineLinks.open(LinkName(JOB, 1, 1, 1), 2, "127.0.0.1")
    near = PipelineLinks.open(LinkName(JOB, 1, 0, 0), 2, "127.0.0.1")
    far.connect(Links(previous=neighbour(0, near), next=None), max_frame_bytes=10_000)
    dealer = dial_socket(near.zap, near._keys, far.endpoint.public_key, 10_000)
    dealer.connect(far.endpoint.endpoints[0])
    assert far.previous is not None
    header = Header(
        Kind.DATA, job_tag(JOB), 1, direction=data(0)[0].direction, dtype="uint8", shape=(64,)
    )
    for number in range(200):
        frame = encode(replace(header, sequence=number), bytes(64), crc=False)
        assert dealer.poll(10_000, zmq.POLLOUT)
        dealer.send(bytes(frame))
    Ends(far.previous, far.previous, lambda: None, lambda: None).run_until(
        lambda: far.previous is not None and far.previous.failure is not None
    )
    assert far.previous.failure is not None
    assert "unasked" in far.previous.failure.message
    dealer.close(linger=0)
    near.close(0)
    far.close(0)


def test_a_frame_larger_than_the_plan_lets_cross_ends_the_connection_unread() -> None:
    far = PipelineLinks.open(LinkName(JOB, 1, 1, 1), 2, "127.0.0.1")
    near = PipelineLinks.open(LinkName(JOB, 1, 0, 0), 2, "127.0.0.1")
    far.connect(Links(previous=neighbour(0, near), next=None), max_frame_bytes=1_000)
    near.connect(Links(previous=None, next=neighbour(1, far)))
    assert near.next is not None
    assert far.previous is not None
    ends = Ends(near.next, far.previous, lambda: None, lambda: None)
    near.next.send(*data(0))
    ends.run_until(lambda: far.previous is not None and far.previous.receive() is not None)
    header = Header(
        Kind.DATA, b"", 0, direction=data(0)[0].direction, dtype="uint8", shape=(2_000,)
    )
    near.next.send(header, bytes(2_000))
    ends.run_until(lambda: ends.far.counts.breaks > 0)
    assert ends.far.counts.received_bytes < 2_000
    near.close(0)
    far.close(0)


def test_a_port_of_the_owner_s_choice_is_waited_for_and_announced_as_told() -> None:
    """A worker of the attempt before may hold it still."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        release = threading.Timer(0.3, held.close)
        release.start()
        options = LinkOptions(listen_port=port, announced=["tcp://203.0.113.5:7500"])
        links = PipelineLinks.open(LinkName(JOB, 1, 1, 1), 2, "127.0.0.1", options)
        release.join()
    try:
        assert links.endpoint.endpoints == ["tcp://203.0.113.5:7500"]
        links.connect(Links(previous=neighbour(0, links), next=None), max_frame_bytes=10_000)
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
    finally:
        links.close(0)


def test_a_neighbour_that_is_let_in_late_is_reached_all_the_same() -> None:
    near = PipelineLinks.open(LinkName(JOB, 1, 0, 0), 2, "127.0.0.1")
    far = PipelineLinks.open(LinkName(JOB, 1, 1, 1), 2, "127.0.0.1")
    near.connect(Links(previous=None, next=neighbour(1, far)))
    assert near.next is not None
    Ends(near.next, near.next, lambda: None, lambda: None).run_until(
        lambda: far.zap.refusals.total() > 0
    )
    far.connect(Links(previous=neighbour(0, near), next=None))
    assert far.previous is not None
    ends = Ends(near.next, far.previous, lambda: None, lambda: None)
    ends.run_until(lambda: ends.near.is_up and ends.far.is_up)
    near.close(0)
    far.close(0)


def test_the_second_address_of_a_neighbour_is_dialled_when_the_first_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("transport.reach.CANDIDATE_S", 0.1)
    near = PipelineLinks.open(LinkName(JOB, 1, 0, 0), 2, "127.0.0.1")
    far = PipelineLinks.open(LinkName(JOB, 1, 1, 1), 2, "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoints = [f"tcp://127.0.0.1:{silent.getsockname()[1]}", *far.endpoint.endpoints]
        near.connect(Links(previous=None, next=neighbour(1, far, endpoints)))
        far.connect(Links(previous=neighbour(0, near), next=None))
        assert near.next is not None
        assert far.previous is not None
        ends = Ends(near.next, far.previous, lambda: None, lambda: None)
        ends.run_until(lambda: ends.near.is_up and ends.far.is_up)
        near.close(0)
        far.close(0)


@pytest.mark.parametrize("address", ["localhost", "0.0.0.0; rm", "", "10.0.0.0/8", "tcp://1.2.3.4"])
def test_a_listen_address_that_is_no_ip_address_is_refused(address: str) -> None:
    with pytest.raises(SwarmError) as refusal:
        PipelineLinks.open(LinkName(JOB, 1, 1, 1), 2, address)
    assert refusal.value.code == "invalid-input"


def test_an_address_of_another_machine_cannot_be_listened_on() -> None:
    with pytest.raises(SwarmError) as refusal:
        PipelineLinks.open(LinkName(JOB, 1, 1, 1), 2, "192.0.2.1", LinkOptions())
    assert refusal.value.code == "unavailable"


def test_links_that_are_not_this_stage_s_are_refused() -> None:
    links = PipelineLinks.open(LinkName(JOB, 1, 1, 1), 3, "127.0.0.1")
    with pytest.raises(SwarmError) as refusal:
        links.connect(Links(previous=None, next=neighbour(2, links)))
    assert refusal.value.code == "invalid-input"
    links.close()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["send", "send", "move", "move", "take", "cut"]), max_size=120))
def test_go_back_n_delivers_in_order_and_once_whatever_is_lost(moves: list[str]) -> None:
    """Both ends of one direction, a channel that a cut empties; at the end all gets through."""
    sender, receiver = GoBackN(window=4), GoBackN(window=4)
    channel: deque[tuple[int, bytearray]] = deque()
    taken: list[int] = []

    def transmit() -> None:
        while (frame := sender.due()) is not None:
            channel.append((sender.to_transmit, frame))
            sender.mark_transmitted()

    def move() -> None:
        if channel:
            receiver.accept(decode(channel.popleft()[1], crc=True))

    def take() -> None:
        if receiver.inbox:
            taken.append(receiver.inbox.popleft().header.sequence)
            sender.acknowledge(receiver.used)

    def cut() -> None:
        channel.clear()
        sender.rewind(receiver.expected)
        sender.acknowledge(receiver.used)

    for what in moves:
        if what == "send":
            sender.keep(numbered(sender.next))
        {"send": transmit, "move": move, "take": take, "cut": cut}[what]()
        transmit()
        assert len(receiver.inbox) <= 4
    cut()
    while len(taken) < sender.next:
        transmit()
        move()
        take()
    assert taken == list(range(sender.next))
