"""Layers over cards: every layer once, every card alike, and no better counts exist."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stage_runtime.spread import equal_counts, lay, spans

CARDS = st.lists(
    st.tuples(st.integers(1, 50), st.integers(0, 40), st.integers(1, 9)), min_size=1, max_size=4
)
"""(free memory, price of nothing, price of a layer) of each card."""


def _fullest(cards: list[tuple[int, int, int]], counts: tuple[int, ...]) -> float:
    return max((base + n * each) / free for (free, base, each), n in zip(cards, counts))


@given(cards=CARDS, more=st.integers(0, 6))
def test_no_other_counts_leave_the_fullest_card_emptier(
    cards: list[tuple[int, int, int]], more: int
) -> None:
    num_layers = len(cards) + more
    laid = lay(num_layers, [c[0] for c in cards], lambda c, n: cards[c][1] + n * cards[c][2])

    assert sum(laid.layers) == num_layers
    assert min(laid.layers) >= 1
    every = product(range(1, more + 2), repeat=len(cards))
    best = min(_fullest(cards, counts) for counts in every if sum(counts) == num_layers)
    assert laid.fullest == best == _fullest(cards, laid.layers)


def test_equal_cards_take_equal_layers_and_a_dear_start_takes_fewer() -> None:
    assert lay(12, [100, 100, 100], lambda _, n: n).layers == (4, 4, 4)
    assert lay(12, [100, 100, 100], lambda c, n: n + (3 if c == 0 else 0)).layers == (2, 5, 5)


def test_a_card_twice_as_large_takes_twice_the_layers() -> None:
    assert lay(30, [60, 120], lambda _, n: n).layers == (10, 20)


@given(num_layers=st.integers(1, 200), num_stages=st.integers(1, 16))
def test_equal_counts_differ_by_at_most_one_and_spans_cover_every_layer_once(
    num_layers: int, num_stages: int
) -> None:
    counts = equal_counts(num_layers, num_stages)
    assert max(counts) - min(counts) <= 1
    covered = [layer for first, last in spans(counts) for layer in range(first, last + 1)]
    assert covered == list(range(num_layers))


def test_fewer_layers_than_cards_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError):
        lay(1, [10, 10], lambda _, n: n)
