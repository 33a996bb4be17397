"""A leader that dies at any point of a saved state's upload loses nothing that it acknowledged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(60)
def test_a_leader_killed_at_every_point_of_an_upload_keeps_whole_files_and_charges_for_those(
    tmp_path: Path,
) -> None:
    words = [sys.executable, "-m", "tests.flow.upload_kills", str(tmp_path)]
    run = subprocess.run(words, capture_output=True, text=True, timeout=55, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    told = json.loads(run.stdout)
    # Around syncs, renames, commits and removals, and between pieces of the body.
    assert told["points"] >= 15
    assert 0 < told["kept"] < told["points"]
    # A file may be there although its acknowledgement was lost; it is then sent once more.
    assert told["kept_unacknowledged"] > 0
