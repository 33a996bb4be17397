"""Inventory files: known cards and models by name, and clear refusals."""

from typing import Any

import pytest

from control.planning.inventory import fellows_in, model_in
from control.planning.known_models import CONFIGS
from stage_runtime.model_facts import facts_from_config
from tests.unit.control.planning.papers import a_model_job, machine, on_paper
from transport.api.inventory import InventoryFile
from transport.errors import SwarmError
from transport.known_cards import KNOWN
from transport.schema import parse

SMALL = "Qwen/Qwen3-0.6B"


def test_a_plan_on_paper_has_no_name_and_says_why() -> None:
    plan = on_paper(SMALL, machine("atlas", "rtx 3060")).place(a_model_job(SMALL))
    assert plan.fits
    assert plan.view.what_if
    assert plan.plan_id is None
    notes = " ".join(plan.view.notes)
    assert "nothing can be started from it" in notes
    assert "datasheet figures" in notes


def test_cards_in_numbers_need_no_list() -> None:
    card = {"memory_gb": 8, "free_gb": 7.5, "formats": ["float32", "bfloat16"],
            "tflops": {"float32": 5.0}, "kind": "xpu", "card": "a card of mine"}  # fmt: skip
    plan = on_paper(SMALL, machine("atlas", card)).place(a_model_job(SMALL))
    assert plan.fits
    assert plan.view.cards[0].name == "a card of mine"
    assert "datasheet" not in " ".join(plan.view.notes)


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ({"fellows": [{"name": "a", "cards": ["RTX 3061"]}]}, "'RTX 3061' is not a known card"),
        ({"fellows": [{"name": "a", "cards": [{"memory_gb": 4}]}]}, "a card without a name"),
        ({"fellows": [{"name": "a", "cards": []}, {"name": "a", "cards": []}]}, "two fellows"),
        ({"fellows": [{"name": "a b", "cards": []}]}, "/fellows/0/name"),
        ({"fellows": [], "links": [{"sender": "a", "taker": "b", "bytes_per_s": 1.0}]}, "a link"),
        ({"fellow": []}, "there is no such argument (did you mean 'fellows'?)"),
        ({"version": 2, "fellows": []}, "/version"),
    ],
)
def test_a_wrong_file_is_refused_in_a_sentence(raw: dict[str, Any], told: str) -> None:
    with pytest.raises(SwarmError) as refusal:
        fellows_in(parse(InventoryFile, raw))
    assert refusal.value.code == "invalid-input"
    assert told in refusal.value.message


def test_a_card_that_is_almost_named_gets_the_nearest_one() -> None:
    with pytest.raises(SwarmError) as refusal:
        fellows_in(parse(InventoryFile, {"fellows": [machine("a", "RTX A400")]}))
    assert "did you mean 'RTX A4000'?" in (refusal.value.hint or "")


def test_models_come_from_the_file_or_are_known_and_an_unknown_family_is_refused() -> None:
    for config in CONFIGS.values():
        assert facts_from_config(config).total_params > 0
    config = CONFIGS[SMALL] | {"num_hidden_layers": 3}
    file = parse(InventoryFile, {"fellows": [], "models": {"me/mine": config}})
    mine = model_in(file, "me/mine")
    assert mine is not None
    assert mine.facts.num_layers == 3
    assert model_in(file, "me/other") is None
    odd = parse(InventoryFile, {"fellows": [], "models": {"me/mine": {"model_type": "mamba"}}})
    with pytest.raises(SwarmError, match="mamba") as refusal:
        model_in(odd, "me/mine")
    assert "qwen3" in (refusal.value.hint or "")


def test_known_cards_are_named_once_and_have_sane_figures() -> None:
    assert len({card.name.casefold() for card in KNOWN}) == len(KNOWN) >= 20
    for card in KNOWN:
        assert 4 <= card.memory_gb <= 200
        assert card.bandwidth_gb_s > 0
        assert card.fp32_tflops > 0
        assert ("bfloat16" in card.formats) == (
            card.generation in ("Ampere", "Ada", "Hopper", "Blackwell", "RDNA 3")
        )


def test_an_empty_inventory_and_one_of_64_fellows_are_both_answered() -> None:
    empty = on_paper(SMALL).place(a_model_job(SMALL))
    assert empty.reason.startswith("not enough ready fellows: 0 with a usable card")
    many = on_paper(SMALL, *[machine(f"m{i}", "RTX 3060") for i in range(64)])
    plan = many.place(a_model_job(SMALL))
    assert len(plan.stages) == 16
    assert sum(not card.used for card in plan.view.cards) == 48


def test_a_zero_free_card_is_below_the_floor() -> None:
    plan = on_paper(
        SMALL, machine("a", {"card": "RTX 3060", "free_gb": 0}), machine("b", "RTX 3060")
    ).place(a_model_job(SMALL))
    (empty,) = [card for card in plan.view.cards if not card.used]
    assert empty.reason.startswith("0 B free, below")
