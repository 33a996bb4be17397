"""A pinned plan holds through drift, and each real change is told in words."""

import pytest

from control.planning.difference import difference, holds
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
