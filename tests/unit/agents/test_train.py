"""`swarm train`, `swarm plan`, following a job, and files that travel."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.agents.conftest import Swarm
from tests.unit.agents.rest_twin import JOB, POOL, RestTwin, a_config, a_job, a_plan, sha256
from transport.api.step_time import StageTime
from transport.errors import SwarmError

PLAN_ID = "3f9c2a1b0d4e5f67"


@pytest.fixture
def job_file(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str | None = None, **changes: Any) -> Path:
        path = tmp_path / "job.yaml"
        path.write_text(text if text is not None else yaml.safe_dump({**a_config(), **changes}))
        return path

    return write


def test_what_starts_is_the_plan_that_was_shown(
    swarm: Swarm, leader: RestTwin, job_file: Callable[..., Path]
) -> None:
    told = swarm("train", "--config", job_file(), "--set", "train.steps=5", "--lora")
    assert told.code == 0
    (submit,) = leader.of("jobs_submit")
    assert (submit["plan_id"], submit["pool"]) == (PLAN_ID, POOL)
    assert submit["config"]["train"]["steps"] == 5
    assert "unpinned" not in submit
    assert f"Plan {PLAN_ID}" in told.out
    assert "left out: cedar[31m (CPU): 100 MB free, a stage needs 800 MB" in told.out


def test_a_plan_starts_nothing_and_says_how_to_start_it(
    swarm: Swarm, leader: RestTwin, job_file: Callable[..., Path]
) -> None:
    told = swarm("plan", "--config", job_file())
    assert told.code == 0
    assert f"--plan-id {PLAN_ID}" in told.out
    assert "jobs_submit" not in leader.names()
    assert swarm("train", "--config", job_file(), "--plan", "--json").json == a_plan()


def test_a_plan_that_does_not_fit_is_an_answer_with_exit_code_3(
    swarm: Swarm, leader: RestTwin, job_file: Callable[..., Path]
) -> None:
    leader.answers["jobs_plan"] = lambda _: a_plan(
        fits=False, plan_id=None, reason="not enough memory even at batch 1: 2.1 GB missing"
    )
    told = swarm("plan", "--config", job_file())
    assert told.code == 3
    assert "2.1 GB missing" in told.out


def test_a_job_that_waits_is_accepted_with_exit_code_3(
    swarm: Swarm, leader: RestTwin, job_file: Callable[..., Path]
) -> None:
    leader.answers["jobs_plan"] = lambda _: a_plan(fits=False, plan_id=None, reason="no fellow")
    leader.answers["jobs_submit"] = lambda _: a_job(state="pending", reason="no fellow is ready")
    told = swarm("train", "--config", job_file())
    assert told.code == 3
    assert "no fellow is ready" in told.out
    assert leader.of("jobs_submit")[0]["unpinned"] is True


def test_a_plan_that_no_longer_holds_tells_each_change(
    swarm: Swarm, leader: RestTwin, job_file: Callable[..., Path]
) -> None:
    changes = ["atlas CPU #0: free 3.9 GB -> 0.2 GB"]
    leader.errors["jobs_submit"] = SwarmError(
        "plan-changed", "the cluster changed", hint="plan again", facts={"changes": changes}
    )
    told = swarm("train", "--config", job_file(), "--plan-id", PLAN_ID)
    assert told.code == 5
    assert changes[0] in told.err
    assert "jobs_plan" not in leader.names()


def test_following_shows_each_step_and_ends_with_the_job(
    swarm: Swarm, leader: RestTwin, job_file: Callable[..., Path]
) -> None:
    states = iter(
        [
            a_job(state="running", step=1, loss=2.5),
            a_job(state="running", step=2, loss=2.0),
            a_job(state="completed", step=3, loss=1.5, adapter_ready=True),
        ]
    )
    leader.answers["jobs_wait"] = lambda _: next(states)
    told = swarm("train", "--config", job_file(), "--follow")
    assert told.code == 0
    assert "step 2/3  loss 2.000" in told.out
    assert "swarm models export" in told.out


def test_a_job_is_shown_with_where_its_step_went_and_what_would_shorten_it(
    swarm: Swarm, leader: RestTwin
) -> None:
    names = [name for name in StageTime.model_fields if name not in ("stage", "recompute_s")]
    spent: dict[str, Any] = {**dict.fromkeys(names, 0.0), "recompute_s": None}
    stages = [{**spent, "stage": k, "forward_s": 1.0, "bubble_s": 1.0} for k in range(2)]
    more = {"suggestion": "set train.micro_batches to 8", "gain": 0.25}
    told = {"steps": 20, "step_s": 2.0, "stages": stages, "limit": "the bubble: 50 %", **more}
    leader.answers["jobs_get"] = lambda _: a_job(state="running", step=9, step_time=told)
    shown = swarm("jobs", "show", JOB)
    assert shown.code == 0
    rows = [line.split() for line in shown.out.splitlines()]
    assert ["stage", "forward", "bubble"] in rows
    assert ["1", "50.0%", "50.0%"] in rows
    assert "Limit    the bubble: 50 %" in shown.out
    assert "predicted 25 % shorter, about 1.5 s a step" in shown.out


def test_following_a_job_that_fails_exits_with_1(swarm: Swarm, leader: RestTwin) -> None:
    leader.answers["jobs_wait"] = lambda _: a_job(state="failed", untrusted_error="atlas: died")
    told = swarm("jobs", "wait", JOB)
    assert told.code == 1
    assert "atlas: died" in told.out


def test_ctrl_c_ends_the_following_and_says_that_the_job_goes_on(
    swarm: Swarm, leader: RestTwin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("agents.cli.follow._next_question", interrupt)
    told = swarm("jobs", "wait", JOB)
    assert told.code == 130
    assert f"job {JOB} goes on" in told.err
    assert "jobs_cancel" not in leader.names()


def test_one_bounded_wait_is_one_question(swarm: Swarm, leader: RestTwin) -> None:
    leader.answers["jobs_wait"] = lambda _: a_job(state="running", step=1)
    assert swarm("jobs", "wait", JOB, "--timeout-s", "0", "--json").code == 3
    assert swarm("jobs", "wait", JOB, "--until-step", "1").code == 0
    assert leader.of("jobs_wait")[0] == {"job_id": JOB, "timeout_s": 0.0}


def test_local_files_become_a_bucket_once_and_no_path_reaches_the_leader(
    swarm: Swarm, leader: RestTwin, job_file: Callable[..., Path], tmp_path: Path
) -> None:
    rows = tmp_path / "my rows.jsonl"
    rows.write_text('{"text": "a"}\n')
    bucket = {
        "pool": POOL,
        "bucket": "",
        "files": 1,
        "rows": 1,
        "size_bytes": 14,
        "created_at": 1.0,
    }
    view = {"summary": "Added.", "kinds": ["text"]}

    def create(ask: dict[str, Any]) -> dict[str, Any]:
        bucket["bucket"] = ask["bucket"]
        return {**bucket, **view}

    leader.answers["buckets_create"] = create
    leader.answers["buckets_add"] = lambda _: {**bucket, **view}
    path = job_file(data={"files": ["my rows.jsonl"]})
    assert swarm("train", "--config", path).code == 0
    leader.answers["buckets_list"] = lambda _: {"summary": "One.", "buckets": [bucket]}
    assert swarm("train", "--config", path).code == 0

    assert leader.uploads == [rows.read_bytes()]
    (added,) = leader.of("buckets_add")
    assert added["name"] == "00-my-rows.jsonl"
    first, second = leader.of("jobs_submit")
    assert first["config"]["data"] == second["config"]["data"] == {"bucket": bucket["bucket"]}
    assert str(tmp_path) not in json.dumps(leader.asked)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (["gone.jsonl"], "there is no data file"),
        (["job.yaml"], "neither in .jsonl nor in .txt"),
        (["empty.txt"], "is empty"),
    ],
)
def test_a_data_file_that_cannot_be_taken_is_refused_before_anything_is_sent(
    swarm: Swarm,
    leader: RestTwin,
    job_file: Callable[..., Path],
    tmp_path: Path,
    files: list[str],
    says: str,
) -> None:
    (tmp_path / "empty.txt").touch()
    told = swarm("train", "--config", job_file(data={"files": files}))
    assert told.code in (2, 4)
    assert says in told.err
    assert set(leader.names()) <= {"pools_list"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("model: {id: local:tiny}\ndata: {bucket: v}\ntrain: {stepps: 3}\n", "'steps'"),
        ("modl: {id: local:tiny}\ndata: {bucket: v}\ntrain: {steps: 3}\n", "'model'"),
        ("model: {id: local:tiny}\ndata: {bucket: v}\ntrain: {steps: three}\n", "/train/steps"),
        ("model: {id: local:tiny}\ndata: {bucket: v}\ntrain: {steps: 1.5}\n", "/train/steps"),
        (
            "model: {id: local:tiny}\ndata: {bucket: v}\ntrain: {steps: 3, learning_rate: .nan}\n",
            "/train/learning_rate",
        ),
        ("model: {id: ../x}\ndata: {bucket: v}\ntrain: {steps: 3}\n", "/model/id"),
        ("model: {id: local:tiny}\ndata: {bucket: v}\n", "/train: is missing"),
        ("a: 1\na: 2\n", "stands twice"),
        ("a: &x [1]\nb: *x\n", "anchors"),
        ("a: [1\n", "line 2"),
        ('{"a": 1,}', "neither JSON nor YAML"),
        ("just words\n", "holds no settings"),
        ("!!python/object:os.system {}\n", "neither JSON nor YAML"),
    ],
)
def test_a_wrong_job_file_is_refused_with_the_place_and_the_nearest_name(
    swarm: Swarm, leader: RestTwin, job_file: Callable[..., Path], text: str, says: str
) -> None:
    told = swarm("plan", "--config", job_file(text))
    assert told.code == 2
    assert says in told.err
    assert leader.asked == []


def test_numbers_in_a_job_file_are_read_as_people_write_them(
    swarm: Swarm, leader: RestTwin, job_file: Callable[..., Path]
) -> None:
    path = job_file(
        "$schema: x\nmodel: {id: local:tiny}\ndata: {bucket: v}\n"
        "train: {steps: 3, learning_rate: 1e-4}\n"
    )
    assert swarm("plan", "--config", path, "--set", "train.seq_len=64").code == 0
    config = leader.of("jobs_plan")[0]["config"]
    assert config["train"] == {"steps": 3, "learning_rate": 1e-4, "seq_len": 64}


def test_a_change_that_is_none_is_refused(swarm: Swarm, job_file: Callable[..., Path]) -> None:
    assert swarm("plan", "--config", job_file(), "--set", "steps").code == 2
    told = swarm("plan", "--config", job_file(), "--set", "train.steps.x=1")
    assert "holds a value" in told.err


def test_a_checkpoint_folder_is_sent_file_by_file_and_finished(
    swarm: Swarm, leader: RestTwin, tmp_path: Path
) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "notes.exe"):
        (folder / name).write_text(name)
    leader.answers["models_add"] = lambda ask: {
        "summary": "Added.", "model_id": f"local:{ask['name']}", "files": 3, "size_bytes": 9,
        "finished": ask.get("finish", False), "revision": None,
    }  # fmt: skip
    assert swarm("models", "add", folder).code == 0
    asked = leader.of("models_add")
    assert [ask.get("file") for ask in asked] == [
        "config.json", "model.safetensors", "tokenizer.json", None,
    ]  # fmt: skip
    assert asked[-1]["finish"] is True
    assert b"notes.exe" not in leader.uploads


def test_a_folder_of_pickled_weights_is_refused(
    swarm: Swarm, leader: RestTwin, tmp_path: Path
) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "pytorch_model.bin").write_text("x")
    told = swarm("models", "add", folder)
    assert told.code == 2
    assert "pytorch_model.bin" in told.err
    assert leader.asked == []


@pytest.mark.parametrize("damaged", [False, True])
def test_an_adapter_is_fetched_and_its_digest_compared(
    swarm: Swarm, leader: RestTwin, tmp_path: Path, damaged: bool
) -> None:
    content = b"weights" * 1000
    leader.files["adapter_model.safetensors"] = content
    file: dict[str, Any] = {
        "name": "adapter_model.safetensors",
        "size_bytes": len(content),
        "sha256": sha256(b"other" if damaged else content),
        "path": f"/api/v1/jobs/{JOB}/adapter/adapter_model.safetensors",
    }
    leader.answers["models_export"] = lambda _: {
        "summary": "One file.", "job_id": JOB, "kind": "peft", "base_model_id": "local:tiny",
        "base_revision": "a", "files": [file], "adapter_config": {},
    }  # fmt: skip
    told = swarm("models", "export", JOB, "--to", tmp_path / "out")
    assert told.code == (1 if damaged else 0)
    assert (tmp_path / "out" / file["name"]).exists() is not damaged
    if not damaged:
        assert (tmp_path / "out" / file["name"]).read_bytes() == content
        assert swarm("models", "export", JOB, "--to", tmp_path / "out").code == 5


def test_log_lines_are_followed_until_the_job_ends(swarm: Swarm, leader: RestTwin) -> None:
    line = {"at": 1.0, "stage": 0, "fellow_id": "f-aaaaaaaa", "level": "info"}
    pages = iter([["one"], ["two"], []])

    def logs(ask: dict[str, Any]) -> dict[str, Any]:
        lines = [{**line, "untrusted_text": text} for text in next(pages)]
        return {"summary": "", "lines": lines, "omitted": 0, "cursor": "c"}

    leader.answers["jobs_logs"] = logs
    leader.answers["jobs_get"] = lambda _: a_job(state="completed")
    told = swarm("jobs", "logs", JOB, "--follow")
    assert told.code == 0
    assert [row.split()[-1] for row in told.out.splitlines()] == ["one", "two"]
    assert leader.of("jobs_logs")[1]["cursor"] == "c"
