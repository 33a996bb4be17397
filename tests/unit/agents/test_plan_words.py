"""`swarm plan --inventory` and `swarm model-load --plan`: what is asked, what a person reads."""

import io
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.text import Text

from agents.cli.render_plan import cards_text
from agents.cli.tables import Labelled
from tests.unit.agents.conftest import Swarm
from tests.unit.agents.rest_twin import POOL, RestTwin, a_config, a_plan
from transport.api.plans import PlannedCard

CARDS: dict[str, Any] = {"version": 1, "fellows": [{"name": "atlas", "cards": ["RTX A4000"]}]}


def _write(path: Path, values: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(values))
    return path


def _offer(plan_id: str | None) -> dict[str, Any]:
    change = "weights in 4 bits"
    return {"change": change, "plan_id": plan_id, "step_s": None, "config": a_config()}


def test_an_inventory_file_goes_along_instead_of_a_pool(
    swarm: Swarm, leader: RestTwin, tmp_path: Path
) -> None:
    leader.answers["jobs_plan"] = lambda _: a_plan(plan_id=None, what_if=True)
    job, cards = _write(tmp_path / "job.yaml", a_config()), _write(tmp_path / "cards.yaml", CARDS)
    told = swarm("plan", "--config", job, "--inventory", cards)
    assert told.code == 0
    (ask,) = leader.of("jobs_plan")
    assert ask["inventory"] == CARDS
    assert ask.get("pool") is None
    assert "--plan-id" not in told.out
    assert "pools_list" not in leader.names()


def test_offers_are_shown_with_the_id_to_start_them(
    swarm: Swarm, leader: RestTwin, tmp_path: Path
) -> None:
    other = "71d0b871d0b871d0"
    leader.answers["jobs_plan"] = lambda _: a_plan(
        fits=False, plan_id=None, reason="not enough memory", offers=[_offer(other), _offer(None)]
    )
    told = swarm("plan", "--config", _write(tmp_path / "job.yaml", a_config()))
    assert told.code == 3
    assert f"weights in 4 bits   --plan-id {other}" in told.out


def _served(**changes: Any) -> dict[str, Any]:
    stage = {
        "stage": 0, "fellow_id": "f-aaaaaaaa", "hostname": "atlas", "first_layer": 0,
        "last_layer": 29, "cards": ["f-aaaaaaaa:0"], "planned_bytes": 9_000_000_000,
        "free_bytes": 15_000_000_000, "token_budget": 89_088,
    }  # fmt: skip
    plan = {
        "summary": "", "plan_id": "3f9c2a1b0d4e5f67", "fits": True, "reason": "", "model": None,
        "model_id": "local:tiny", "dtype": "float16", "quantization": "nf4",
        "context_tokens": 65_536, "kv_storage": "int8", "stages": [stage],
        "limit": "Context 65,536 tokens; the cards hold 89,088, limited by atlas's RTX A4000 #0",
        "cut": "the fewest fellows that hold it", "cards": [], "what_if": False, "notes": [],
    }  # fmt: skip
    return plan | changes


def test_a_load_is_planned_with_what_was_asked_and_shown_with_its_budget(
    swarm: Swarm, leader: RestTwin
) -> None:
    leader.answers["models_plan"] = lambda _: _served()
    told = swarm(
        "model-load", "local:tiny", "--plan", "--context", 65_536, "--kv-cache", "int8",
        "--exclude-card", "f-bbbbbbbb:1", "--maximize", "context",
    )  # fmt: skip
    assert told.code == 0
    (ask,) = leader.of("models_plan")
    wanted = {
        "pool": POOL, "model": "local:tiny", "context_tokens": 65_536, "kv_storage": "int8",
        "exclude_cards": ["f-bbbbbbbb:1"], "maximize": "context",
    }  # fmt: skip
    assert {key: ask[key] for key in wanted} == wanted
    assert "89,088" in told.out
    assert "Context 65,536 tokens; the cards hold 89,088" in told.out
    assert swarm("model-load", "local:tiny", "--plan", "--json").json == _served()


def test_a_load_that_does_not_fit_waits_and_loading_itself_is_not_there_yet(
    swarm: Swarm, leader: RestTwin
) -> None:
    leader.answers["models_plan"] = lambda _: _served(fits=False, plan_id=None, reason="too little")
    told = swarm("model-load", "local:tiny", "--plan")
    assert (told.code, "Does not fit: too little" in told.out) == (3, True)
    refused = swarm("model-load", "local:tiny")
    assert refused.code == 7
    assert "--plan" in refused.err


def test_a_wrong_inventory_file_is_called_one_and_not_a_job_file(
    swarm: Swarm, tmp_path: Path
) -> None:
    job, words = _write(tmp_path / "job.yaml", a_config()), tmp_path / "words.yaml"
    words.write_text("hello")
    absent = swarm("plan", "--config", job, "--inventory", tmp_path / "none.yaml")
    assert absent.code == 4
    assert "there is no inventory file" in absent.err
    assert "--inventory FILE" in absent.err
    wrong = swarm("plan", "--config", job, "--inventory", words)
    assert wrong.code == 2
    assert "is no inventory file: it holds no settings" in wrong.err
    assert "docs/inventory-file.md" in wrong.err


def test_on_a_terminal_of_80_columns_words_stand_under_words_and_nothing_is_wider() -> None:
    reason = "8 + 40 by measured float16 speed within each card's memory (20 + 28 by free memory)"
    lines = _printed(Labelled("Chosen", f"split [8, 40]: {reason}, a step 43 % shorter"))
    assert len(lines) == 2
    assert lines[0].startswith("Chosen   split")
    assert lines[1].startswith(" " * 9)
    assert lines[1][9] != " "
    assert max(map(len, lines)) <= 80


def test_cards_of_one_name_are_named_once() -> None:
    cards = [a_card_row(0), a_card_row(1)]
    assert cards_text(["f-aaaaaaaa:0", "f-aaaaaaaa:1"], cards) == "GTX 1660 SUPER #0, #1"


def _printed(line: Labelled) -> list[str]:
    console = Console(
        file=io.StringIO(), width=80, force_terminal=True, no_color=True, markup=False
    )
    with console.capture() as told:
        console.print(line)
    return [Text.from_ansi(row).plain.rstrip() for row in told.get().rstrip("\n").split("\n")]


def a_card_row(index: int) -> PlannedCard:
    return PlannedCard(
        card=f"f-aaaaaaaa:{index}", fellow_id="f-aaaaaaaa", hostname="atlas",
        name="GTX 1660 SUPER", uuid=f"u{index}", used=True, reason="", stage=0, first_layer=0,
        last_layer=1, total_bytes=6, free_bytes=5, planned_bytes=4, segments=[],
    )  # fmt: skip
