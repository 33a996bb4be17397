"""Plans for serving: context, stages, storage of keys and values, and what limits it."""

from typing import Any

import pytest

from control.planning.place import Inputs
from control.planning.serve import Cut, ServeAsk, place_model
from tests.unit.control.planning.papers import NEMOTRON, QWEN_14B, machine, on_paper, three_cards
from tests.unit.control.planning.pools import a_card, a_fellow, a_model
from transport.api.serving import ServePlanView
from transport.errors import SwarmError


def _plan(inputs: Inputs, context: int = 8192, **ask: Any) -> ServePlanView:
    view = place_model(inputs, ServeAsk(context, **ask))
    layers = [i for s in view.stages for i in range(s.first_layer, s.last_layer + 1)]
    assert layers == (list(range(inputs.model.facts.num_layers)) if view.stages else [])
    for card in view.cards:
        sizes = {one.kind: one.bytes for one in card.segments}
        overflow = sizes.pop("overflow", 0)
        assert sum(sizes.values()) == card.total_bytes
        assert not (view.fits and overflow)
    return view


def test_a_14b_model_is_served_in_4_bits_by_three_cards_and_every_bar_shows_its_cache() -> None:
    view = _plan(three_cards(), quantization="nf4", stages=2)
    assert view.fits
    assert [stage.hostname for stage in view.stages] == ["atlas", "borealis"] or len(
        view.stages
    ) == 2
    for card in view.cards:
        assert "kv_cache" in {one.kind for one in card.segments}
    assert view.limit.startswith("Context 8,192 tokens; the cards hold ")
    assert "limited by" in view.limit
    assert min(stage.token_budget for stage in view.stages) >= 8192


def test_the_fewest_fellows_that_hold_it_are_taken_and_the_others_are_not_needed() -> None:
    inputs = on_paper(QWEN_14B, machine("a", "RTX 3090"), machine("b", "RTX 4090"))
    view = _plan(inputs, quantization="nf4")
    assert len(view.stages) == 1
    assert [card.reason for card in view.cards if not card.used] == [
        "not needed: the plan fits without it"
    ]
    both = _plan(inputs, quantization="none")
    assert (both.fits, len(both.stages), both.quantization) == (True, 2, "none")


def test_4_bits_are_chosen_only_when_it_does_not_fit_without() -> None:
    inputs = on_paper(QWEN_14B, machine("a", "RTX 3090"))
    assert _plan(inputs).quantization == "nf4"
    assert _plan(on_paper(QWEN_14B, machine("a", "A100 80GB"))).quantization == "none"


def test_the_longest_context_fits_and_one_token_more_does_not() -> None:
    inputs = on_paper(NEMOTRON, machine("a", "RTX 3060"), machine("b", "RTX 3060"))
    found = _plan(inputs, maximize="context", quantization="nf4")
    assert found.fits
    assert 8192 < found.context_tokens < 131_072
    again = _plan(inputs, found.context_tokens + 1, quantization="nf4", stages=2)
    assert not again.fits
    assert f"a context of {found.context_tokens + 1:,} tokens" in again.reason


def test_keys_and_values_in_8_bits_hold_a_longer_context() -> None:
    inputs = three_cards()
    wide = _plan(inputs, maximize="context", quantization="nf4")
    small = _plan(inputs, maximize="context", quantization="nf4", storage="int8")
    assert small.context_tokens > 1.3 * wide.context_tokens


def test_the_fastest_placement_favours_the_faster_card() -> None:
    pool = [
        a_fellow("a", a_card(gb=4, tflops={"float32": 1.0, "bfloat16": 1.0})),
        a_fellow("b", a_card(gb=4, tflops={"float32": 30.0, "bfloat16": 30.0})),
    ]
    view = _plan(Inputs(a_model(), pool), maximize="speed")
    assert [stage.hostname for stage in view.stages] == ["host-b"]
    assert view.plan_id is not None
    assert _plan(Inputs(a_model(), pool), maximize="speed").plan_id == view.plan_id


def test_the_cut_of_the_run_that_trained_it_comes_first() -> None:
    pool = [a_fellow("a", a_card(gb=4)), a_fellow("b", a_card(gb=4))]
    inputs = Inputs(a_model(), pool)
    cut = Cut(("f-bbbbbbbb", "f-aaaaaaaa"), (12, 18))
    view = _plan(inputs, cut=cut)
    assert [(s.hostname, s.last_layer) for s in view.stages] == [("host-b", 11), ("host-a", 29)]
    assert view.cut == "the cut that the model was trained with"
    gone = _plan(inputs, cut=Cut(("f-bbbbbbbb", "f-cccccccc"), (12, 18)))
    assert gone.cut == "the fewest fellows that hold it"


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        ({"context_tokens": 9000}, "8192 positions"),
        ({"context_tokens": 100, "stages": 31}, "31 stages are more than the 30 layers"),
        ({"context_tokens": 100, "exclude_cards": frozenset({"f-zzzzzzzz:0"})}, "exclude_cards"),
    ],
)
def test_what_no_pool_can_serve_is_refused(ask: dict[str, Any], told: str) -> None:
    with pytest.raises(SwarmError, match=told):
        place_model(Inputs(a_model(), [a_fellow("a")]), ServeAsk(**ask))


def test_too_few_fellows_are_an_answer() -> None:
    view = _plan(Inputs(a_model(), [a_fellow("a")]), 1024, stages=2)
    assert view.reason == "not enough ready fellows: 1 with a usable card, 2 needed"
    assert view.plan_id is None
    default = place_model(Inputs(a_model(), [a_fellow("a")]), ServeAsk(16384, True))
    assert default.context_tokens == 8192


def test_a_count_of_stages_that_does_not_fit_is_answered_over_so_many_and_no_more() -> None:
    plan = _plan(three_cards(), 65_536, stages=1)
    assert not plan.fits
    assert [stage.hostname for stage in plan.stages] == ["borealis"]
    assert "over 1 stage, as you asked: the model needs" in plan.reason
    assert "borealis's RTX A4000 #0 would hold" in plan.reason
    spare = {card.reason for card in plan.cards if not card.used}
    assert spare == {"not one of the 1 stage that you asked for"}
