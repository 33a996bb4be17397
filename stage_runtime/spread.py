"""Lays layers over cards in a fixed order, filling every card to the same share of its free memory.

Pure. The planner lays a whole model over all cards of a pipeline, and a stage's layers over a
fellow's own cards, by the same rule; the result is binding for the stage that runs.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

CardPriceOf = Callable[[int, int], int]
"""(card's place in the order, layers on it) -> bytes at the peak. Rises with the layers."""


@dataclass(frozen=True)
class Laid:
    """Layers of each card, in order, and the share of its free memory that the fullest one uses."""

    layers: tuple[int, ...]
    fullest: float
    """1.0 = exactly full; above 1 the fullest card overflows."""
    fullest_card: int


def lay(num_layers: int, free_bytes: Sequence[int], price: CardPriceOf) -> Laid:
    """Give each card at least one layer, so that the fullest card is as empty as can be.

    Args:
        num_layers: to lay, at least as many as there are cards.
        free_bytes: of each card, in the order in which layers run over them; above 0.
        price: what a card holds with so many layers.

    Returns:
        The layers of each card. No other counts have a lower fullest share.
    """
    assert len(free_bytes) <= num_layers
    most = num_layers - len(free_bytes) + 1
    layers = [1] * len(free_bytes)

    def with_one_more(card: int) -> float:
        count = layers[card] + 1
        return price(card, count) / free_bytes[card] if count <= most else math.inf

    used = [price(card, 1) / free for card, free in enumerate(free_bytes)]
    # The card that would be emptiest with one more layer takes it. Prices rise with the layers, so
    # this picks the smallest of all shares, and no other counts can have a lower fullest one.
    waiting = [(with_one_more(card), card) for card in range(len(layers))]
    heapq.heapify(waiting)
    for _ in range(num_layers - len(layers)):
        share, card = waiting[0]
        layers[card], used[card] = layers[card] + 1, share
        heapq.heapreplace(waiting, (with_one_more(card), card))
    fullest = max(range(len(used)), key=used.__getitem__)
    return Laid(tuple(layers), used[fullest], fullest)


def equal_counts(num_layers: int, num_stages: int) -> list[int]:
    """The same number of layers each; the first stages take one more when it does not divide."""
    each, more = divmod(num_layers, num_stages)
    return [each + (stage < more) for stage in range(num_stages)]


def spans(counts: Sequence[int], start: int = 0) -> list[tuple[int, int]]:
    """(first, last) layer of each count in order, inclusive, from `start` on."""
    result = []
    for count in counts:
        result.append((start, start + count - 1))
        start += count
    return result
