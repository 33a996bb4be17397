"""Counter-offers: each is a whole plan that fits, or takes nine tenths of the time or less."""

from typing import Any

import pytest

from control.planning.offers import Offered, offers
from control.planning.place import Inputs, place
from tests.unit.control.planning.papers import NEMOTRON, a_model_job, machine, on_paper, three_cards
from tests.unit.control.planning.pools import a_card, a_fellow, a_job, a_model
from transport.api.job_config import JobConfig


def _offered(inputs: Inputs, job: JobConfig) -> list[Offered]:
    plan = inputs.place(job)
    told = offers(plan, inputs)
    assert len(told) <= 3
    for one in told:
        assert one.plan.fits
        again = inputs.place(one.shown.config)
        assert again == one.plan
        assert one.plan.plan_id == one.shown.plan_id
    return told


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({"bits": "none", "train__seq_len": 256}, "weights in 4 bits"),
        ({"bits": 4, "train__seq_len": 65_536}, "sequences of"),
        ({"bits": 4, "train__seq_len": 2048, "train__recompute": False}, "recompute on"),
        ({"bits": 4, "train__seq_len": 4096, "train__batch_size": 64, "train__micro_batches": 2},
         "batch "),
    ],
)  # fmt: skip
def test_a_job_that_does_not_fit_is_offered_the_smallest_changes(
    job: dict[str, Any], words: str
) -> None:
    pool = three_cards()
    config = a_model_job(NEMOTRON, **job)
    assert not pool.place(config).fits
    told = _offered(pool, config)
    assert any(words in one.change for one in told), [one.change for one in told]


def test_changes_that_help_only_together_are_offered_together() -> None:
    config = a_model_job(NEMOTRON, "none", train__seq_len=4096, train__recompute=False,
                         train__batch_size=8)  # fmt: skip
    told = _offered(three_cards(), config)
    assert told
    assert "4 bits" in told[0].change
    assert " and " in told[0].change


def test_fewer_fellows_are_offered_when_they_are_faster() -> None:
    inputs = on_paper(
        "Qwen/Qwen3-1.7B", machine("atlas", "GTX 1660 SUPER", up_bytes_per_s=1e6,
                                   down_bytes_per_s=1e6),
        machine("borealis", "RTX 4090", up_bytes_per_s=1e8, down_bytes_per_s=1e8),
    )  # fmt: skip
    (told,) = _offered(inputs, a_model_job("Qwen/Qwen3-1.7B", train__batch_size=4))
    assert told.change.startswith("only 1 of 2 fellows (borealis): a step takes ")
    assert "% less" in told.change


def test_a_live_offer_has_a_plan_of_its_own_and_a_good_plan_has_none() -> None:
    fast = {"float32": 20.0}
    pool = [
        a_fellow("a", a_card(gb=4, tflops={"float32": 0.5})),
        a_fellow("b", a_card(gb=4, tflops=fast)),
    ]
    inputs = Inputs(a_model(), pool)
    told = _offered(inputs, a_job(train__batch_size=1, train__micro_batches=1, partition="equal"))
    assert told
    assert told[0].shown.plan_id is not None
    alone = Inputs(a_model(), [pool[1]])
    assert _offered(alone, a_job(train__batch_size=1)) == []


def test_a_pool_without_fellows_is_offered_nothing() -> None:
    assert _offered(Inputs(a_model(), []), a_job()) == []
    assert place(a_model(), a_job(), []).plan_id is None


def test_of_more_than_16_fellows_the_roomiest_are_taken_and_the_fastest_are_offered() -> None:
    slow, fast = {"float32": 1.0, "bfloat16": 1.0}, {"float32": 40.0, "bfloat16": 40.0}
    roomy = [a_fellow(letter, a_card(gb=8, tflops=slow)) for letter in "abcdefghijkmnpqr"]
    quick = [a_fellow(letter, a_card(gb=4, tflops=fast)) for letter in "stuv"]
    inputs = Inputs(a_model(), roomy + quick)
    job = a_job(train__batch_size=4, train__seq_len=64)
    plan = inputs.place(job)
    assert {stage.fellow_id[-1] for stage in plan.stages} == set("abcdefghijkmnpqr")
    told = _offered(inputs, job)
    (fewer,) = [one for one in told if "of 20 fellows" in one.change]
    assert {stage.fellow_id[-1] for stage in fewer.plan.stages} <= set("stuv")
    assert (fewer.plan.view.layout.step_s or 0) < 0.1 * (plan.view.layout.step_s or 0)
