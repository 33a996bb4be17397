"""Seconds of a block: between the sizes that were measured, and what it takes whatever it does."""

import pytest

from control.planning import auto
from control.planning.pace import pace_of, tflops_at
from control.planning.search import Ask, course_of
from control.planning.split import Pins, fellows_of
from control.planning.usable import Card
from tests.unit.control.planning.pools import a_card, a_fellow, a_job, a_model
from transport.cards import CardReport, Speed


def _card(block_s: float | None = None) -> CardReport:
    speed = Speed.model_validate(
        {
            "number_format": "float32",
            "tflops": 0.2,
            "measured_at": 1.0,
            "block_s": block_s,
            "sizes": [
                {"layer_params": 1_000_000, "tflops": 0.1},
                {"layer_params": 16_000_000, "tflops": 0.4},
            ],
        }
    )
    return a_card(gb=8).model_copy(update={"speeds": [speed]})


@pytest.mark.parametrize(
    ("params", "tflops"),
    [(10_000, 0.1), (1_000_000, 0.1), (4_000_000, 0.2), (16_000_000, 0.4), (10**9, 0.4)],
)
def test_a_figure_is_taken_at_the_models_own_size(params: int, tflops: float) -> None:
    card = Card(a_fellow("a", _card()), _card())
    assert tflops_at(card, "float32", params) == pytest.approx(tflops)


def test_a_block_takes_its_calls_beside_its_operations_and_a_head_is_one_wide_product() -> None:
    model = a_model()
    fellow = a_fellow("a", _card(block_s=0.01))
    card = Card(fellow, _card(block_s=0.01))
    ask = Ask(model, a_job(train__batch_size=2), None, Pins(), auto.Format("float32", ""))
    settings = auto.settings(ask.asked(1), 2, auto.Saving(False, "none"))
    pace = course_of(ask, fellows_of([card]), settings).pace
    assert pace is not None
    layer = pace.layer_params(0)
    operations = 4 * pace.tokens * layer
    rate = 1e12 * tflops_at(card, "float32", layer)
    assert pace.seconds(card, 3 * layer) == pytest.approx(3 * (0.01 + operations / rate))
    head = model.facts.head_params
    wide = 4 * pace.tokens * head / (0.4 * 1e12)
    assert pace.seconds(card, layer, head) - pace.seconds(card, layer) == pytest.approx(wide)
    again = settings.model_copy(update={"recompute": True})
    slower = pace_of(model.facts, again, [card])
    assert slower is not None
    assert slower.seconds(card, layer) == pytest.approx(1.5 * pace.seconds(card, layer))
