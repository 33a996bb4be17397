"""A pinned plan holds through drift, and each real change is told in words."""

import pytest

from control.planning.difference import between, difference, holds
from control.planning.place import place
from control.planning.plan import Plan
from control.planning.usable import FellowNow
from tests.unit.control.planning.pools import a_card, a_fellow, a_job, a_model


def _pool() -> list[FellowNow]:
    return [a_fellow("a", a_card(gb=2.0)), a_fellow("b", a_card(gb=2.0))]


@pytest.fixture
def plan() -> Plan:
    made = place(a_model(), a_job(train__batch_size=8), _pool())
    assert made.fits
    return made


def test_an_unchanged_pool_and_a_newcomer_are_no_change(plan: Plan) -> None:
    assert holds(plan, _pool(), a_model().source)
    assert difference(plan, [*_pool(), a_fellow("c")]) == []


@pytest.mark.parametrize(
    ("second", "change"),
    [
        (None, "host-b (f-bbbbbbbb) is no longer in the pool"),
        (a_fellow("b", standing="offline"), "host-b is not connected"),
        (a_fellow("b", standing="training"), "host-b is training"),
        (a_fellow("b", a_card(index=3)), "host-b's CPU #0 is gone"),
        (a_fellow("b", a_card(uuid="other")), "host-b's CPU #0 is another card now (CPU)"),
        (
            a_fellow("b", a_card(free_bytes=None)),
            "host-b's CPU #0 no longer tells how much memory is free",
        ),
    ],
)
def test_each_change_is_told_in_words(plan: Plan, second: FellowNow | None, change: str) -> None:
    pool = [_pool()[0], *([second] if second else [])]
    assert difference(plan, pool) == [change]
    assert not holds(plan, pool)


def test_a_card_that_filled_up_is_named_with_both_numbers(plan: Plan) -> None:
    need = next(card.planned_bytes for card in plan.view.cards if card.fellow_id == "f-bbbbbbbb")
    assert need is not None
    just = [_pool()[0], a_fellow("b", a_card(gb=2.0, free_bytes=need))]
    assert holds(plan, just)
    full = [_pool()[0], a_fellow("b", a_card(gb=2.0, free_bytes=100_000_000))]
    (change,) = difference(plan, full)
    assert change.startswith("host-b's CPU #0 has 100 MB free, the plan needs ")


def test_another_revision_of_the_model_is_a_change(plan: Plan) -> None:
    moved = a_model().source.model_copy(update={"revision": "b" * 40})
    (change,) = difference(plan, _pool(), moved)
    assert "revision bbbbbbbbbbbb now" in change


def test_a_plan_that_does_not_fit_never_holds() -> None:
    poor = [a_fellow("a", a_card(gb=0.1))]
    assert not holds(place(a_model(), a_job(), poor), poor)


def test_two_plans_differ_in_layers_settings_and_fit_and_a_plan_not_from_itself(plan: Plan) -> None:
    assert between(plan, plan) == []
    alone = place(a_model(), a_job(train__batch_size=8), _pool()[:1])
    told = between(plan, alone)
    assert told[:2] == ["host-a: layers 0-13 -> layers 0-29", "host-b: layers 14-29 -> not used"]
    assert "micro_batches: 4 -> 2" in told
    waits = place(a_model(), a_job(train__batch_size=8), [a_fellow("a", a_card(gb=0.1))])
    assert between(plan, waits)[0].startswith("it would wait: ")


def test_two_plans_of_measured_cards_differ_in_the_step_as_well() -> None:
    def timed(tflops: float) -> Plan:
        pool = [a_fellow("a", a_card(gb=2.0, tflops={"float32": tflops}))]
        return place(a_model(), a_job(train__batch_size=8), pool)

    (told,) = between(timed(1.0), timed(2.0))
    assert told.startswith("a predicted step: ")
