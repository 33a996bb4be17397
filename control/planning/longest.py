"""The longest sequence: that a placement as it is holds, and that a job can have at all.

Pure. Prices rise with the sequence, so both are found by bisection on the planner's own prices.
"""

from collections.abc import Callable
from functools import partial

from control.planning.price_book import PriceBook
from control.planning.split import PlacedCard, Split
from stage_runtime.model_facts import ModelFacts
from transport.orders import TrainSettings

SHORTEST = 8
LONGEST = 131_072
"""Bounds of train.seq_len in a job file."""


def most(fits: Callable[[int], bool], low: int, high: int) -> int | None:
    """The largest number from low to high that fits; None when the lowest does not."""
    if high < low or not fits(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def longest_held(split: Split, facts: ModelFacts, settings: TrainSettings) -> int | None:
    """The longest sequence that every card holds with this split and these settings.

    Looks at the fullest card first: what it does not hold, nobody needs to ask the others.
    """
    limit = min(LONGEST, facts.max_positions or LONGEST)
    cards = sorted(split.cards, key=_fullness, reverse=True)
    books: dict[int, PriceBook] = {}

    def holds(one: PlacedCard, seq_len: int) -> bool:
        if seq_len not in books:
            books[seq_len] = _book(facts, settings, seq_len)
        return books[seq_len].total(one.place, one.card.device) <= one.card.free_bytes

    for one in cards:
        if holds(one, limit):
            continue
        found = most(partial(holds, one), 2, limit)
        if found is None:
            return None
        limit = found
    return limit


def _fullness(one: PlacedCard) -> float:
    return one.price.total / max(1, one.card.free_bytes)


def _book(facts: ModelFacts, settings: TrainSettings, seq_len: int) -> PriceBook:
    return PriceBook(facts, settings.model_copy(update={"seq_len": seq_len}))
