"""The leader as a process: ready, at work, ended; and what it leaves in its folder and its log."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from mcp_server.main import main

CREDENTIAL = "swn_" + "c" * 40


@dataclass
class Process:
    """A running leader."""

    child: asyncio.subprocess.Process
    url: str
    data: Path
    log: Path

    @property
    def token(self) -> str:
        """Its owner's."""
        return (self.data / "owner.token").read_text()

    def http(self, **headers: str) -> httpx2.AsyncClient:
        """A client with the owner's token."""
        told = {"authorization": f"Bearer {self.token}"} | headers
        return httpx2.AsyncClient(base_url=self.url, headers=told, timeout=20)

    async def end(self) -> tuple[int, float]:
        """SIGTERM: the exit code, and how many seconds it took."""
        began = time.monotonic()
        self.child.send_signal(signal.SIGTERM)
        code = await asyncio.wait_for(self.child.wait(), 15)
        return code, time.monotonic() - began


@asynccontextmanager
async def leader(root: Path, folder: Path, *words: str) -> AsyncIterator[Process]:
    """Start one; kill what is left at the end."""
    folder.mkdir(exist_ok=True)
    data, log = folder / "data", folder / "log.jsonl"
    with log.open("ab") as errors:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "mcp_server.main", "--port", "0", "--data", str(data),
            "--log-level", "debug", *words,
            cwd=root, stdout=asyncio.subprocess.PIPE, stderr=errors,
            env=os.environ | {"SWARM_CONFIG": str(folder / "none.toml")},
        )  # fmt: skip
    try:
        assert child.stdout is not None
        line = await asyncio.wait_for(child.stdout.readline(), 30)
        told = json.loads(line)
        assert told["ready"] is True
        yield Process(child, told["url"], data, log)
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def test_a_leader_ends_within_ten_seconds_whatever_is_held_open(
    root: Path, tmp_path: Path
) -> None:
    async with leader(root, tmp_path) as one, one.http() as client:
        await client.post("/api/v1/pools", json={"pool": "ann/lab"})
        secret = (await client.post("/api/v1/invites", json={"pool": "ann/lab"})).json()["secret"]
        ask = {"protocol": 1, "invite": secret, "hostname": "box", "version": "1"}
        digest = "b0f5e2a7a7bd3b1c9c37b7a3c0c8d9f17e7ed5c9c6f0ce1ff1e5a7b0f1a2b3c4"
        joined = await client.post("/fellow/v1/join", json=ask | {"credential_sha256": digest})
        async with client.stream("GET", "/api/v1/events") as stream:
            lines = stream.aiter_lines()
            assert await anext(lines) != ""
            headers = {"accept": "application/json, text/event-stream"}
            hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
                "protocolVersion": "2025-11-25", "capabilities": {},
                "clientInfo": {"name": "t", "version": "1"}}}  # fmt: skip
            opened = await client.post("/mcp", json=hello, headers=headers)
            session = headers | {"mcp-session-id": opened.headers["mcp-session-id"]}
            async with client.stream("GET", "/mcp", headers=session) as mcp:
                code, seconds = await one.end()
                assert mcp.status_code == 200
            rest = [line async for line in lines]
    assert joined.status_code == 200
    assert (code, seconds < 10) == (0, True), one.log.read_text()
    assert any(line.startswith("data:") for line in rest)


async def test_a_leader_that_comes_back_knows_what_it_knew_and_lets_the_same_in(
    root: Path, tmp_path: Path
) -> None:
    async with leader(root, tmp_path) as one:
        token = one.token
        async with one.http() as client:
            await client.post("/api/v1/pools", json={"pool": "ann/lab"})
            link = (await client.post("/signin")).json()["url"]
            cookie = (await client.get(link)).headers["set-cookie"].partition(";")[0]
        await one.end()
    async with leader(root, tmp_path) as again:
        assert again.token == token
        async with again.http() as client:
            pools = (await client.get("/api/v1/pools")).json()["pools"]
        async with httpx2.AsyncClient(base_url=again.url, headers={"cookie": cookie}) as browser:
            signed_in = await browser.get("/api/v1/pools")
    assert [pool["pool"] for pool in pools] == ["ann/lab"]
    assert signed_in.status_code == 200


async def test_what_a_leader_leaves_is_for_its_owner_and_holds_no_secret(
    root: Path, tmp_path: Path
) -> None:
    async with leader(root, tmp_path) as one:
        async with one.http() as client:
            await client.post("/api/v1/pools", json={"pool": "ann/lab"})
            invite = (await client.post("/api/v1/invites", json={"pool": "ann/lab"})).json()
            agent = (await client.post("/api/v1/tokens", json={"name": "agent"})).json()
            link = (await client.post("/signin")).json()["url"]
            await client.get(link)
            wrong = httpx2.Headers({"authorization": f"Bearer {CREDENTIAL}"})
            await client.get("/fellow/v1/orders", headers=wrong)
            await client.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "no"})
        token = one.token
        await one.end()
    secrets = [token, invite["secret"], agent["secret"], CREDENTIAL, link.partition("code=")[2]]
    log = one.log.read_text()
    assert [json.loads(line)["level"] for line in log.splitlines()]
    assert [secret for secret in secrets if secret in log] == []
    database = b"".join(path.read_bytes() for path in one.data.glob("leader.db*"))
    assert [secret for secret in secrets if secret.encode() in database] == []
    assert one.data.stat().st_mode & 0o777 == 0o700
    assert (one.data / "owner.token").stat().st_mode & 0o777 == 0o600


async def test_two_leaders_do_not_share_a_folder(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with leader(root, tmp_path) as one:
        data = str(one.data)
        second = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "mcp_server.main", "--port", "0", "--data", data,
            cwd=root, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, errors = await asyncio.wait_for(second.communicate(), 20)
        backed_up = main(["backup", str(tmp_path / "b.tar"), "--data", data])
    assert (second.returncode, out, backed_up) == (5, b"", 5)
    assert errors.decode().startswith("conflict: another leader already uses the data folder")
    assert "another leader" in capsys.readouterr().err


async def test_a_backup_gives_the_same_leader_in_another_folder(root: Path, tmp_path: Path) -> None:
    async with leader(root, tmp_path / "old") as one:
        token = one.token
        async with one.http() as client:
            await client.post("/api/v1/pools", json={"pool": "ann/lab"})
        await one.end()
    file, fresh = str(tmp_path / "b.tar"), str(tmp_path / "new" / "data")
    assert main(["backup", file, "--data", str(one.data)]) == 0
    assert main(["restore", file, "--data", fresh]) == 0
    assert main(["restore", file, "--data", fresh]) == 5
    async with leader(root, tmp_path / "new") as again, again.http() as client:
        pools = (await client.get("/api/v1/pools")).json()["pools"]
    assert [pool["pool"] for pool in pools] == ["ann/lab"]
    assert again.token == token
