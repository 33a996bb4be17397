"""What a fellow may hold at a place of a pipeline, and how long it then takes: a curve by layers.

Pure. Where layers differ or a disk is small, a curve tells the least: so many layers where they
weigh least, on the fastest of the fellow's cards. What it rules out, no placement reaches; what it
allows is checked where the layers really lie (control.planning.course).
"""

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from control.planning.exact import Costs
from control.planning.pace import Pace
from control.planning.price_book import Column, PriceBook
from control.planning.split import FellowCards, PlacedCard
from control.planning.usable import Card
from stage_runtime.places import CardPlace
from transport.units import GB

KEPT_FREE_SHARE = 0.1
KEPT_FREE_BYTES = GB
"""The estimate has been 1.5 GB low on a 6 GB card: this split is the one that fills a card."""

Held = Mapping[str, int]
"""Layers of each card in the split by memory."""
Spread = tuple[Sequence[Card], tuple[int, ...]]
"""Cards of a fellow, and the layers of each."""


def kept_free(card: Card) -> int:
    """What a card that gains layers keeps free."""
    return max(KEPT_FREE_BYTES, int(KEPT_FREE_SHARE * card.free_bytes))


def limit(card: Card, count: int, held: Held | None) -> int:
    """The most that a card may hold with so many layers. held None: no card keeps anything free."""
    gains = held is not None and count > held.get(card.id, 0)
    return card.free_bytes - (kept_free(card) if gains else 0)


def may_hold(one: PlacedCard, held: Held | None) -> bool:
    """Whether a placed card holds its share and keeps free what it must."""
    return one.price.total <= limit(one.card, one.place.num_layers, held)


@dataclass(frozen=True)
class Seat:
    """A place in a pipeline: a stage of so many."""

    book: PriceBook
    pace: Pace
    stage: int
    stages: int
    head: bool = True
    """Whether the last stage's head counts."""
    dearest: bool = False
    """Tell what layers cost where they weigh most, instead of least."""

    def curve(self, fellow: FellowCards, held: Held | None, most: int) -> Costs:
        """Seconds of one micro-batch with 0, 1, ... layers on this fellow; inf where it cannot.

        Args:
            most: layers that its disk and the other stages leave to it.
        """
        told = Costs([math.inf] * (self.book.facts.num_layers + 1))
        several = len(fellow.cards) > 1
        if several and not self.book.uniform and not self.dearest:
            held = None  # which card gains depends on where the layers lie
        for cards, counts in self._ways(fellow.cards, held, most):
            told[sum(counts)] = self._seconds(cards, counts)
        return told

    def _seconds(self, cards: Sequence[Card], counts: Sequence[int]) -> float:
        """The least that these layers take on these cards."""
        head = self.book.facts.head_params * (self.head and self.stage == self.stages - 1)
        if self.book.uniform or len(cards) == 1:
            last = len(cards) - 1
            return sum(
                self.pace.seconds(card, self._params(count), head if i == last else 0)
                for i, (card, count) in enumerate(zip(cards, counts))
            )
        params = self._params(sum(counts))
        return min(self.pace.seconds(card, params, head) for card in cards)

    def _params(self, count: int) -> int:
        if self.book.uniform:
            return count * self.pace.layer_params(0)
        starts = self.book.starts(self._place(first=True, last=True), count)
        told = (self.pace.span_params(first, first + count - 1) for first in starts)
        return max(told) if self.dearest else min(told)

    def _place(self, *, first: bool, last: bool) -> CardPlace:
        start = 0 if self.stage == 0 and first else 1
        return CardPlace(self.stage, self.stages, start, start - 1, first, last)

    def _columns(self, cards: Sequence[Card]) -> list[Column]:
        ends = len(cards) - 1
        return [
            self.book.column(
                self._place(first=i == 0, last=i == ends), card.device, least=not self.dearest
            )
            for i, card in enumerate(cards)
        ]

    def _ways(self, cards: Sequence[Card], held: Held | None, most: int) -> Iterator[Spread]:
        if len(cards) == 1:
            (column,) = self._columns(cards)
            cap = self._cap(cards[0], column, held, most)
            yield from ((cards, (n,)) for n in range(1, cap + 1))
            return
        for few in range(1, min(most, len(cards) - 1) + 1):
            largest = sorted(cards, key=lambda card: -card.free_bytes)[:few]
            chosen = [card for card in cards if card in largest]
            columns = self._columns(chosen)
            if all(column[1] <= limit(card, 1, held) for card, column in zip(chosen, columns)):
                yield chosen, (1,) * few
        yield from self._spreads(cards, held, most)

    def _cap(self, card: Card, column: Column, held: Held | None, most: int) -> int:
        """The most layers that a card may hold. Prices rise with the layers."""
        before = min(most, held.get(card.id, 0) if held is not None else 0)
        if column[before] > card.free_bytes:
            return column.most(card.free_bytes, before)
        more = column.most(limit(card, most, held), most) if most > before else 0
        return max(before, more)

    def _spreads(self, cards: Sequence[Card], held: Held | None, most: int) -> Iterator[Spread]:
        """(cards, layers of each) for each count that they may hold, spread as `lay` does."""
        columns = self._columns(cards)
        free = [max(1, card.free_bytes) for card in cards]
        counts, top = [1] * len(cards), most - len(cards) + 1
        caps = [self._cap(card, column, held, top) for card, column in zip(cards, columns)]
        if min(caps) < 1:
            return

        def share(i: int) -> float:
            count = counts[i] + 1
            return columns[i][count] / free[i] if count <= top else math.inf

        waiting = [(share(i), i) for i in range(len(cards))]
        heapq.heapify(waiting)
        for total in range(len(cards), most + 1):
            yield cards, tuple(counts)
            if total == most:
                return
            _, i = waiting[0]
            counts[i] += 1
            if counts[i] > caps[i]:
                return  # counts only grow
            heapq.heapreplace(waiting, (share(i), i))
