"""Splits a model's layers over fellows, and each fellow's share over its cards, by real prices.

Pure. For a given order of fellows the split by memory is the one whose fullest card is emptiest,
so it fits whenever any split of that order does. Speed is control.planning.course's matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import NamedTuple

from control.planning.price_book import PriceBook
from control.planning.usable import Card
from stage_runtime.places import CardPlace, Price
from stage_runtime.spread import equal_counts, lay, spans
from transport.errors import SwarmError

MAX_FELLOWS = 16


@dataclass(frozen=True, eq=False)
class FellowCards:
    """The usable cards of one fellow, in order of their index."""

    fellow_id: str
    cards: tuple[Card, ...]

    @property
    def free_bytes(self) -> int:
        """Over all its usable cards."""
        return sum(card.free_bytes for card in self.cards)


class PlacedCard(NamedTuple):
    """A card with its layers and their price."""

    card: Card
    place: CardPlace
    price: Price

    @property
    def missing_bytes(self) -> int:
        """How far the price runs past the card's free memory; 0 when it fits."""
        return max(0, self.price.total - self.card.free_bytes)


@dataclass(frozen=True)
class Split:
    """A whole placement: the cards of every stage, in pipeline order."""

    stages: tuple[tuple[PlacedCard, ...], ...]

    @property
    def cards(self) -> list[PlacedCard]:
        """All used cards, in pipeline order."""
        return [card for stage in self.stages for card in stage]

    @property
    def missing_bytes(self) -> int:
        """Over all cards; 0 when everything fits."""
        return sum(card.missing_bytes for card in self.cards)

    @property
    def fits(self) -> bool:
        """Whether every card holds its share."""
        return self.missing_bytes == 0

    @property
    def fullest(self) -> PlacedCard:
        """The card that limits the plan."""
        return max(self.cards, key=lambda one: one.price.total / max(1, one.card.free_bytes))

    @property
    def counts(self) -> list[int]:
        """Layers of each stage."""
        return [sum(card.place.num_layers for card in stage) for stage in self.stages]


@dataclass(frozen=True)
class Pins:
    """What the caller decided about the split."""

    counts: tuple[int, ...] | None = None
    """Layers of each stage."""
    equal: bool = False

    def for_stages(self, num_layers: int, num_stages: int) -> list[int] | None:
        """Layers of each stage where they are decided; None where memory decides."""
        if self.counts is not None:
            return list(self.counts)
        return equal_counts(num_layers, num_stages) if self.equal else None


def fellows_of(cards: Sequence[Card]) -> list[FellowCards]:
    """The usable cards, by fellow, in stable order."""
    usable = [card for card in cards if not card.reason]
    return [
        FellowCards(fellow_id, tuple(group))
        for fellow_id, group in groupby(usable, key=lambda card: card.fellow.fellow_id)
    ]


def pins_of(layer_index: Sequence[int] | None, *, equal: bool, num_layers: int) -> Pins:
    """The pins of a job.

    Raises:
        SwarmError: invalid-input; a boundary past the model's end.
    """
    if layer_index is None:
        return Pins(equal=equal)
    if layer_index and layer_index[-1] >= num_layers:
        raise SwarmError(
            "invalid-input",
            f"layer_index puts a boundary at layer {layer_index[-1]}, "
            f"but the model's last layer is {num_layers - 1}",
            hint=f"boundaries lie between 1 and {num_layers - 1}",
        )
    edges = [0, *layer_index, num_layers]
    return Pins(counts=tuple(b - a for a, b in pairwise(edges)))


def split(fellows: Sequence[FellowCards], prices: PriceBook, pins: Pins) -> Split:
    """Lay the whole model over these fellows in this order. At most one fellow a layer."""
    num_layers = prices.facts.num_layers
    counts = pins.for_stages(num_layers, len(fellows))
    if counts is None:
        counts = _by_memory([_trim(fellow, num_layers) for fellow in fellows], prices)
    return split_at(fellows, prices, counts)


def may_fit(fellows: Sequence[FellowCards], prices: PriceBook) -> bool:
    """False when no order of these fellows holds the model: each card is given the place in which
    it holds the most layers, without tables and buffers of an end.
    """
    stages, num_layers = len(fellows), prices.facts.num_layers
    seats = [
        CardPlace(at, stages, first, 0, False, False) for at, first in ((0, 0), (stages - 1, 1))
    ]
    held = 0
    for card in (card for one in fellows for card in one.cards):
        columns = (prices.column(seat, card.device, least=True) for seat in seats)
        held += max(column.most(card.free_bytes, num_layers) for column in columns)
        if held >= num_layers:
            return True
    return False


