"""The relay: who is joined, who is refused, what it costs, what it can see."""

import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.transport.ends import JOB, Ends, data, neighbour, number_of
from tests.unit.transport.relay_child import KEY, POOL, RelayChild, routes, ticket
from transport.direct import LinkOptions, PipelineLinks
from transport.errors import SwarmError
from transport.frames import Direction, Frame, Header, Kind
from transport.link import LinkName
from transport.orders import Links
from transport.relay import Side, read_key, read_ticket, ticket_for, write_ticket
from transport.relay_server import own_key

MB = 1_000_000


@pytest.fixture(scope="module")
def relay() -> Iterator[RelayChild]:
    """One for all tests that do it no harm."""
    with RelayChild() as child:
        yield child


@pytest.fixture
def own_relay() -> Iterator[RelayChild]:
    """One for a test that kills it or looks at its memory."""
    with RelayChild() as child:
        yield child


@pytest.fixture(autouse=True)
def _relay_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transport.reach.RELAY_AFTER_S", 0.0)


def request(name: str) -> bytes:
    """A CONNECT for a host name."""
    told = name.encode("latin-1")
    return b"\x05\x01\x00\x03" + bytes([len(told)]) + told + b"\x00\x01"


def dial(port: int, name: str) -> socket.socket:
    """A connection that has asked for a name and not read the answer."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    connection.sendall(b"\x05\x01\x00")
    assert connection.recv(2) == b"\x05\x00"
    connection.sendall(request(name))
    return connection


def said_until_closed(connection: socket.socket) -> bytes:
    """All that comes until the other end closes, in order or not."""
    told = b""
    try:
        while part := connection.recv(64):
            told += part
    except ConnectionResetError:
        pass
    return told


def is_let_in(connection: socket.socket) -> bool:
    """Whether the answer that comes is the good one."""
    return connection.recv(10)[:2] == b"\x05\x00"


# --- tickets ---


def test_a_ticket_says_what_was_written() -> None:
    told = ticket_for(POOL, "j-aaaabbbb/1/0", Side.ANSWERS, 100.0)
    text = write_ticket(KEY, told)
    assert read_ticket(KEY, text, now=99.0) == told
    assert re.fullmatch(r"[0-9a-f]{1,128}", text)


@pytest.mark.parametrize(
    "other",
    [
        ticket_for(POOL, "j-aaaabbbb/2/0", Side.DIALS, 100.0),
        ticket_for(POOL, "j-aaaabbbb/1/1", Side.DIALS, 100.0),
        ticket_for(POOL, "j-ccccdddd/1/0", Side.DIALS, 100.0),
    ],
    ids=["attempt", "link", "job"],
)
def test_tickets_of_another_attempt_link_or_job_are_another_session(other: object) -> None:
    one = ticket_for(POOL, "j-aaaabbbb/1/0", Side.DIALS, 100.0)
    assert isinstance(other, type(one))
    assert other.session != one.session


def test_an_expired_ticket_and_one_of_another_key_are_none() -> None:
    text = write_ticket(KEY, ticket_for(POOL, "x", Side.DIALS, 100.0))
    assert read_ticket(KEY, text, now=101.0) is None
    assert read_ticket(bytes(32), text, now=99.0) is None


@given(st.binary(max_size=64), st.integers(0, 60))
def test_no_changed_ticket_is_good(noise: bytes, at: int) -> None:
    good = bytes.fromhex(write_ticket(KEY, ticket_for(POOL, "x", Side.DIALS, 100.0)))
    bad = good[:at] + noise + good[at + len(noise) :]
    if bad != good:
        assert read_ticket(KEY, bad.hex(), now=0.0) is None
    assert read_ticket(KEY, noise.decode("latin-1"), now=0.0) is None


def test_a_relay_makes_its_key_once_and_refuses_a_file_that_holds_none(tmp_path: Path) -> None:
    path = tmp_path / "relay.key"
    key = own_key(path)
    assert own_key(path) == read_key(path) == key
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("no key")
    for read in (own_key, read_key):
        with pytest.raises(SwarmError) as refusal:
            read(path)
        assert refusal.value.code == "invalid-input"
    with pytest.raises(SwarmError) as refusal:
        own_key(tmp_path / "no folder" / "relay.key")
    assert refusal.value.code == "invalid-input"


# --- joining ---


def test_both_sides_of_a_session_are_joined_and_bytes_go_both_ways(relay: RelayChild) -> None:
    with dial(relay.port, ticket(Side.DIALS)) as one, dial(relay.port, ticket(Side.ANSWERS)) as two:
        assert is_let_in(one)
        assert is_let_in(two)
        one.sendall(b"there")
        two.sendall(b"back")
        assert (two.recv(9), one.recv(9)) == (b"there", b"back")


def test_the_last_words_of_one_side_reach_the_other(relay: RelayChild) -> None:
    with dial(relay.port, ticket(Side.ANSWERS)) as two:
        with dial(relay.port, ticket(Side.DIALS)) as one:
            assert is_let_in(one)
            assert is_let_in(two)
            one.sendall(b"x" * 100_000)
        assert b"".join(iter(lambda: two.recv(65536), b"")) == b"x" * 100_000


def test_sides_of_different_sessions_are_never_joined(relay: RelayChild) -> None:
    with (
        dial(relay.port, ticket(Side.DIALS)) as one,
        dial(relay.port, ticket(Side.ANSWERS, "j-aaaabbbb/2/0")) as two,
    ):
        for waiting in (one, two):
            waiting.settimeout(0.3)
            with pytest.raises(TimeoutError):
                waiting.recv(1)


def test_a_side_that_comes_again_replaces_its_older_self(relay: RelayChild) -> None:
    with ExitStack() as stack:
        older, newer = (stack.enter_context(dial(relay.port, ticket(Side.DIALS))) for _ in range(2))
        assert older.recv(1) == b""
        other = stack.enter_context(dial(relay.port, ticket(Side.ANSWERS)))
        assert is_let_in(newer)
        assert is_let_in(other)


@pytest.mark.parametrize(
    "name",
    ["", "example.org", "0" * 90, "f" * 128, "é" * 60],
    ids=["empty", "a host", "zeros", "long", "not ascii"],
)
def test_whoever_shows_no_ticket_is_let_nowhere(relay: RelayChild, name: str) -> None:
    with socket.create_connection(("127.0.0.1", relay.port), timeout=5) as stranger:
        stranger.sendall(b"\x05\x01\x00" + request(name))
        told = said_until_closed(stranger)
    assert told in (b"\x05\x00", b"\x05\x00\x05\x02\x00\x01" + bytes(6))


@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.1\r\n\r\n", b"\x04\x01" + bytes(8), b"\x05\x01\x02", b"\x05\x00",
     b"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50", b"\xff" * 300],
    ids=["http", "socks 4", "password", "no method", "an address", "noise"],
)  # fmt: skip
def test_what_is_no_request_for_a_ticket_s_name_is_closed_at_once(
    relay: RelayChild, said: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", relay.port), timeout=5) as stranger:
        stranger.sendall(said)
        assert said_until_closed(stranger)[2:4] != b"\x05\x00"


# --- what it costs ---


def test_strangers_cost_the_relay_little_however_much_they_send(own_relay: RelayChild) -> None:
    before = own_relay.resident_bytes
    block = b"\x05\x01\x00" + b"\x05\x01\x00\x03\x80" + b"\xff" * MB
    with ExitStack() as stack:
        for _ in range(300):  # more than may be there at once
            one = stack.enter_context(closing(socket.socket()))
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", own_relay.port))
        for _ in range(60):
            flood = socket.create_connection(("127.0.0.1", own_relay.port), timeout=5)
            stack.enter_context(closing(flood))
            try:
                flood.sendall(block)
            except OSError:
                pass
        assert own_relay.resident_bytes - before < 50 * MB


def test_twenty_stalled_sessions_leave_its_memory_flat(own_relay: RelayChild) -> None:
    """Writers as fast as they can, nobody reads: TCP holds them, not the own_relay."""
    before = own_relay.resident_bytes
    with ExitStack() as stack:
        for number in range(20):
            name = f"j-aaaabbbb/1/{number}"
            one, two = (
                stack.enter_context(dial(own_relay.port, ticket(side, name))) for side in Side
            )
            assert is_let_in(one)
            assert is_let_in(two)
            one.settimeout(0.05)
            try:
                while True:
                    one.sendall(bytes(MB))
            except TimeoutError:
                pass
        assert own_relay.resident_bytes - before < 20 * MB


# --- with real links ---


class Relayed:
    """Two stages that reach each other through a relay only, or also directly once `port` is."""

    def __init__(self, own_relay: RelayChild, direct: str = "tcp://127.0.0.1:9") -> None:
        options = LinkOptions(relayed_grace_s=20)
        self.near = PipelineLinks.open(LinkName(JOB, 1, 0, 0), 2, "127.0.0.1", options)
        self.far = PipelineLinks.open(LinkName(JOB, 1, 1, 1), 2, "127.0.0.1", options)
        dials, answers = routes(own_relay.port)
        far = neighbour(1, self.far, [direct]).model_copy(update={"relay": dials})
        near = neighbour(0, self.near).model_copy(update={"relay": answers})
        self.near.connect(Links(previous=None, next=far))
        self.far.connect(Links(previous=near, next=None))
        assert self.near.next is not None
        assert self.far.previous is not None
        self.ends = Ends(self.near.next, self.far.previous, lambda: None, lambda: None)
        self.there: list[int] = []

    def send_until(self, numbers: range) -> None:
        """Send these and wait until all up to the last are there."""
        for number in numbers:
            self.ends.near.send(*data(number))
        self.ends.run_until(lambda: self._has(numbers.stop))

    def _has(self, count: int) -> bool:
        while (frame := self.ends.far.receive()) is not None:
            self.there.append(number_of(frame))
        return len(self.there) >= count

    def close(self) -> None:
        self.near.close(0)
        self.far.close(0)


def test_links_through_the_relay_survive_its_death_and_lose_nothing(own_relay: RelayChild) -> None:
    with closing(Relayed(own_relay)) as run:
        run.send_until(range(20))
        for death in range(1, 4):
            for number in range(20 * death, 20 * death + 10):
                run.ends.near.send(*data(number))
            own_relay.kill()
            run.ends.run_until(lambda: not run.ends.near.is_up and not run.ends.far.is_up)
            own_relay.restart()
            run.send_until(range(20 * death + 10, 20 * death + 20))
        assert run.there == list(range(80))
        assert run.ends.near.failure is None


def test_what_crosses_the_relay_is_found_nowhere_in_it(own_relay: RelayChild) -> None:
    """A pattern in an activation: not in the relay's memory, and not in what it passes on."""
    pattern = os.urandom(48)
    payload = pattern * 4096
    header = Header(
        Kind.DATA, b"", 0, step=1, direction=Direction.FORWARD, dtype="uint8", shape=(len(payload),)
    )
    tap = Tap(own_relay.port)
    with closing(tap), closing(Relayed(own_relay, "tcp://127.0.0.1:9")) as run:
        dials, answers = routes(tap.port, "j-aaaabbbb/1/7")
        near = PipelineLinks.open(LinkName(JOB, 1, 0, 0), 2, "127.0.0.1")
        far = PipelineLinks.open(LinkName(JOB, 1, 1, 1), 2, "127.0.0.1")
        near.connect(
            Links(
                previous=None,
                next=neighbour(1, far, ["tcp://127.0.0.1:9"]).model_copy(update={"relay": dials}),
            )
        )
        far.connect(
            Links(previous=neighbour(0, near).model_copy(update={"relay": answers}), next=None)
        )
        assert near.next is not None
        assert far.previous is not None
        ends = Ends(near.next, far.previous, lambda: None, lambda: None)
        arrived: list[Frame] = []
        for _ in range(8):
            near.next.send(header, payload)
        ends.run_until(lambda: _take(far, arrived) >= 8, timeout_s=30)
        assert bytes(arrived[-1].payload) == payload
        assert tap.total > 8 * len(payload)
        assert pattern not in b"".join(tap.seen)
        memory = memory_of(own_relay.pid)
        assert KEY in memory  # what it does hold is found
        assert pattern not in memory
        run.send_until(range(1))
        near.close(0)
        far.close(0)


