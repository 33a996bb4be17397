"""The demo's processes: alone, watched, and never left behind."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from agents.demo.processes import Household, wait_until
from transport.errors import SwarmError

SETPRIV = shutil.which("setpriv")
GRANDCHILD = (
    "import subprocess, sys, signal; "
    "p = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()']); "
    "print(p.pid, flush=True); signal.pause()"
)


def test_stopping_ends_a_child_and_what_the_child_started(tmp_path: Path) -> None:
    household = Household(tmp_path)
    child = household.start("fellow", ["-c", GRANDCHILD])
    told = wait_until("the child's word", lambda: child.last_lines().strip(), 10, household)
    household.stop()
    assert not psutil.pid_exists(int(told))
    assert child.process.poll() is not None
    assert household.stop() == []


OWNER = """
import signal, sys
from pathlib import Path
from agents.demo.processes import Household

child = Household(Path(sys.argv[1])).start("fellow", ["-c", "import signal; signal.pause()"])
print(child.process.pid, flush=True)
signal.pause()
"""


def _owner_killed(folder: Path, path: str = os.environ["PATH"]) -> psutil.Process:
    """The child of an owner that was killed as soon as it had started it."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PATH": path},
    )
    assert owner.stdout is not None
    with owner.stdout:
        child = psutil.Process(int(owner.stdout.readline()))
    owner.kill()
    owner.wait(10)
    return child


@pytest.mark.skipif(SETPRIV is None, reason="needs setpriv")
def test_a_child_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    gone, _ = psutil.wait_procs([_owner_killed(tmp_path)], timeout=10)
    assert gone


@pytest.mark.skipif(SETPRIV is None, reason="needs setpriv")
def test_a_child_ends_when_its_owner_was_killed_before_the_child_asked_to_be_told(
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    late = tmp_path / "bin" / "setpriv"
    late.parent.mkdir()
    late.write_text(f'#!/bin/sh\nread _ < "{gate}"\nexec {SETPRIV} "$@"\n')
    late.chmod(0o700)
    child = _owner_killed(tmp_path, f"{late.parent}:{os.environ['PATH']}")
    assert child.is_running()
    with gate.open("r+b", buffering=0) as opened:
        opened.write(b"go\n")
        gone, _ = psutil.wait_procs([child], timeout=10)
    assert gone


def test_a_child_sees_a_home_of_its_own_and_no_secret_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWARM_TOKEN", "swt_planted")
    household = Household(tmp_path)
    child = household.start("fellow", ["-c", "import os; print(sorted(os.environ.items()))"])
    assert child.process.wait(10) == 0
    told = child.last_lines()
    assert str(tmp_path / "fellow") in told
    assert "swt_planted" not in told


def test_a_child_that_ends_by_itself_is_an_error_with_the_end_of_its_log(tmp_path: Path) -> None:
    household = Household(tmp_path)
    household.start("leader", ["-c", "print('port in use'); raise SystemExit(1)"])
    with pytest.raises(SwarmError, match="port in use"):
        wait_until("the leader", lambda: None, 10, household)


def test_a_wait_is_bounded(tmp_path: Path) -> None:
    household = Household(tmp_path)
    household.start("leader", ["-c", "import signal; signal.pause()"])
    try:
        with pytest.raises(SwarmError, match="did not happen") as refusal:
            wait_until("the impossible", lambda: False, 0.3, household)
        assert refusal.value.code == "unavailable"
    finally:
        household.stop()
    assert Path(sys.executable).exists()
