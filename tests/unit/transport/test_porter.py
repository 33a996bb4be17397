"""The porter: what libzmq's own SOCKS client dies of, and who may use its door."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import pytest

from transport.porter import IS_LINUX, Porter

TICKET = "ab" * 46
WAIT_S = 10.0
CLOSED_IN_TIME = """
import time, zmq
from transport.porter import Porter
from transport.zmq_wire import ZmqWire
porter = Porter("127.0.0.1", {port}, "ab" * 46)
socket = zmq.Context().socket(zmq.DEALER)
socket.linger = 0
wire = ZmqWire(socket, is_bound=False, porter=porter)
wire.dial(porter.endpoint)
deadline = time.monotonic() + 10
while {words!r} not in wire.trouble and time.monotonic() < deadline:
    list(wire.events())
print(wire.trouble)
wire.close(0)
socket.context.term()
print("ended well")
"""


@contextmanager
def a_relay(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Something that listens, and does as told with each connection; its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with suppress(OSError):
            while True:
                serve(listener.accept()[0])

    threading.Thread(target=run, daemon=True).start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def hang_up(client: socket.socket) -> None:
    with client:
        client.recv(3)


def refuse(client: socket.socket) -> None:
    with client:
        client.recv(3)
        client.sendall(b"\x05\x00")
        client.recv(300)
        client.sendall(b"\x05\x02\x00\x01" + bytes(6))


def echo(client: socket.socket) -> None:
    """Let in, and send back what comes."""
    client.recv(3)
    client.sendall(b"\x05\x00")
    client.recv(300)
    client.sendall(b"\x05\x00\x00\x01" + bytes(6))

    def run() -> None:
        with client, suppress(OSError):
            while data := client.recv(65536):
                client.sendall(data)

    threading.Thread(target=run, daemon=True).start()


@pytest.mark.parametrize(
    ("serve", "words"),
    [
        (None, "Connection refused"),
        (hang_up, "it closed the connection"),
        (refuse, "it refuses the ticket"),
    ],
    ids=["nobody listens", "hangs up", "refuses"],
)
def test_a_socket_is_closed_in_peace_whatever_the_relay_does(
    serve: Callable[[socket.socket], None] | None, words: str
) -> None:
    """In a process of its own: libzmq's SOCKS client ends the process in each of these cases."""
    with a_relay(serve or hang_up) as port:
        program = CLOSED_IN_TIME.format(port=port if serve else 1, words=words)
        ran = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
        )
    assert ran.stdout.splitlines()[-1:] == ["ended well"], ran.stderr
    assert words in ran.stdout
    assert ran.returncode == 0


def knock(porter: Porter) -> socket.socket:
    """A connection to its door, which opens once the relay has let it in."""
    name = porter.endpoint.removeprefix("ipc://")
    deadline = time.monotonic() + WAIT_S
    while True:
        near = socket.socket(socket.AF_UNIX)
        near.settimeout(WAIT_S)
        try:
            near.connect("\0" + name[1:] if name.startswith("@") else name)
            return near
        except OSError:
            near.close()
            assert time.monotonic() < deadline, porter.trouble


def test_bytes_pass_both_ways_and_again_after_a_break() -> None:
    with a_relay(echo) as port, closing(Porter("127.0.0.1", port, TICKET)) as porter:
        for words in (b"one", b"two"):
            with knock(porter) as near:
                near.sendall(words)
                assert near.recv(10) == words
        assert porter.trouble == ""


@pytest.mark.skipif(not IS_LINUX, reason="only Linux tells who is at the other end")
def test_another_process_is_not_let_in_at_the_door() -> None:
    with a_relay(echo) as port, closing(Porter("127.0.0.1", port, TICKET)) as porter:
        stranger = os.fork()
        if stranger == 0:
            told = 99
            try:
                with knock(porter) as near:
                    try:
                        near.sendall(b"let me in")
                        told = len(near.recv(10))
                    except ConnectionError:
                        told = 0
            finally:
                os._exit(told)
        _, status = os.waitpid(stranger, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        with knock(porter) as near:
            near.sendall(b"ours")
            assert near.recv(10) == b"ours"
