"""Rehearsal scripts: read, and refused where they make no sense."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from agents.rehearse.script import Script, known_scripts, read_script
from transport.errors import SwarmError
from transport.schema import parse

FELLOWS = [{"name": "ada"}, {"name": "bob"}]
JOB = {"train": {"steps": 5}}


def a_script(**more: Any) -> dict[str, Any]:
    return {"version": 1, "fellows": FELLOWS, "job": JOB, **more}


def trouble(**values: Any) -> dict[str, Any]:
    return a_script(troubles=[{"at": {"step": 1}, **values}])


@pytest.mark.parametrize("name", sorted(known_scripts()))
def test_every_script_that_comes_with_swarm_is_read(name: str) -> None:
    told = read_script(known_scripts()[name])
    assert told.title.endswith(".")
    assert told.troubles


@pytest.mark.parametrize(
    "raw, words",
    [
        (a_script(fellow=[]), "fellow"),
        (a_script(fellows=[]), "fellows"),
        (a_script(fellows=[{"name": "ada"}, {"name": "ada"}]), "same name"),
        (a_script(fellows=[{"name": "../ada"}]), "name"),
        (a_script(job={"model": {"id": "local:x"}}), "no model"),
        (trouble(do="kill", what="way", fellow="ada"), "kill is for"),
        (trouble(do="kill", what="worker"), "name a fellow"),
        (trouble(do="kill", what="leader", fellow="ada"), "name a fellow"),
        (trouble(do="kill", what="worker", fellow="eve"), "no fellow is called eve"),
        (trouble(do="freeze", what="worker", fellow="ada"), "needs for_s"),
        (trouble(do="slow", what="way", fellow="ada", for_s=1), "needs delay_ms"),
        (trouble(do="cut", what="way", fellow="ada", for_s=1, delay_ms=1), "needs delay_ms"),
        (trouble(at={"step": 1, "s": 1}, do="kill", what="leader"), "either step or s"),
        (trouble(at={}, do="kill", what="leader"), "either step or s"),
    ],
)
def test_a_script_that_makes_no_sense_is_refused_in_words(raw: dict[str, Any], words: str) -> None:
    with pytest.raises(SwarmError) as refusal:
        parse(Script, raw)
    assert refusal.value.code == "invalid-input"
    assert words in refusal.value.message


def test_a_file_that_is_no_script_says_what_it_is(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    with pytest.raises(SwarmError) as refusal:
        read_script(file)
    assert refusal.value.code == "not-found"
    for text in ("- a\n- b\n", "{", "a: [", "x" * 200_000):
        file.write_text(text, "utf-8")
        with pytest.raises(SwarmError) as refusal:
            read_script(file)
        assert refusal.value.code == "invalid-input"


def test_a_script_written_out_again_is_the_same(tmp_path: Path) -> None:
    raw = trouble(do="cut", what="way", fellow="ada", for_s=2.5)
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(raw), "utf-8")
    assert read_script(file) == parse(Script, raw)
