"""The strict reading of everything that crosses."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.api.jobs import JobsList, JobsPlan
from transport.cards import Heartbeat
from transport.errors import CODES, SwarmError
from transport.schema import parse, parse_strings

A_JOB: dict[str, Any] = {
    "model": {"id": "local:tiny"},
    "data": {"bucket": "rows"},
    "train": {"steps": 3},
}


def asked(**train: Any) -> dict[str, Any]:
    return {"pool": "ann/home", "config": {**A_JOB, "train": {**A_JOB["train"], **train}}}


def test_a_job_needs_only_a_model_data_and_steps() -> None:
    config = parse(JobsPlan, asked()).config
    assert (config.train.seq_len, config.train.batch_size, config.method) == (128, "auto", "lora")


def test_a_misspelt_argument_is_refused_with_the_nearest_right_one() -> None:
    with pytest.raises(SwarmError) as refusal:
        parse(JobsPlan, asked(learnin_rate=1e-3))
    assert refusal.value.code == "invalid-input"
    assert refusal.value.hint == "did you mean 'learning_rate'?"
    assert refusal.value.facts["errors"][0]["pointer"] == "/config/train/learnin_rate"
    assert refusal.value.message == "/config/train/learnin_rate: there is no such argument"


def test_where_several_arguments_are_wrong_each_has_its_own_nearest_one() -> None:
    with pytest.raises(SwarmError) as refusal:
        parse(JobsPlan, asked(learnin_rate=1e-3, stepps=3))
    for wrong, right in (("learnin_rate", "learning_rate"), ("stepps", "steps")):
        told = f"/config/train/{wrong}: there is no such argument (did you mean {right!r}?)"
        assert told in refusal.value.message
    assert refusal.value.hint == "correct the arguments named above"


@pytest.mark.parametrize(
    "train",
    [
        {"steps": "3"},
        {"steps": True},
        {"steps": 0},
        {"steps": 1.5},
        {"learning_rate": math.nan},
        {"learning_rate": math.inf},
        {"learning_rate": "fast"},
        {"batch_size": 4, "micro_batches": 3},
        {"seq_len": 10_000_000},
    ],
)
def test_a_wrong_type_a_number_out_of_range_and_nan_are_refused(train: dict[str, Any]) -> None:
    with pytest.raises(SwarmError) as refusal:
        parse(JobsPlan, asked(**train))
    assert refusal.value.code == "invalid-input"


@pytest.mark.parametrize(
    "model_id", ["../../etc/passwd", "local:../x", "a/b/c", "/etc", "a b/c", ""]
)
def test_a_model_id_cannot_be_a_path(model_id: str) -> None:
    with pytest.raises(SwarmError, match="/config/model/id"):
        parse(JobsPlan, {"pool": "ann/home", "config": {**A_JOB, "model": {"id": model_id}}})


@given(st.text(max_size=200))
def test_no_text_makes_the_reader_fail_with_anything_but_a_refusal(text: str) -> None:
    with pytest.raises(SwarmError) as refusal:
        parse(JobsPlan, text)
    assert refusal.value.code == "invalid-input"


def test_json_nested_100000_deep_is_a_refusal_and_not_a_crash() -> None:
    with pytest.raises(SwarmError):
        parse(JobsPlan, "[" * 100_000)


def test_a_query_string_becomes_numbers_where_numbers_are_asked() -> None:
    assert parse_strings(JobsList, {"limit": "5"}).limit == 5
    with pytest.raises(SwarmError):
        parse_strings(JobsList, {"limit": "five"})


def test_a_heartbeat_of_a_newer_fellow_is_read_and_its_news_dropped() -> None:
    beat = {
        "protocol": 1,
        "fellow_id": "f-abcdefgh",
        "machine": {
            "hostname": "atlas",
            "system": "Linux",
            "cores": 2,
            "memory_bytes": 1,
            "memory_free_bytes": 1,
            "disk_free_bytes": None,
            "version": "9.0",
            "listen_address": "127.0.0.1",
            "moods": ["new"],
        },
        "cards": [],
        "novelty": 1,
    }
    assert parse(Heartbeat, json.dumps(beat)).machine.hostname == "atlas"


@pytest.mark.parametrize("code", sorted(CODES))
def test_an_error_survives_the_way_through_a_problem_document(code: str) -> None:
    error = SwarmError(code, "what is wrong", hint="what to do", facts={"free_bytes": 1})
    again = SwarmError.from_problem(json.loads(json.dumps(error.problem())))
    assert (again.code, again.message, again.hint, again.facts) == (
        code,
        "what is wrong",
        "what to do",
        {"free_bytes": 1},
    )
    assert (again.status, again.exit_code) == CODES[code]


def test_a_problem_that_nobody_knows_reads_as_an_internal_error() -> None:
    assert SwarmError.from_problem({"code": "teapot", "facts": 3}).code == "internal"
