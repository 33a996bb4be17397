"""Prices that are remembered: the same as if they were asked anew."""

from typing import Any

import pytest

from control.planning import auto
from control.planning.price_book import PriceBook
from stage_runtime.costs import Prices
from stage_runtime.places import CardPlace, Device
from tests.unit.control.planning.pools import SMOLLM2, a_job, a_model

GEMMA = {
    "model_type": "gemma3_text", "hidden_size": 640, "intermediate_size": 2048,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
    "num_hidden_layers": 18, "vocab_size": 32000, "sliding_window": 512,
    "max_position_embeddings": 32768,
}  # fmt: skip
CARDS = (Device("cpu"), Device("cuda", flash=False))


def _book(config: dict[str, Any], **job: Any) -> PriceBook:
    facts = a_model(config).facts
    asked = auto.Asked(a_job(train__seq_len=1024, **job), facts, "bfloat16", 4)
    return PriceBook(facts, auto.settings(asked, 8, auto.Saving(False, "none")))


@pytest.mark.parametrize("config", [SMOLLM2, GEMMA])
@pytest.mark.parametrize("job", [{}, {"method": "full"}, {"train__micro_batches": 2}])
def test_a_remembered_price_is_the_price(config: dict[str, Any], job: dict[str, Any]) -> None:
    book = _book(config, **job)
    anew = Prices(book.facts, book.settings)
    for stages in (2, 5, 9):  # the same places at other stages come from memory
        for stage in range(stages):
            for first in range(0 if stage == 0 else 1, 6):
                for count in (1, 4):
                    for ends in ((True, True), (True, False), (False, True)):
                        place = CardPlace(stage, stages, first, first + count - 1, *ends)
                        for device in CARDS:
                            assert book.of(place, device) == anew.of(place, device)


@pytest.mark.parametrize("config", [SMOLLM2, GEMMA])
def test_a_column_tells_the_least_and_the_most_of_all_places(config: dict[str, Any]) -> None:
    book = _book(config)
    seat, layers = CardPlace(1, 3, 1, 0), book.facts.num_layers
    least = book.column(seat, CARDS[0], least=True)
    most = book.column(seat, CARDS[0])
    for count in (1, 3, 7):
        totals = [
            book.total(CardPlace(1, 3, first, first + count - 1), CARDS[0])
            for first in range(1, layers - count + 1)
        ]
        assert (least[count], most[count]) == (min(totals), max(totals))
    room = most[5]
    assert most.most(room, layers) == 5
    assert most.most(0, layers) == 0
