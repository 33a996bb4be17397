"""`swarm rehearse` as people call it: a leader killed under a running job, on this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml

from agents.rehearse.script import known_scripts

RUN_S = 120


def rehearse(*words: str, limit_s: float = RUN_S) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agents.cli.main", "rehearse", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)


def test_a_job_survives_the_leader_s_death_and_nothing_is_left_behind(tmp_path: Path) -> None:
    told = yaml.safe_load(known_scripts()["leader-restart"].read_text("utf-8"))
    told["expect"]["same_as_undisturbed"] = False  # the long form is for people
    told["job"]["train"] |= {"steps": 20, "eval_sequences": 0}
    told["fellows"] = [
        {"name": "ada", "card": {"name": "RTX 3060", "memory_gb": 0.4}},
        {"name": "bob", "card": "cpu:400MB:1", "link": {"delay_ms": 1, "mbit": 200}},
    ]
    told["troubles"] = [
        {"at": {"step": 3}, "do": "kill", "what": "leader", "for_s": 0.5},
        {"at": {"step": 6}, "do": "break", "what": "link"},
    ]
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
    assert [one["what"] for one in answer["troubles"]] == [
        "kill leader", "end of: kill leader", "break link",
    ]  # fmt: skip
    assert {seat["fellow"] for seat in answer["plan"]} == {"ada", "bob"}
    assert {seat["card"] for seat in answer["plan"]} > {"RTX 3060 (virtual)"}
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
    left = [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(p.info["cmdline"])]
    assert left == []


def test_a_script_that_is_not_there_is_named_and_starts_nothing() -> None:
    ran = rehearse("no-such-script")
    assert ran.returncode == 4
    assert "no-such-script" in ran.stderr
    assert "--list" in ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(known_scripts()))
def test_every_script_that_comes_with_swarm_holds_what_it_says(name: str) -> None:
    if "disk_mb" in known_scripts()[name].read_text("utf-8") and os.geteuid() != 0:
        pytest.skip("needs root, for a disk of its own")
    ran = rehearse(name, "--json", limit_s=400)
    assert ran.returncode == 0, ran.stderr
    answer = json.loads(ran.stdout)
    assert answer["missed"] == []
    assert answer["troubles"]


def test_a_card_larger_than_this_machine_is_refused_before_anything_starts(tmp_path: Path) -> None:
    script = tmp_path / "large.yaml"
    told = {"version": 1, "fellows": [{"name": "ada", "card": {"name": "x", "memory_gb": 999}}]}
    script.write_text(yaml.safe_dump({**told, "job": {}}), "utf-8")
    ran = rehearse(str(script))
    assert ran.returncode == 2
    assert "asks for 999 GB of" in ran.stderr
