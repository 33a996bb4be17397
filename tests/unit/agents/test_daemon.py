"""The fellow daemon against a leader over real HTTP, with real worker processes."""

import asyncio
import contextlib
import json
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import psutil
import pytest

from agents.fellow import identity as identities
from agents.fellow.daemon import Daemon, DaemonSetting
from agents.fellow.forkserver_client import WarmLauncher
from agents.fellow.identity import Identity
from agents.fellow.joining import join
from agents.fellow.launcher import Launcher, PlainLauncher
from agents.fellow.worker import Patience
from tests.unit.agents.build import FORKSERVER, INVITE, WORKER, an_assignment
from tests.unit.agents.leader_twin import LeaderTwin, running
from transport.errors import SwarmError
from transport.orders import MeasureOrder

pytestmark = pytest.mark.anyio

QUICK = Patience(pause_s=0.5, term_s=0.3)
FIGURES = '{"speeds":[{"number_format":"float32","tflops":0.5,"measured_at":1.0}]}'
PROBE = ("/bin/sh", "-c", f"echo noise; echo '{FIGURES}'")


@pytest.fixture
def twin() -> Iterator[LeaderTwin]:
    with running(LeaderTwin()) as one:
        one.invites[INVITE] = None
        yield one


@pytest.fixture(params=["plain", "warm"])
def launcher(request: pytest.FixtureRequest) -> Callable[[], Launcher]:
    kind = request.param
    return lambda: PlainLauncher(WORKER) if kind == "plain" else WarmLauncher(FORKSERVER)


async def told(twin: LeaderTwin, truth: Callable[[], Any], timeout_s: float = 10.0) -> Any:
    return await anyio.to_thread.run_sync(twin.wait_for, truth, timeout_s)


@asynccontextmanager
async def a_daemon(
    twin: LeaderTwin, folder: Path, launcher: Launcher, **more: Any
) -> AsyncIterator[Daemon]:
    identity = await join(folder, twin.url, INVITE, ("cpu:500MB:1",))
    async with a_daemon_of(identity, folder, launcher, **more) as daemon:
        yield daemon


@asynccontextmanager
async def a_daemon_of(
    identity: Identity, folder: Path, launcher: Launcher, **more: Any
) -> AsyncIterator[Daemon]:
    setting = DaemonSetting(
        state_folder=folder,
        cache_folder=folder / "cache",
        launcher=launcher,
        patience=QUICK,
        **{"probe": PROBE, **more},
    )
    daemon = Daemon(identity, setting)
    task = asyncio.create_task(daemon.run())
    try:
        yield daemon
    finally:
        daemon.stop()
        async with asyncio.timeout(10):
            with contextlib.suppress(SwarmError):
                await task


async def test_a_stage_is_started_connected_finished_and_reported_once(
    twin: LeaderTwin, tmp_path: Path, launcher: Callable[[], Launcher]
) -> None:
    async with a_daemon(twin, tmp_path, launcher()):
        twin.want(an_assignment("linked"))
        await told(twin, lambda: twin.of("bound"))
        twin.want(an_assignment("linked", with_links=True))
        await told(twin, lambda: twin.of("done"))
        assert twin.kinds() == ["bound", "loaded", "step", "step", "step", "done"]
        beats = len(twin.beats)
        await told(twin, lambda: len(twin.beats) >= beats + 3)

    assert twin.kinds() == ["bound", "loaded", "step", "step", "step", "done"]
    assert [n.sequence for n in twin.reports] == list(range(1, len(twin.reports) + 1))


async def test_a_heartbeat_tells_machine_cards_and_what_runs(
    twin: LeaderTwin, tmp_path: Path, launcher: Callable[[], Launcher]
) -> None:
    async with a_daemon(twin, tmp_path, launcher()):
        await told(twin, lambda: twin.beats)
        idle = twin.beats[0]
        twin.want(an_assignment("wait"))
        await told(twin, lambda: twin.beats[-1].stages)
        busy = twin.beats[-1]

    assert idle.machine.listen_address == "127.0.0.1"
    assert idle.machine.disk_free_bytes
    assert [(c.kind, c.total_bytes, c.threads) for c in idle.cards] == [("cpu", 500_000_000, 1)]
    assert idle.cards[0].free_bytes == 500_000_000
    assert busy.cards[0].free_bytes == 400_000_000
    assert (busy.stages[0].attempt, busy.stages[0].stage) == (1, 0)
    assert busy.stages[0].resident_bytes


async def test_what_is_no_longer_wanted_is_stopped_without_being_called_a_failure(
    twin: LeaderTwin, tmp_path: Path, launcher: Callable[[], Launcher]
) -> None:
    async with a_daemon(twin, tmp_path, launcher()):
        twin.want(an_assignment("wait"))
        await told(twin, lambda: twin.of("bound"))
        pid = int(twin.of("bound")[0].endpoints[0].removeprefix("pid:"))
        twin.want()
        await told(twin, lambda: any("paused" in line.text for line in twin.of("log")))
        beats = len(twin.beats)
        await told(twin, lambda: len(twin.beats) >= beats + 2 and not twin.beats[-1].stages)
        assert not psutil.pid_exists(pid)

    assert twin.of("failed") == []


