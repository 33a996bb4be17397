"""`swarm rehearse` as people call it: a leader killed under a running job, on this machine."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import yaml

from agents.rehearse.script import known_scripts

RUN_S = 45


def rehearse(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agents.cli.main", "rehearse", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)


def test_a_job_survives_the_leader_s_death_and_nothing_is_left_behind(tmp_path: Path) -> None:
    told = yaml.safe_load(known_scripts()["leader-restart"].read_text("utf-8"))
    told["expect"]["same_as_undisturbed"] = False  # the long form is for people
    told["job"]["train"] |= {"steps": 20, "eval_sequences": 0}
    told["troubles"] = [{"at": {"step": 3}, "do": "kill", "what": "leader", "for_s": 0.5}]
    script = tmp_path / "short.yaml"
    script.write_text(yaml.safe_dump(told), "utf-8")
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    ran = rehearse(str(script), "--json", "--folder", str(tmp_path / "files"))
    assert ran.returncode == 0, ran.stderr
    answer = json.loads(ran.stdout)
    assert (answer["holds"], answer["missed"]) == (True, [])
    assert (answer["job"]["state"], answer["job"]["attempt"]) == ("completed", 1)
    assert len(answer["losses"]) == answer["job"]["steps"]
    assert "kill leader" in ran.stderr
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
    left = [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(p.info["cmdline"])]
    assert left == []


def test_a_script_that_is_not_there_is_named_and_starts_nothing() -> None:
    ran = rehearse("no-such-script")
    assert ran.returncode == 4
    assert "no-such-script" in ran.stderr
    assert "--list" in ran.stderr