def split_at(fellows: Sequence[FellowCards], prices: PriceBook, counts: Sequence[int]) -> Split:
    """Lay so many layers on each of these fellows in this order."""
    placed = []
    for stage, (first, last) in enumerate(spans(counts)):
        where = StageLayers(stage, len(fellows), first, last)
        placed.append(spread(fellows[stage].cards, prices, where))
    return Split(tuple(placed))


@dataclass(frozen=True)
class StageLayers:
    """A stage of a pipeline and its layers."""

    index: int
    num_stages: int
    first_layer: int
    last_layer: int


def _trim(fellow: FellowCards, num_layers: int) -> tuple[Card, ...]:
    return _largest(fellow.cards, num_layers)


def _largest(cards: Sequence[Card], at_most: int) -> tuple[Card, ...]:
    """No more cards than layers: those with the most room, in order of their index."""
    if len(cards) <= at_most:
        return tuple(cards)
    kept = {card.id for card in sorted(cards, key=lambda card: -card.free_bytes)[:at_most]}
    return tuple(card for card in cards if card.id in kept)


def _by_memory(stages: Sequence[tuple[Card, ...]], prices: PriceBook) -> list[int]:
    """Layers of each stage, filling every card of the pipeline to the same share."""
    num_layers = prices.facts.num_layers
    stages = _within(stages, num_layers)
    seats = [
        (CardPlace(stage, len(stages), stage or i, 0, i == 0, i == len(cards) - 1), card)
        for stage, cards in enumerate(stages)
        for i, card in enumerate(cards)
    ]
    columns = [prices.column(seat, card.device) for seat, card in seats]
    free = [max(1, card.free_bytes) for _, card in seats]
    laid = lay(num_layers, free, lambda seat, count: columns[seat][count])
    return [
        sum(n for n, (seat, _) in zip(laid.layers, seats) if seat.stage == stage)
        for stage in range(len(stages))
    ]


def _within(stages: Sequence[tuple[Card, ...]], num_layers: int) -> list[tuple[Card, ...]]:
    """No more cards than layers over all stages: the smallest second cards go first."""
    kept = [list(cards) for cards in stages]
    while sum(map(len, kept)) > num_layers:
        spare = [
            (card.free_bytes, s, c)
            for s, cards in enumerate(kept)
            if len(cards) > 1
            for c, card in enumerate(cards)
        ]
        _, stage, card = min(spare)
        del kept[stage][card]
    return [tuple(cards) for cards in kept]


def spread(cards: Sequence[Card], prices: PriceBook, stage: StageLayers) -> tuple[PlacedCard, ...]:
    """A stage's layers over the fellow's own cards: every card to the same share."""
    count = stage.last_layer - stage.first_layer + 1
    if len(cards) == 1:
        alone = CardPlace(stage.index, stage.num_stages, stage.first_layer, stage.last_layer)
        return (PlacedCard(cards[0], alone, prices.of(alone, cards[0].device)),)
    cards = _largest(cards, count)
    ends = len(cards) - 1

    def place(i: int, first: int, count: int) -> CardPlace:
        last = first + count - 1
        return CardPlace(stage.index, stage.num_stages, first, last, i == 0, i == ends)

    def price(i: int, count: int) -> int:
        first = stage.first_layer if i == 0 else stage.last_layer - count + 1
        first = max(stage.first_layer, min(first, prices.facts.num_layers - count))
        return prices.of(place(i, first, count), cards[i].device).total

    def laid() -> tuple[int, ...]:
        columns = [
            prices.column(place(i, stage.first_layer + i, 0), card.device)
            for i, card in enumerate(cards)
        ]
        free = [max(1, card.free_bytes) for card in cards]
        each = (lambda i, n: columns[i][n]) if prices.uniform else price
        return lay(count, free, each).layers if ends else (count,)

    counts = prices.spread(cards[0].id, place(0, stage.first_layer, count), laid)
    placed = []
    for i, (first, last) in enumerate(spans(counts, stage.first_layer)):
        where = place(i, first, last - first + 1)
        placed.append(PlacedCard(cards[i], where, prices.of(where, cards[i].device)))
    return tuple(placed)
