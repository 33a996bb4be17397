"""`swarm plan --inventory` and `swarm model-load --plan`: what is asked, what a person reads."""

from pathlib import Path
from typing import Any

import yaml

from tests.unit.agents.conftest import Swarm
from tests.unit.agents.rest_twin import POOL, RestTwin, a_config, a_plan

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