def _take(far: PipelineLinks, arrived: list[Frame]) -> int:
    assert far.previous is not None
    while (frame := far.previous.receive()) is not None:
        arrived.append(frame)
    return len(arrived)


def memory_of(pid: int) -> bytes:
    """All that can be read of a process's memory."""
    parts = []
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            begin, end = (int(part, 16) for part in line.split()[0].split("-"))
            if " rw" not in line or "[v" in line:
                continue
            try:
                memory.seek(begin)
                parts.append(memory.read(end - begin))
            except (OSError, OverflowError):
                continue
    return b"".join(parts)


class Tap:
    """Passes connections on to a port and keeps what it saw."""

    def __init__(self, target: int) -> None:
        self.seen: list[bytes] = []
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def total(self) -> int:
        return sum(len(part) for part in self.seen)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._target))
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with source:
            try:
                while part := source.recv(65536):
                    self.seen.append(part)
                    target.sendall(part)
                target.shutdown(socket.SHUT_WR)
            except OSError:
                return

    def close(self) -> None:
        """Accept nobody any more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def deny(relay: RelayChild, link: int, times: int) -> None:
    """Let a stranger with the right ticket knock at an answering socket, and close in the midst."""
    dials, answers = routes(relay.port, f"j-aaaabbbb/1/{link}")
    strange = PipelineLinks.open(LinkName(JOB, 1, 0, 0), 2, "127.0.0.1")
    guarded = PipelineLinks.open(LinkName(JOB, 1, 1, 1), 2, "127.0.0.1")
    other = PipelineLinks.open(LinkName(JOB, 1, 0, 0), 2, "127.0.0.1")
    far = neighbour(1, guarded, ["tcp://127.0.0.1:9"]).model_copy(update={"relay": dials})
    strange.connect(Links(previous=None, next=far))
    allowed = neighbour(0, other).model_copy(update={"relay": answers})
    guarded.connect(Links(previous=allowed, next=None))
    assert strange.next is not None
    assert guarded.previous is not None
    ends = Ends(strange.next, guarded.previous, lambda: None, lambda: None)
    ends.run_until(lambda: guarded.zap.refusals.total() >= times, timeout_s=20)
    assert not strange.next.is_up
    assert not guarded.previous.is_up
    for links in (guarded, strange, other):
        links.close(0)


@pytest.mark.parametrize("times", [1, 2, 6])
def test_a_client_that_is_denied_at_an_answering_socket_harms_nobody(
    relay: RelayChild, times: int
) -> None:
    """CURVE's server role on a connecting socket: refusals must not end the process, nor its own
    end while somebody knocks.
    """
    with closing(Relayed(relay)) as run:
        run.send_until(range(2))
        deny(relay, 5, times)
        run.send_until(range(2, 4))


def test_a_full_pool_s_next_session_is_closed_and_others_go_on() -> None:
    """Limits are per pool: checked on the relay itself, in this process."""
    import asyncio

    from transport.relay_server import Limits, Relay, listen

    async def run() -> list[bool]:
        relay = Relay(KEY, Limits(sessions_of_one_pool=1))
        listener = listen("127.0.0.1", 0)
        port = listener.getsockname()[1]
        serving = asyncio.ensure_future(relay.serve(listener))
        outcomes = await asyncio.to_thread(_three_sessions, port)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        listener.close()
        return outcomes

    assert asyncio.run(run()) == [True, False, True]


def _three_sessions(port: int) -> list[bool]:
    outcomes = []
    with ExitStack() as stack:
        for link, pool in (("a", POOL), ("b", POOL), ("c", "eve/home")):
            one, two = (stack.enter_context(dial(port, ticket(side, link, pool))) for side in Side)
            outcomes.append(is_let_in(one) and is_let_in(two))
    return outcomes
