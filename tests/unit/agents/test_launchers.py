"""Processes: forked and plain ones, the forkserver's own death, and the daemon's."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import anyio.to_thread
import psutil
import pytest

from agents.fellow.daemon import Daemon, DaemonSetting
from agents.fellow.forkserver_client import WarmLauncher
from agents.fellow.identity import load
from agents.fellow.joining import join
from agents.fellow.launcher import Ended, PlainLauncher
from agents.fellow.proof import Proofs
from tests.unit.agents.build import FORKSERVER, INVITE, WORKER, an_assignment, an_order
from tests.unit.agents.leader_twin import LeaderTwin, running
from transport.errors import SwarmError
from transport.orders import WorkerStart

pytestmark = pytest.mark.anyio


def first_line(folder: Path, behaviour: str = "wait") -> str:
    return WorkerStart(
        order=an_order(behaviour),
        leader_url="",
        leader_token="",
        leader_pin=None,
        cache_folder=str(folder),
        work_folder=str(folder),
        listen_address="127.0.0.1",
    ).model_dump_json()


async def test_a_worker_ends_when_the_daemon_hangs_up(tmp_path: Path) -> None:
    for launcher in (PlainLauncher(WORKER), WarmLauncher(FORKSERVER)):
        process = await launcher.launch("w", 1)
        await process.channel.send(first_line(tmp_path))
        assert '"bound"' in await anext(process.channel.lines())
        process.channel.close()
        async with asyncio.timeout(10):
            assert await process.ended == Ended(5, None)
        process.close()
        await launcher.close()


async def test_a_signal_reaches_the_worker_and_nobody_after_its_end(tmp_path: Path) -> None:
    launcher = WarmLauncher(FORKSERVER)
    process = await launcher.launch("w", 1)
    await process.channel.send(first_line(tmp_path))
    process.signal(signal.SIGTERM)
    async with asyncio.timeout(10):
        assert await process.ended == Ended(None, signal.SIGTERM)
    process.signal(signal.SIGKILL)
    process.close()
    await launcher.close()


async def test_when_the_forkserver_dies_its_workers_end_and_the_next_start_has_a_new_one(
    tmp_path: Path,
) -> None:
    launcher = WarmLauncher(FORKSERVER)
    first = await launcher.launch("first", 1)
    await first.channel.send(first_line(tmp_path))
    server = psutil.Process(first.pid).parent()
    assert server is not None

    server.kill()
    async with asyncio.timeout(10):
        assert await first.ended == Ended(None, None)
    await anyio.to_thread.run_sync(gone, first.pid)
    second = await launcher.launch("second", 1)

    assert psutil.pid_exists(second.pid)
    for process in (first, second):
        process.close()
    await launcher.close()


def gone(pid: int) -> None:
    """Wait until a process that is nobody's child here has ended."""
    try:
        psutil.Process(pid).wait(10)
    except psutil.NoSuchProcess:
        pass


async def test_the_warm_process_tells_which_number_formats_it_proved() -> None:
    launcher = WarmLauncher(FORKSERVER)
    proofs = Proofs()
    proofs.take(await launcher.prove())
    assert proofs.formats("cpu", ["float32"]) == ["float32", "bfloat16", "nf4"]
    await launcher.close()


async def test_a_forkserver_that_dies_at_a_start_is_said(tmp_path: Path) -> None:
    launcher = WarmLauncher(FORKSERVER)
    with pytest.raises(SwarmError) as refusal:
        await launcher.launch("j-refused/1/0", 1)
    assert "ended with code 9" in refusal.value.message
    await launcher.close()


async def test_a_forkserver_that_cannot_load_torch_is_said_with_its_last_words() -> None:
    command = (sys.executable, "-c", "import sys; sys.exit('No module named torch')")
    launcher = WarmLauncher(command)
    with pytest.raises(SwarmError) as refusal:
        await launcher.launch("w", 1)
    assert "ended with code 1" in refusal.value.message
    await launcher.close()