async def test_a_worker_that_ignores_everything_is_killed(
    twin: LeaderTwin, tmp_path: Path, launcher: Callable[[], Launcher]
) -> None:
    async with a_daemon(twin, tmp_path, launcher()):
        twin.want(an_assignment("deaf"))
        await told(twin, lambda: twin.beats and twin.beats[-1].stages)
        twin.want(an_assignment("deaf", pause=True))
        await told(twin, lambda: not twin.beats[-1].stages)

    assert twin.of("failed") == []


@pytest.mark.parametrize(
    ("behaviour", "words", "exit_code"),
    [
        ("die", "the worker process was killed by signal 9 (SIGKILL)", None),
        ("exit7", "the worker process ended with exit code 7", 7),
        ("silent", "the worker process ended without saying that its stage was finished", 0),
        ("fails", "my own reason", None),
    ],
)
async def test_the_death_of_a_worker_is_reported_once_with_its_last_words(
    twin: LeaderTwin,
    tmp_path: Path,
    launcher: Callable[[], Launcher],
    behaviour: str,
    words: str,
    exit_code: int | None,
) -> None:
    async with a_daemon(twin, tmp_path, launcher()):
        twin.want(an_assignment(behaviour))
        await told(twin, lambda: twin.of("failed"))
        beats = len(twin.beats)
        await told(twin, lambda: len(twin.beats) >= beats + 2)

    failed = twin.of("failed")
    assert [(f.message, f.exit_code) for f in failed] == [(words, exit_code)]
    if behaviour == "die":
        assert "Traceback: the last words" in [line.text for line in twin.of("log")]


async def test_a_newer_attempt_replaces_the_older_one(
    twin: LeaderTwin, tmp_path: Path, launcher: Callable[[], Launcher]
) -> None:
    async with a_daemon(twin, tmp_path, launcher()):
        twin.want(an_assignment("wait", attempt=1))
        await told(twin, lambda: twin.of("bound"))
        twin.want(an_assignment("wait", attempt=2))
        await told(twin, lambda: len(twin.of("bound")) == 2)
        await told(twin, lambda: [s.attempt for s in twin.beats[-1].stages] == [2])

    assert [r.attempt for r in twin.of("bound")] == [1, 2]


async def test_workers_go_on_and_reports_wait_while_the_leader_is_away(tmp_path: Path) -> None:
    twin = LeaderTwin()
    twin.invites[INVITE] = None
    with running(twin):
        port = int(twin.url.rpartition(":")[2])
        identity = await join(tmp_path, twin.url, INVITE, ("cpu:500MB:1",))
        setting = DaemonSetting(tmp_path, tmp_path, launcher=PlainLauncher(WORKER), patience=QUICK)
        daemon = Daemon(identity, setting)
        task = asyncio.create_task(daemon.run())
        twin.want(an_assignment("linked"))
        await told(twin, lambda: twin.of("bound"))
    pid = int(twin.of("bound")[0].endpoints[0].removeprefix("pid:"))
    assert psutil.pid_exists(pid)

    with running(twin, port):
        twin.want(an_assignment("linked", with_links=True))
        await told(twin, lambda: twin.of("done"))
        daemon.stop()
        async with asyncio.timeout(10):
            await task
    assert twin.kinds() == ["bound", "loaded", "step", "step", "step", "done"]


async def test_lost_answers_and_refusals_neither_double_nor_lose_a_report(
    twin: LeaderTwin, tmp_path: Path
) -> None:
    async with a_daemon(twin, tmp_path, PlainLauncher(WORKER)):
        await told(twin, lambda: twin.beats)
        twin.faults.extend(["lost", "503", "lost", "lost", "503"])
        twin.want(an_assignment("finish"))
        await told(twin, lambda: twin.of("done"))

    assert twin.kinds() == ["bound", "step", "step", "step", "done"]


async def test_a_leader_that_does_not_know_the_fellow_ends_it_with_a_clear_sentence(
    twin: LeaderTwin, tmp_path: Path
) -> None:
    identity = await join(tmp_path, twin.url, INVITE, ("cpu:500MB:1",))
    setting = DaemonSetting(tmp_path, tmp_path, launcher=PlainLauncher(WORKER), patience=QUICK)
    daemon = Daemon(identity, setting)
    task = asyncio.create_task(daemon.run())
    twin.want(an_assignment("wait"))
    await told(twin, lambda: twin.of("bound"))
    pid = int(twin.of("bound")[0].endpoints[0].removeprefix("pid:"))

    twin.remove_all()
    with pytest.raises(SwarmError) as refusal:
        async with asyncio.timeout(10):
            await task

    assert (refusal.value.code, refusal.value.exit_code) == ("unauthenticated", 6)
    assert identity.fellow_id in refusal.value.message
    assert not psutil.pid_exists(pid)


