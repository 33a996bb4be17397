"""The leader's own relay: there only when dialled, again after its death, gone with the leader."""

import asyncio
import os
import signal
import socket
from pathlib import Path

import psutil
import pytest

from control.settings import Settings
from mcp_server.relay_process import RelayProcess, listen_for_relay
from tests.unit.transport.relay_child import KEY, ticket
from tests.unit.transport.test_relay import dial, is_let_in
from transport.errors import SwarmError
from transport.relay import Side
from transport.relay_server import listen


def join_two(port: int) -> bool:
    """Whether both sides of a session are let in."""
    with dial(port, ticket(Side.DIALS)) as one, dial(port, ticket(Side.ANSWERS)) as two:
        return is_let_in(one) and is_let_in(two)


async def test_the_relay_is_started_by_the_first_dial_and_again_after_its_death(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mcp_server.relay_process.REST_S", 0.05)
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    relay = RelayProcess(listener, KEY)
    relay.start()
    others = psutil.Process().children()
    assert await asyncio.to_thread(join_two, port)
    (first,) = set(psutil.Process().children()) - set(others)

    os.kill(first.pid, signal.SIGKILL)
    assert await asyncio.to_thread(join_two, port)
    (second,) = set(psutil.Process().children()) - {*others, first}

    await relay.close()
    assert not second.is_running()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_relay_s_port_follows_the_leader_s_unless_told(tmp_path: Path) -> None:
    def port_of(settings: Settings, leader_port: int) -> int | None:
        opened = listen_for_relay(settings, leader_port)
        if opened is None:
            return None
        with opened:
            return int(opened.getsockname()[1])

    free = port_of(Settings(data=tmp_path, port=0), 40_000)
    assert free is not None
    assert port_of(Settings(data=tmp_path, port=free - 1), free - 1) == free
    assert port_of(Settings(data=tmp_path, relay_port=free), 40_000) == free
    assert port_of(Settings(data=tmp_path, relay="none"), 40_000) is None
    assert port_of(Settings(data=tmp_path, relay="relay.example.org:7421"), 40_000) is None
    with listen("127.0.0.1", free):
        other = port_of(Settings(data=tmp_path, port=free - 1), free - 1)
        assert other not in (None, free)
        with pytest.raises(SwarmError) as refusal:
            port_of(Settings(data=tmp_path, relay_port=free), 40_000)
        assert refusal.value.code == "conflict"
