"""A leader's own certificate: made once, pinned by every join, fellow, worker and command."""

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from agents.client import Client
from agents.fellow.joining import join
from agents.fellow.leader_link import LeaderLink
from agents.profile import read
from control.settings import Settings
from mcp_server.certificate import given_files, own_files
from mcp_server.main import tls_files
from stage_runtime.leader_files import LeaderAccess
from transport.api.pools import (
    CLUSTER_STATUS,
    INVITES_CREATE,
    POOLS_CREATE,
    ClusterStatus,
    InvitesCreate,
    PoolsCreate,
)
from transport.errors import SwarmError
from transport.pinning import split_pin, with_pin

NOW = 1_800_000_000.0
READY_S = 30


@contextmanager
def leader(data: Path, *words: str) -> Iterator[str]:
    """A leader process; gives the address of its line of readiness."""
    with (data.parent / "leader.log").open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "mcp_server.main", "--data", str(data), *words],
            stdout=subprocess.PIPE,
            stderr=log,
        )
    assert child.stdout is not None
    try:
        line = child.stdout.readline()
        assert line, (data.parent / "leader.log").read_text()
        yield str(json.loads(line)["url"])
    finally:
        child.terminate()
        child.wait(15)
        child.stdout.close()


def a_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


async def test_everyone_pins_the_leader_s_own_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, public = tmp_path / "data", f"https://127.0.0.1:{a_port()}"
    with leader(data, "--public", public) as own:
        url, pin = split_pin(own)
        assert url == public
        assert pin is not None

        # The command line of this machine knows the address without being told.
        found = read({}, {"SWARM_DATA": str(data), "SWARM_CONFIG": str(tmp_path / "none")})
        assert found.url == own
        with Client(found.url, found.token.value) as client:
            client.call(POOLS_CREATE, PoolsCreate(pool="ada/home"))
            invite = client.call(INVITES_CREATE, InvitesCreate(pool="ada/home"))
        assert invite.command == f"swarm join {public}#pin={pin}"

        # A fellow that joins by that command keeps the pin, and so do its workers.
        address = invite.command.rpartition(" ")[2]
        identity = await join(tmp_path / "fellow", address, invite.secret, ("cpu:1GB:1",))
        assert identity.leader == address
        async with LeaderLink(identity.leader, identity.credential) as link:
            assert (await link.orders(-1)).stages == []
        worker = LeaderAccess(url, identity.credential, pin)
        with worker.client() as client:
            assert client.get("/fellow/v1/orders?since=-1").status_code == 200

        # Nobody else is trusted: not without the pin, and not with another one.
        with pytest.raises(SwarmError) as refusal, Client(url, "x") as client:
            client.call(CLUSTER_STATUS, ClusterStatus())
        assert refusal.value.code == "unreachable"
        with pytest.raises(SwarmError) as refusal:
            Client(with_pin(url, "0" * 64), "x")
        assert refusal.value.code == "unauthenticated"
        async with LeaderLink(with_pin(url, "0" * 64), identity.credential) as link:
            with pytest.raises(SwarmError) as refusal:
                await link.orders(-1)
        assert refusal.value.code == "unauthenticated"
        with pytest.raises(httpx2.HTTPError):
            httpx2.get(url.replace("https", "http"))


def test_a_certificate_is_renewed_with_the_same_key_when_its_name_changes(tmp_path: Path) -> None:
    first = own_files(tmp_path, "https://leader.example.org:7420", NOW)
    told = first.cert.read_bytes()
    assert first.key.stat().st_mode & 0o777 == 0o600
    again = own_files(tmp_path, "https://leader.example.org:7420", NOW + 86_400)
    assert again.cert.read_bytes() == told
    moved = own_files(tmp_path, "https://192.168.1.5:7420", NOW)
    assert moved.cert.read_bytes() != told
    assert moved.pin == first.pin
    old = own_files(tmp_path, "https://192.168.1.5:7420", NOW + 9.5 * 365 * 86_400)
    assert old.pin == first.pin
    given = given_files(first.cert, first.key)
    assert (given.pin, given.is_pinned) == (first.pin, True)


def test_half_a_certificate_and_files_that_are_none_are_refused(tmp_path: Path) -> None:
    made = own_files(tmp_path, "https://a:1", NOW)
    other = own_files(tmp_path / "other", "https://a:1", NOW)
    noise = tmp_path / "noise"
    noise.write_text("no certificate")
    public = {"public_url": "https://a:1", "data": tmp_path}
    for wrong in (
        {**public, "tls_cert": made.cert},
        {**public, "tls_key": made.key},
        {"data": tmp_path, "tls_cert": made.cert, "tls_key": made.key},
        {**public, "tls_cert": made.cert, "tls_key": other.key},
        {**public, "tls_cert": noise, "tls_key": made.key},
        {**public, "tls_cert": tmp_path / "gone", "tls_key": made.key},
    ):
        with pytest.raises(SwarmError) as refusal:
            tls_files(Settings.model_validate(wrong))
        assert refusal.value.code == "invalid-input"
    assert tls_files(Settings(data=tmp_path)) is None


@pytest.mark.parametrize(
    "address",
    ["https://a:1#pin=", "https://a:1#pin=12", "https://a:1#" + "0" * 64, "https://a:1#",
     "http://a:1#pin=" + "0" * 64, "https://a:1#pin=" + "g" * 64],
)  # fmt: skip
def test_a_pin_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(SwarmError) as refusal:
        split_pin(address)
    assert refusal.value.code == "invalid-input"
    assert re.search("pin", refusal.value.message)
