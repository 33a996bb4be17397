"""The ways of a rehearsal: real sockets through a proxy that is slow, or cut."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from agents.rehearse.ways import LOOPBACK, Shape, Ways

WAIT_S = 5.0


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that sends back what it gets; its port."""
    with socket.create_server((LOOPBACK, 0)) as server:
        threading.Thread(target=_serve, args=(server,), daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def _serve(server: socket.socket) -> None:
    while True:
        try:
            client, _ = server.accept()
        except OSError:
            return
        with client:
            while block := client.recv(65536):
                client.sendall(block)


@pytest.fixture
def ways() -> Iterator[Ways]:
    """None yet."""
    ways = Ways()
    yield ways
    ways.close()


def asked(client: socket.socket, words: bytes) -> bytes:
    client.sendall(words)
    return client.recv(65536)


def test_what_goes_in_comes_out_and_takes_its_delay(ways: Ways, echo: int) -> None:
    way = ways.open("ada", echo, Shape(0.05))
    with socket.create_connection((LOOPBACK, way.port), timeout=WAIT_S) as client:
        began = time.monotonic()
        assert asked(client, b"hello") == b"hello"
        assert time.monotonic() - began >= 0.1


def test_a_cut_way_keeps_its_connection_and_what_was_sent(ways: Ways, echo: int) -> None:
    way = ways.open("ada", echo, Shape())
    with socket.create_connection((LOOPBACK, way.port), timeout=WAIT_S) as client:
        assert asked(client, b"before") == b"before"
        ways.cut("ada", is_cut=True)
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            asked(client, b"meanwhile")
        ways.cut("ada", is_cut=False)
        client.settimeout(WAIT_S)
        assert client.recv(65536) == b"meanwhile"


def test_who_hangs_up_is_hung_up_on(ways: Ways, echo: int) -> None:
    way = ways.open("ada", echo, Shape())
    with socket.create_connection((LOOPBACK, way.port), timeout=WAIT_S) as client:
        client.sendall(b"last words")
        client.shutdown(socket.SHUT_WR)
        told = b""
        while block := client.recv(65536):
            told += block
    assert told == b"last words"


def test_a_narrow_way_takes_its_time_for_what_goes_through(ways: Ways, echo: int) -> None:
    way = ways.open("ada", echo, Shape(bytes_s=1e6))
    with socket.create_connection((LOOPBACK, way.port), timeout=WAIT_S) as client:
        began = time.monotonic()
        client.sendall(bytes(300_000))
        left = 300_000
        while left:
            left -= len(client.recv(65536))
        assert time.monotonic() - began >= 0.3


def test_a_delay_does_not_narrow_a_way(ways: Ways, echo: int) -> None:
    way = ways.open("ada", echo, Shape(0.1))
    with socket.create_connection((LOOPBACK, way.port), timeout=WAIT_S) as client:
        began = time.monotonic()
        client.sendall(bytes(1_000_000))
        left = 1_000_000
        while left:
            left -= len(client.recv(65536))
        # 62 blocks: a wait for each of them one after another would be over 12 s.
        assert 0.2 <= time.monotonic() - began < 3


def test_a_way_that_hangs_up_breaks_what_stands_and_takes_new_connections(
    ways: Ways, echo: int
) -> None:
    way = ways.open("ada", echo, Shape())
    with socket.create_connection((LOOPBACK, way.port), timeout=WAIT_S) as client:
        assert asked(client, b"before") == b"before"
        ways.hang_up("ada")
        try:
            assert client.recv(10) == b""
        except ConnectionError:
            pass
    with socket.create_connection((LOOPBACK, way.port), timeout=WAIT_S) as client:
        assert asked(client, b"after") == b"after"