async def test_a_stage_that_cannot_be_started_has_failed_with_the_reason(tmp_path: Path) -> None:
    twin = LeaderTwin()
    twin.invites[INVITE] = None
    with running(twin):
        identity = await join(tmp_path, twin.url, INVITE, ("cpu:500MB:1",))
        launcher = PlainLauncher(("/no/such/program",))
        daemon = Daemon(identity, DaemonSetting(tmp_path, tmp_path, launcher=launcher))
        task = asyncio.create_task(daemon.run())
        twin.want(an_assignment("wait"))
        await anyio.to_thread.run_sync(twin.wait_for, lambda: twin.of("failed"))
        daemon.stop()
        async with asyncio.timeout(10):
            await task
    (failed,) = twin.of("failed")
    assert "no worker could be started" in failed.message


async def test_a_state_folder_that_cannot_be_written_fails_the_stage_and_not_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    twin = LeaderTwin()
    twin.invites[INVITE] = None
    with running(twin):
        identity = await join(tmp_path, twin.url, INVITE, ("cpu:500MB:1",))
        monkeypatch.setattr("agents.fellow.attempts.write_private", full)
        setting = DaemonSetting(tmp_path, tmp_path, launcher=PlainLauncher(WORKER))
        daemon = Daemon(identity, setting)
        task = asyncio.create_task(daemon.run())
        twin.want(an_assignment("finish"))
        await anyio.to_thread.run_sync(twin.wait_for, lambda: twin.of("failed"))
        daemon.stop()
        async with asyncio.timeout(10):
            await task
    assert "No space left on device" in twin.of("failed")[0].message


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_the_daemon_as_a_process_leaves_none_behind(tmp_path: Path, number: int) -> None:
    twin = LeaderTwin()
    twin.invites[INVITE] = None
    program = (
        "import sys; from agents.fellow import daemon, launcher; from agents.cli.main import main;"
        f"daemon.PlainLauncher = lambda: launcher.PlainLauncher({WORKER!r}); main()"
    )
    words = ["--card", "cpu:500MB:1", "--no-warm", "--state", str(tmp_path), "--no-color"]
    words += ["--name", "desk"]
    with running(twin):
        child = subprocess.Popen(
            [sys.executable, "-c", program, "join", twin.url, *words],
            env={**os.environ, "SWARM_INVITE": INVITE},
            stderr=subprocess.PIPE,
        )
        twin.want(an_assignment("wait"))
        await anyio.to_thread.run_sync(twin.wait_for, lambda: twin.of("bound"), 30)
        assert twin.beats[0].machine.hostname == "desk"
        worker = int(twin.of("bound")[0].endpoints[0].removeprefix("pid:"))
        began = time.monotonic()
        child.send_signal(number)
        _, complained = await anyio.to_thread.run_sync(lambda: child.communicate(timeout=15))

        assert time.monotonic() - began < 10
        await anyio.to_thread.run_sync(gone, worker)
        assert child.returncode == (0 if number == signal.SIGTERM else -9)
        if number == signal.SIGTERM:
            assert twin.of("failed")[0].message == "the fellow was stopped on its own machine"
            lines = [json.loads(line) for line in complained.splitlines()[1:]]
            assert lines[-1]["message"] == "fellow ended"
    assert INVITE not in complained.decode()


async def test_a_fellow_that_was_removed_exits_with_6(tmp_path: Path) -> None:
    twin = LeaderTwin()
    twin.invites[INVITE] = None
    with running(twin):
        identity = await join(tmp_path, twin.url, INVITE, ("cpu:500MB:1",))
        twin.remove_all()
        command = [sys.executable, "-m", "agents.cli.main", "fellow", "--state", str(tmp_path)]
        command += ["--no-warm", "-q", "--json", "--name", "attic"]
        told = await anyio.to_thread.run_sync(
            lambda: subprocess.run(command, check=False, capture_output=True, timeout=30)
        )
    assert told.returncode == 6
    assert identity.fellow_id in json.loads(told.stdout)["detail"]
    assert load(tmp_path) == replace(identity, name="attic")  # kept for the next start


@pytest.mark.slow
async def test_the_real_forkserver_starts_real_workers_at_once(tmp_path: Path) -> None:
    launcher = WarmLauncher()
    first = await launcher.launch("first", 1)
    began = time.monotonic()
    more = [await launcher.launch(name, 1) for name in ("second", "third")]
    took_s = time.monotonic() - began
    for process in (first, *more):
        process.channel.close()
        async with asyncio.timeout(20):
            how = await process.ended
        assert (how.code, how.signal) == (5, None)
        process.close()
    await launcher.close()
    assert took_s < 5
