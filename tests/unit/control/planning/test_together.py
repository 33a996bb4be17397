"""Fellows on one machine share its cores, and a step is predicted so."""

from typing import Any

import pytest

from control.planning.place import Inputs
from control.planning.plan import Plan
from control.planning.usable import FellowNow
from tests.unit.control.planning.pools import a_card, a_fellow, a_job, a_model

SPEED = {"float32": 0.1, "bfloat16": 0.1}


def _fellow(letter: str, boot: str | None, cores: int = 1, **card: Any) -> FellowNow:
    told: dict[str, Any] = {"threads": 1, "tflops": SPEED, "gb": 8} | card
    return a_fellow(letter, a_card(**told), boot=boot, cores=cores)


def _plan(*fellows: FellowNow, micro_batches: int = 8) -> Plan:
    job = a_job(train__batch_size=8, train__micro_batches=micro_batches, partition="equal")
    plan = Inputs(a_model(), list(fellows)).place(job)
    assert plan.fits
    assert len(plan.stages) == len(fellows)
    return plan


def _step_s(plan: Plan) -> float:
    assert plan.view.layout.step_s is not None
    return plan.view.layout.step_s


def test_two_stages_on_one_core_take_turns() -> None:
    apart = _plan(_fellow("a", "one"), _fellow("b", "two"))
    beside = _plan(_fellow("a", "one"), _fellow("b", "one"))
    facts = a_model().facts
    layers = sum(facts.layer_params) / 2
    last = (layers + facts.head_params) / layers  # of the first stage's time
    # Alone a step is one micro-batch through both and 7 more of the slower one; on one core it is
    # 8 of both.
    longer = 8 * (1 + last) / (1 + 8 * last)
    assert _step_s(beside) / _step_s(apart) == pytest.approx(longer, rel=0.01)
    (note,) = [one for one in beside.view.notes if "share" in one]
    assert note.startswith("host-a, host-b run on one machine with 1 core and share them")
    assert not [one for one in apart.view.notes if "core" in one]


def test_one_micro_batch_is_never_on_two_stages_at_once() -> None:
    apart = _plan(_fellow("a", "one"), _fellow("b", "two"), micro_batches=1)
    beside = _plan(_fellow("a", "one"), _fellow("b", "one"), micro_batches=1)
    assert _step_s(beside) == pytest.approx(_step_s(apart))


@pytest.mark.parametrize(
    ("boots", "more"),
    [
        (("one", "one", "one"), {"cores": 3}),
        ((None, None, None), {}),
        (("one", "two", "three"), {}),
        (("one", "one", "one"), {"kind": "cuda", "threads": None, "free_gb": 7.0}),
    ],
    ids=["enough cores", "unknown machines", "machines of their own", "graphics cards"],
)
def test_nobody_waits_who_shares_no_core(
    boots: tuple[str | None, ...], more: dict[str, Any]
) -> None:
    plan = _plan(*(_fellow(letter, boot, **more) for letter, boot in zip("abc", boots)))
    alone = _plan(*(_fellow(letter, None, **more) for letter in "abc"))
    assert _step_s(plan) == pytest.approx(_step_s(alone))


def test_three_stages_on_two_cores_take_longer_than_on_three_and_less_than_on_one() -> None:
    steps = [
        _step_s(_plan(*(_fellow(letter, "one", cores) for letter in "abc"))) for cores in (1, 2, 3)
    ]
    assert steps[0] > steps[1] > steps[2]
    # No stage's work vanishes: 8 micro-batches of all three stages on two cores at the least.
    assert steps[1] >= 0.99 * steps[0] / 2
