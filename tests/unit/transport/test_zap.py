"""Bound sockets let in the one allowed key and nobody else, and outlive every attempt."""

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import zmq

from transport.errors import SwarmError
from transport.keys import KeyPair, new_key_pair
from transport.zap import ZapHandler, bind_socket, dial_socket

DOMAIN = "j-aaaabbbb/1/0"


def say_to_be_let_in(client: zmq.Socket[Any]) -> None:
    """Queue a message. A client refused before it spoke has no connection to queue it for."""
    with suppress(zmq.Again):
        client.send(b"let me in", zmq.NOBLOCK)


class Door:
    """A bound socket, its handler, and one key that may come in."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[Any]] = zmq.Context()
        self.handler = ZapHandler(self.context)
        self.handler.start()
        self.keys, self.friend = new_key_pair(), new_key_pair()
        self.handler.allow(DOMAIN, self.friend.public)
        self.socket = bind_socket(self.handler, self.keys, DOMAIN, "tcp://127.0.0.1:*", 10_000)
        self.endpoint = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.port = int(self.endpoint.rsplit(":", 1)[1])
        self.clients: list[zmq.Socket[Any]] = []
        self.monitor = self.socket.get_monitor_socket()

    def dial(self, keys: KeyPair, server_key: str | None = None) -> zmq.Socket[Any]:
        client = dial_socket(self.handler, keys, server_key or self.keys.public, 10_000)
        self.clients.append(client)
        client.immediate = False  # queue at once, so that a message is there if the door opens
        client.connect(self.endpoint)
        say_to_be_let_in(client)
        return client

    def wait_for(self, *events: int) -> int:
        """The first of these monitor events, within 5 s."""
        while self.monitor.poll(5_000):
            event = int.from_bytes(self.monitor.recv_multipart()[0][:2], "little")
            if event in events:
                return event
        pytest.fail("the door did not react within 5 s")

    def admits_friend(self) -> bool:
        client = self.dial(self.friend)
        try:
            if not self.socket.poll(5_000):
                return False
            frame = self.socket.recv(copy=False)
            return (frame.bytes, frame.get("User-Id")) == (b"let me in", self.friend.public)
        finally:
            client.close(linger=0)

    def close(self) -> None:
        for client in self.clients:
            client.close(linger=0)
        self.socket.disable_monitor()
        self.monitor.close()
        self.socket.close()
        self.context.term()


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    monkeypatch.setattr("transport.zap.HANDSHAKE_MS", 300)
    made = Door()
    yield made
    made.close()


FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq.EVENT_DISCONNECTED,
)


def test_the_allowed_key_comes_in_and_is_named(door: Door) -> None:
    assert door.admits_friend()
    assert door.handler.refusals == {}


def dial_with_unknown_key(door: Door) -> zmq.Socket[Any]:
    return door.dial(new_key_pair())


def dial_with_wrong_server_key(door: Door) -> zmq.Socket[Any]:
    return door.dial(door.friend, new_key_pair().public)


def dial_without_keys(door: Door) -> zmq.Socket[Any]:
    client = door.context.socket(zmq.DEALER)
    door.clients.append(client)
    client.connect(door.endpoint)
    say_to_be_let_in(client)
    return client


def dial_with_a_password(door: Door) -> zmq.Socket[Any]:
    client = door.context.socket(zmq.DEALER)
    door.clients.append(client)
    client.plain_username, client.plain_password = b"admin", b"admin"
    client.connect(door.endpoint)
    say_to_be_let_in(client)
    return client


@pytest.mark.parametrize(
    "dial",
    [dial_with_unknown_key, dial_with_wrong_server_key, dial_without_keys, dial_with_a_password],
)
def test_everyone_else_is_refused_and_the_friend_still_comes_in(
    door: Door, dial: Callable[[Door], zmq.Socket[Any]]
) -> None:
    stranger = dial(door)
    assert door.wait_for(*FAILED, zmq.EVENT_HANDSHAKE_SUCCEEDED) in FAILED
    assert not door.socket.poll(0)
    stranger.close(linger=0)
    assert door.admits_friend()
    assert not door.socket.poll(0)


NULL_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01" + bytes(range(256)),
        b"GET / HTTP/1.1\r\n\r\n",
        NULL_GREETING + b"\x02" + b"\x7f" * 8,
        b"",
    ],
    ids=["garbage", "http", "null greeting with a huge frame", "silence"],
)
def test_raw_connections_are_closed_and_the_friend_still_comes_in(door: Door, raw: bytes) -> None:
    with socket.create_connection(("127.0.0.1", door.port), timeout=5) as stranger:
        stranger.sendall(raw)
        try:
            while stranger.recv(4096):
                pass
        except ConnectionResetError:
            pass
    assert not door.socket.poll(0)
    assert door.admits_friend()


def test_a_key_of_another_domain_is_refused(door: Door) -> None:
    other = new_key_pair()
    door.handler.allow("j-aaaabbbb/1/1", other.public)
    stranger = door.dial(other)
    assert door.wait_for(*FAILED) == zmq.EVENT_HANDSHAKE_FAILED_AUTH
    assert not door.socket.poll(0)
    assert door.handler.refusals[other.public] >= 1
    stranger.close(linger=0)


def test_a_key_taken_from_the_list_is_refused_from_then_on(door: Door) -> None:
    door.handler.allow(DOMAIN)
    stranger = door.dial(door.friend)
    assert door.wait_for(*FAILED) == zmq.EVENT_HANDSHAKE_FAILED_AUTH
    stranger.close(linger=0)


def test_an_exception_in_the_handler_refuses_one_and_not_all(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(_request: list[bytes]) -> None:
        raise KeyError("a mistake of ours")

    with monkeypatch.context() as broken:
        broken.setattr(door.handler, "judge", break_down)
        stranger = door.dial(door.friend)
        assert door.wait_for(*FAILED, zmq.EVENT_HANDSHAKE_SUCCEEDED) in FAILED
        stranger.close(linger=0)
    assert door.handler.is_alive
    assert door.admits_friend()


def test_a_second_handler_in_one_context_is_refused(door: Door) -> None:
    with pytest.raises(SwarmError) as refusal:
        ZapHandler(door.context).start()
    assert refusal.value.code == "conflict"
    assert door.admits_friend()


def test_a_socket_is_not_bound_without_a_live_handler() -> None:
    context: zmq.Context[zmq.Socket[Any]] = zmq.Context()
    handler = ZapHandler(context)
    with pytest.raises(SwarmError) as refusal:
        bind_socket(handler, new_key_pair(), DOMAIN, "tcp://127.0.0.1:*", 100)
    assert refusal.value.code == "unavailable"
    context.term()


def test_the_handler_ends_with_its_context() -> None:
    context: zmq.Context[zmq.Socket[Any]] = zmq.Context()
    handler = ZapHandler(context)
    handler.start()
    assert handler.is_alive
    context.term()
    assert handler.wait_for_end(5)


def test_a_frame_past_the_limit_closes_the_connection(door: Door) -> None:
    client = door.dial(door.friend)
    assert door.socket.poll(5_000)
    assert door.socket.recv() == b"let me in"
    client.send(bytes(10_000))
    assert door.socket.poll(5_000)
    assert len(door.socket.recv()) == 10_000
    client.send(bytes(10_001))
    assert door.wait_for(zmq.EVENT_DISCONNECTED) == zmq.EVENT_DISCONNECTED
    assert not door.socket.poll(0)
    client.close(linger=0)
