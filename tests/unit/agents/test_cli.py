"""`swarm`: commands from the declarations, exit codes, JSON, and what a person reads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agents.cli import words
from agents.cli.operation_commands import command_of
from tests.unit.agents.conftest import Swarm
from tests.unit.agents.rest_twin import JOB, POOL, TOKEN, RestTwin, a_job
from transport.api.catalog import OPERATIONS
from transport.errors import SwarmError


def test_the_table_of_first_words_is_that_of_the_declarations() -> None:
    assert set(words.GROUPS) == {operation.words[0] for operation in OPERATIONS.values()}
    assert not set(words.GROUPS) & set(words.COMMANDS)
    assert set(words.INSIDE) <= {operation.words for operation in OPERATIONS.values()}


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_every_operation_has_a_command_with_help(name: str, swarm: Swarm) -> None:
    told = swarm(*OPERATIONS[name].words, "--help")
    assert told.code == 0
    assert "Usage: swarm" in told.out


def test_json_is_the_answer_unchanged(swarm: Swarm, leader: RestTwin) -> None:
    told = swarm("jobs", "show", JOB, "--json")
    assert told.code == 0
    assert told.json == a_job()
    assert leader.asked == [("jobs_get", {"job_id": JOB})]


def test_words_become_typed_arguments(swarm: Swarm, leader: RestTwin) -> None:
    assert swarm("jobs", "list", "--limit", 7, "--state", "running", "--pool", POOL).code == 0
    assert leader.asked == [("jobs_list", {"limit": 7, "state": "running", "pool": POOL})]


def test_a_change_always_carries_a_request_id_and_is_asked_again_with_the_same(
    swarm: Swarm, leader: RestTwin
) -> None:
    leader.faults.extend(["lost", "503"])
    leader.answers["jobs_cancel"] = lambda _: a_job(state="cancelled")
    assert swarm("jobs", "cancel", JOB).code == 0
    first, second = leader.of("jobs_cancel")
    assert first["request_id"] == second["request_id"]
    assert len(first["request_id"]) == 32


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("job", "list"), "invalid-input", "Did you mean 'jobs'?"),
        (("jobs", "lst"), "invalid-input", "Did you mean 'list'?"),
        (("jobs", "list", "--limt", "3"), "invalid-input", "--limit"),
        (("jobs", "list", "--limit", "many"), "invalid-input", "/limit"),
        (("jobs", "list", "--limit", "NaN"), "invalid-input", "/limit"),
        (("jobs", "list", "--limit", "1000"), "invalid-input", "/limit"),
        (("jobs", "list", "--state", "done"), "invalid-input", "completed"),
        (("jobs", "show"), "invalid-input", "JOB_ID"),
        (("jobs", "show", "../../etc"), "invalid-input", "/job_id"),
        (("jobs", "wait", JOB, "--timeout-s", "nan"), "invalid-input", "/timeout_s"),
        (("status", "--timeout", "soon"), "invalid-input", "soon"),
        (("status", "--leader", "ftp://x"), "invalid-input", "address"),
        (("status", "--token-file", "/nonexistent"), "invalid-input", "token file"),
    ],
)
def test_wrong_words_are_refused_in_one_sentence_and_ask_nothing(
    swarm: Swarm, leader: RestTwin, words: tuple[str, ...], code: str, says: str
) -> None:
    told = swarm(*words, "--json")
    assert told.code == 2
    assert told.json["code"] == code
    assert says in told.json["detail"] + told.json["hint"]
    assert told.err.count("\n") == 1
    assert leader.asked == []


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("internal", 1),
        ("invalid-input", 2),
        ("not-found", 4),
        ("plan-changed", 5),
        ("forbidden", 6),
        ("rate-limited", 7),
    ],
)
def test_the_exit_code_tells_the_kind_of_refusal(
    swarm: Swarm, leader: RestTwin, code: str, exit_code: int
) -> None:
    leader.errors["jobs_get"] = SwarmError(code, "no", hint="do this")
    told = swarm("jobs", "show", JOB)
    assert (told.code, told.out) == (exit_code, "")
    assert f"error: no ({code})\n  next: do this" in told.err


def test_a_hint_names_commands_at_a_shell_and_operations_to_programs(
    swarm: Swarm, leader: RestTwin
) -> None:
    hint = "look with jobs_get, or plan again with jobs_plan; jobs_get_all is none"
    leader.errors["jobs_get"] = SwarmError("conflict", "no", hint=hint)
    said = "look with `swarm jobs show`, or plan again with `swarm jobs plan`; jobs_get_all is none"
    assert f"  next: {said}\n" in swarm("jobs", "show", JOB).err
    assert json.loads(swarm("jobs", "show", JOB, "--json").out)["hint"] == hint


def test_a_leader_that_is_not_there_is_said_with_its_address(
    swarm: Swarm, leader: RestTwin
) -> None:
    told = swarm("status", "--leader", "http://127.0.0.1:9")
    assert told.code == 7
    assert "no leader answers at http://127.0.0.1:9" in told.err
    assert "swarm leader" in told.err


def test_a_wrong_token_is_not_allowed(
    swarm: Swarm, leader: RestTwin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWARM_TOKEN", "swt_wrong")
    assert swarm("jobs", "list").code == 6


def test_the_only_pool_needs_no_naming(swarm: Swarm, leader: RestTwin) -> None:
    leader.answers["invites_create"] = lambda _: {
        "summary": "One invite.",
        "invite_id": "i-aaaaaaaa",
        "pool": POOL,
        "secret": "s" * 43,
        "command": "swarm join http://leader",
        "expires_at": 1.0,
    }
    told = swarm("invite")
    assert "s" * 43 in told.out
    assert leader.names() == ["pools_list", "invites_create"]


def test_several_pools_must_be_named(swarm: Swarm, leader: RestTwin) -> None:
    rows = [
        {"pool": f"ann/p{i}", "fellows": 0, "online": 0, "jobs": 0, "created_at": 1.0}
        for i in range(2)
    ]
    leader.answers["pools_list"] = lambda _: {"summary": "Two.", "pools": rows}
    told = swarm("invite")
    assert told.code == 2
    assert "ann/p0, ann/p1" in told.err


def test_text_of_other_machines_cannot_steer_the_terminal(swarm: Swarm, leader: RestTwin) -> None:
    leader.answers["jobs_get"] = lambda _: a_job(
        untrusted_error="\x1b[2J\u202egone", state="failed"
    )
    told = swarm("jobs", "show", JOB)
    assert "gone" in told.out
    assert "\x1b" not in told.out
    assert "\u202e" not in told.out


def test_a_sign_in_link_is_printed_alone(swarm: Swarm, leader: RestTwin) -> None:
    assert swarm("signin").out == f"{leader.url}/signin?code=c0\n"


def test_settings_show_their_origin_and_never_the_token(swarm: Swarm, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[client]\npool = "ann/lab"\n')
    os.environ["SWARM_CONFIG"] = str(config)
    try:
        told = swarm("config", "show", "--origin", "--timeout", "5")
    finally:
        del os.environ["SWARM_CONFIG"]
    assert TOKEN not in told.out
    assert "(SWARM_TOKEN)" in told.out
    assert f"ann/lab   ({config})" in told.out
    assert "5   (flag)" in told.out


@pytest.mark.parametrize("client", ["claude-code", "claude-desktop", "codex", "cursor", "vscode"])
def test_a_snippet_for_an_agent_names_the_leader_and_holds_no_secret(
    swarm: Swarm, leader: RestTwin, client: str
) -> None:
    told = swarm("mcp", "config", "--client", client, "--json").json
    assert TOKEN not in json.dumps(told)
    assert client == "claude-desktop" or f"{leader.url}/mcp" in told["what"]
    if client in ("cursor", "vscode", "claude-desktop"):
        json.loads(told["what"])


def test_the_schema_of_job_files_is_closed_and_complete(swarm: Swarm) -> None:
    schema = swarm("schema", "job").json
    assert schema["required"] == ["model", "train"]
    assert schema["additionalProperties"] is False


def test_every_text_for_agents_can_be_read(swarm: Swarm) -> None:
    topics = swarm("agent-docs", "--json").json
    assert {"start", "train", "fellows", "trouble"} <= set(topics)
    for topic in topics:
        assert swarm("agent-docs", topic).code == 0
    assert swarm("agent-docs", "nothing").code == 4


def test_the_versions_of_both_sides(swarm: Swarm) -> None:
    assert swarm("version", "--json").json["leader"] == "9.9.9"


def test_completion_can_be_printed_for_every_shell(swarm: Swarm) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "_SWARM_COMPLETE" in swarm("completion", shell).out


def test_doctor_finds_the_leader(swarm: Swarm, leader: RestTwin) -> None:
    leader.answers["cluster_status"] = lambda _: {
        "summary": "Fine.", "words": "1 fellow ready", "fellows": 1, "ready": 1, "training": 0,
        "offline": 0, "cards": 1, "cores": 2, "memory_bytes": 1, "card_used_bytes": None,
        "card_total_bytes": None, "step": None, "step_s": None, "mean_loss": None, "jobs": [],
    }  # fmt: skip
    findings = swarm("doctor", "--json").json["findings"]
    assert {
        "state": "ok",
        "what": "the access token is good: 1 fellow ready",
        "fix": "",
    } in findings


def test_as_a_process_it_prints_plain_text_and_exits_with_its_code(
    leader: RestTwin, tmp_path: Path
) -> None:
    env = {**os.environ, "SWARM_LEADER": leader.url, "SWARM_TOKEN": TOKEN, "HOME": str(tmp_path)}
    env.pop("NO_COLOR")

    def call(*words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "agents.cli.main", *words]
        return subprocess.run(
            command, check=False, env=env, capture_output=True, text=True, timeout=20
        )

    shown, refused = call("jobs", "show", JOB), call("jobs", "shw")

    assert shown.returncode == 0
    assert "\x1b" not in shown.stdout
    assert "starting" in shown.stdout
    assert (refused.returncode, refused.stdout) == (2, "")


def test_help_loads_no_operation_and_no_http() -> None:
    probe = (
        "import sys; from agents.cli.main import run; code = run(['--help']);"
        "heavy = {'pydantic', 'httpx2', 'rich', 'yaml', 'psutil'} & set(sys.modules);"
        "print(code, sorted(heavy), file=sys.stderr)"
    )
    command = [sys.executable, "-c", probe]
    told = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20)
    assert told.stderr == "0 []\n"


def test_a_command_of_one_word_takes_its_argument() -> None:
    command = command_of("measure", "")
    assert [p.name for p in command.params if p.param_type_name == "argument"] == ["fellow_id"]
