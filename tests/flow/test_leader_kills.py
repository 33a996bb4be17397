"""A leader that is killed at work loses nothing that it acknowledged."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT


def kill(folder: Path, rounds: int, timeout_s: float) -> dict[str, Any]:
    run = subprocess.run(
        [sys.executable, "-m", "tests.flow.leader_kills", str(folder), str(rounds), "1"],
        check=True,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=timeout_s,
    )
    told: dict[str, Any] = json.loads(run.stdout)
    return told


def test_twelve_kills_of_a_leader_under_submits_and_reports_lose_nothing(tmp_path: Path) -> None:
    told = kill(tmp_path, 12, 50)
    assert (told["lost"], told["integrity"], told["job"]) == ([], "ok", ["running", 1])
    assert told["opened"] == 12
    assert told["acknowledged"] > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_hundred_kills_of_a_leader_under_submits_and_reports_lose_nothing(
    tmp_path: Path,
) -> None:
    told = kill(tmp_path, 200, 880)
    print(f"200 kills, {told['acknowledged']} acknowledgements, {len(told['lost'])} lost")
    assert (told["lost"], told["integrity"], told["job"]) == ([], "ok", ["running", 1])