async def test_stages_that_ran_when_the_daemon_died_are_reported_and_not_started_again(
    twin: LeaderTwin, tmp_path: Path
) -> None:
    async with a_daemon(twin, tmp_path, PlainLauncher(WORKER)):
        twin.want(an_assignment("wait"))
        await told(twin, lambda: twin.of("bound"))
        # As a killed daemon leaves it: started, its end never noted.
        state = (tmp_path / "attempts.json").read_text()
    (tmp_path / "attempts.json").write_text(state)
    before = len(twin.reports)

    async with a_daemon(twin, tmp_path, PlainLauncher(WORKER)):
        await told(twin, lambda: len(twin.reports) > before)
        beats = len(twin.beats)
        await told(twin, lambda: len(twin.beats) >= beats + 2)

    assert [n.report.kind for n in twin.reports[before:]] == ["failed"]
    assert "daemon ended" in twin.reports[-1].report.message  # type: ignore[union-attr]
    assert len(twin.of("bound")) == 1


async def test_cards_are_measured_once_for_each_order(twin: LeaderTwin, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    probe = ("/bin/sh", "-c", f"cat {gate}")  # measures until the test lets it end
    async with a_daemon(twin, tmp_path, PlainLauncher(WORKER), probe=probe):
        await told(twin, lambda: twin.beats)
        twin.want(measure=MeasureOrder(token="m-1"))
        await told(twin, lambda: twin.beats[-1].measuring)
        await anyio.to_thread.run_sync(gate.write_text, FIGURES)
        await told(twin, lambda: twin.of("measured"))
        await told(twin, lambda: twin.beats[-1].cards[0].speeds)
        beats = len(twin.beats)
        await told(twin, lambda: len(twin.beats) >= beats + 2)

    (measured,) = twin.of("measured")
    assert (measured.token, measured.error, measured.speeds[0].tflops) == ("m-1", "", 0.5)
    assert not twin.beats[-1].measuring


async def test_a_worker_is_told_its_secret_on_the_channel_and_never_in_its_log(
    twin: LeaderTwin, tmp_path: Path
) -> None:
    async with a_daemon(twin, tmp_path, PlainLauncher(WORKER)):
        twin.want(an_assignment("secret"))
        await told(twin, lambda: twin.of("log"))
        twin.want()
        await told(twin, lambda: len(twin.of("log")) > 1)

    credential = json.loads((tmp_path / "identity.json").read_text())["credential"]
    assert credential not in json.dumps([n.model_dump() for n in twin.reports])
    assert "token [hidden]" in twin.of("log")[0].text


async def test_a_machine_is_called_as_it_was_told_and_else_as_its_system_does(
    twin: LeaderTwin, tmp_path: Path
) -> None:
    unnamed = await join(tmp_path / "a", twin.url, INVITE, ("cpu:500MB:1",))
    assert unnamed.shown_name == socket.gethostname()

    twin.invites["swi_another-invite-of-this-pool"] = None
    named = await join(
        tmp_path / "b", twin.url, "swi_another-invite-of-this-pool", ("cpu:500MB:1",), "desk"
    )
    assert identities.load(tmp_path / "b") == named
    async with a_daemon_of(named, tmp_path / "b", PlainLauncher(WORKER)):
        await told(twin, lambda: twin.beats)
    assert twin.beats[0].machine.hostname == "desk"
    kept = await join(tmp_path / "b", twin.url, "swi_another-invite-of-this-pool", ())
    assert kept.shown_name == "desk"


async def test_the_same_invite_again_is_the_same_join(twin: LeaderTwin, tmp_path: Path) -> None:
    twin.faults.append("lost")
    first = await join(tmp_path, twin.url, INVITE, ("cpu:500MB:1",))
    again = await join(tmp_path, twin.url, f" {INVITE}\n", ())

    assert first == again
    assert len(twin.fellows) == 1
    assert oct((tmp_path / "identity.json").stat().st_mode & 0o777) == "0o600"


async def test_an_invite_that_another_machine_used_is_refused(
    twin: LeaderTwin, tmp_path: Path
) -> None:
    await join(tmp_path / "a", twin.url, INVITE, ("cpu:500MB:1",))
    with pytest.raises(SwarmError) as refusal:
        await join(tmp_path / "b", twin.url, INVITE, ("cpu:500MB:1",))

    assert refusal.value.code == "not-found"
    left = identities.load(tmp_path / "b")
    assert isinstance(left, Identity)
    assert not left.has_joined


def test_a_second_daemon_on_one_folder_is_refused(tmp_path: Path) -> None:
    with identities.OneDaemon(tmp_path):
        with pytest.raises(SwarmError) as refusal, identities.OneDaemon(tmp_path):
            pass
        assert refusal.value.code == "conflict"
    with identities.OneDaemon(tmp_path):
        assert threading.active_count() >= 1
