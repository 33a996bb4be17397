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
        (trouble(do="kill", what="leader", fellow="ada"), "name no fellow"),
        (trouble(do="kill", what="worker", fellow="eve"), "no fellow is called eve"),
        (trouble(do="freeze", what="worker", fellow="ada"), "needs for_s"),
        (trouble(do="slow", what="way", fellow="ada", for_s=1), "needs delay_ms"),
        (trouble(do="slow", what="link", fellow="ada", for_s=1), "needs delay_ms or mbit"),
        (trouble(do="kill", what="link", fellow="ada"), "kill is for"),
        (trouble(do="kill", what="relay", fellow="ada"), "name no fellow"),
        (trouble(do="fill", what="disk", fellow="ada"), "give it a disk_mb"),
        (trouble(do="fill", what="disk"), "give it a disk_mb"),
        (
            trouble(do="restart", what="leader") | {"leader": {"disk_mb": 64}},
            "a disk of its own goes with its process",
        ),
        (a_script(fellows=[{"name": "ada", "card": {"name": "RTX 9999"}}]), "no known card"),
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


def test_a_refusal_names_the_lines_of_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(
        "version: 1\n"
        "fellows:\n"
        "  - {name: ada}\n"
        "  - name: bob\n"
        "    crad: cuda\n"
        "job: {}\n"
        "troubles:\n"
        "  - {at: {step: 1}, do: kill, what: worker, fellow: ada}\n"
        "  - at: {step: 1}\n"
        "    do: kick\n"
        "    what: leader\n"
        "expect: {state: done}\n",
        "utf-8",
    )
    with pytest.raises(SwarmError) as refusal:
        read_script(file)
    assert refusal.value.code == "invalid-input"
    for words in (
        "wrong.yaml, line 5: fellows/1/crad: there is no such argument (did you mean 'card'?)",
        "wrong.yaml, line 10: troubles/1/do: ",
        "wrong.yaml, line 12: expect/state: ",
    ):
        assert words in refusal.value.message


def test_a_known_card_has_the_memory_of_its_datasheet_unless_told() -> None:
    told = parse(
        Script,
        a_script(
            fellows=[
                {"name": "ada", "card": {"name": "RTX 3060"}},
                {"name": "bob", "card": {"name": "RTX 3060", "memory_gb": 0.5}},
                {"name": "eve", "card": "cpu:300MB:1"},
            ]
        ),
    )
    specs = [fellow.card_spec for fellow in told.fellows]
    assert specs == ["cpu:12880MB:1:RTX 3060", "cpu:500MB:1:RTX 3060", "cpu:300MB:1"]


def test_a_script_written_out_again_is_the_same(tmp_path: Path) -> None:
    raw = trouble(do="cut", what="way", fellow="ada", for_s=2.5)
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(raw), "utf-8")
    assert read_script(file) == parse(Script, raw)
