"""What people without any right may cost a leader: a real one, and as many bytes as they like."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import httpx2
import psutil
import pytest

from agents.demo.processes import Household, wait_until
from agents.demo.story import ready_url

MB = 1_000_000
LOOPBACK = "127.0.0.1"
CROWD, FLOODS, FLOOD_BYTES = 300, 12, 4 * MB
ENDLESS = b"GET /api/v1/jobs HTTP/1.1\r\nHost: x\r\nX-Long: "
"""A header that never ends."""


def a_request(method: str, path: str, *headers: str) -> bytes:
    """The head of a request whose body is declared far larger than it will ever be."""
    lines = (f"{method} {path} HTTP/1.1", f"Host: {LOOPBACK}", *headers)
    return "\r\n".join((*lines, "Content-Length: 1000000000", "", "")).encode()


def in_chunks(method: str, path: str, *headers: str) -> bytes:
    """The head of a request with one chunk of a body, which says nothing of its size."""
    lines = (f"{method} {path} HTTP/1.1", f"Host: {LOOPBACK}", *headers)
    head = "\r\n".join((*lines, "Transfer-Encoding: chunked", "", ""))
    return head.encode() + b"7fffffff\r\n"


JSON = "Content-Type: application/json"
WRONG = "Authorization: Bearer swn_" + "x" * 43
STAGE = "/fellow/v1/jobs/j-aaaabbbb/attempts/1"
OPENINGS = (
    ENDLESS,
    b"\xff" * 100,
    a_request("POST", "/api/v1/jobs", JSON),
    a_request("POST", "/api/v1/jobs", JSON, WRONG),
    a_request("POST", "/mcp", JSON, "Accept: application/json, text/event-stream"),
    a_request("POST", "/fellow/v1/join", JSON),
    a_request("POST", "/fellow/v1/heartbeat", JSON, WRONG),
    a_request("PUT", f"{STAGE}/stages/0/adapter", WRONG),
    a_request("PUT", f"{STAGE}/snapshots/5/stages/0", WRONG),
    in_chunks("POST", "/fellow/v1/join", JSON),
    in_chunks("POST", "/mcp", JSON),
    in_chunks("PUT", f"{STAGE}/stages/0/adapter", WRONG),
)


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[tuple[str, psutil.Process]]:
    """A leader of its own: its address and its process."""
    household = Household(tmp_path)
    data = str(tmp_path / "data")
    words = ["-m", "mcp_server.main", "--port", "0", "--data", data, "--relay", "none"]
    child = household.start("leader", words)
    url: str = wait_until("the leader", lambda: ready_url(child), 60, household)
    yield url, psutil.Process(child.process.pid)
    assert household.stop() == []


def test_no_number_of_bytes_from_people_without_a_right_costs_the_leader_much(
    leader: tuple[str, psutil.Process],
) -> None:
    """300 connections that say nothing, 144 that begin something and send 4 MB of it each."""
    url, process = leader
    port = int(url.rsplit(":", 1)[1])
    assert httpx2.get(f"{url}/healthz", timeout=20).is_success
    before = process.memory_info().rss
    sent = 0
    with ExitStack() as stack:
        for _ in range(CROWD):
            one = stack.enter_context(closing(socket.socket()))
            one.setblocking(False)
            one.connect_ex((LOOPBACK, port))
        for opening in OPENINGS * FLOODS:
            flood = stack.enter_context(
                closing(socket.create_connection((LOOPBACK, port), timeout=20))
            )
            flood.settimeout(0.2)
            with suppress(OSError):
                sent += flood.send(opening)
                for _ in range(FLOOD_BYTES // MB):
                    sent += flood.send(b"x" * MB)
        grown = process.memory_info().rss - before
        answer = httpx2.get(f"{url}/healthz", timeout=20)
    assert answer.is_success
    assert sent > 20 * MB
    assert grown < 50 * MB, f"{sent} bytes made it grow by {grown}"
