"""The fastest split of one order of fellows: by memory first, then layers moved to faster cards.

Pure. A card that gains layers over the split by memory keeps a gigabyte, or a tenth of its free
memory, free by the estimate; a card that only gives is never held back; a fellow's disk must hold
its share. Within that the split is exact (control.planning.exact).
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from control.planning.disk import Disk
from control.planning.exact import Best, best_counts, best_cuts
from control.planning.pace import Network, Pace
from control.planning.price_book import PriceBook
from control.planning.split import (
    FellowCards,
    Pins,
    PlacedCard,
    Split,
    StageLayers,
    split,
    split_at,
    spread,
)
from control.planning.usable import Card
from stage_runtime.costs import CardPlace
from transport.units import GB

KEPT_FREE_SHARE = 0.1
KEPT_FREE_BYTES = GB
"""The estimate has been 1.5 GB low on a 6 GB card: this split is the one that fills a card."""

Order = Sequence[FellowCards]
Spread = tuple[Sequence[Card], tuple[int, ...]]
"""Cards of a fellow, and the layers of each."""


@dataclass(frozen=True)
class Tried:
    """An order with its split, and the predicted seconds of a step."""

    split: Split
    by_memory: Split
    seconds: float
    memory_seconds: float
    """Of the split by memory, in the same order."""


def kept_free(card: Card) -> int:
    """What a card that gains layers keeps free."""
    return max(KEPT_FREE_BYTES, int(KEPT_FREE_SHARE * card.free_bytes))


@dataclass(frozen=True)
class Course:
    """How orders of fellows are tried under one job's settings."""

    book: PriceBook
    stages: int
    pins: Pins
    disk: Disk
    pace: Pace | None
    """None: a card has no figure, and the split stays by memory."""
    moves: bool = True
    """False: the split stays by memory (pinned boundaries, unchecked memory)."""
    _seen: dict[tuple[object, ...], list[float]] = field(default_factory=dict, compare=False)
    _pairs: dict[tuple[str, str], Network] = field(default_factory=dict, compare=False)

    @property
    def num_layers(self) -> int:
        """Of the model."""
        return self.book.facts.num_layers

    def pair(self, one: str, other: str) -> Network:
        """What the boundary between two fellows adds, whichever comes first."""
        assert self.pace is not None
        key = (min(one, other), max(one, other))
        if key not in self._pairs:
            self._pairs[key] = self.pace.network(key)
        return self._pairs[key]

    def by_memory(self, order: Order) -> Split:
        """The split whose fullest card is emptiest."""
        return split(order, self.book, self.pins)

    def tried(self, order: Order) -> Tried | None:
        """The fastest split of this order; None when it does not fit, or has no figure."""
        base = self.by_memory(order)
        if self.pace is None or (self.disk.checked and not base.fits):
            return None
        before = self.pace.step_s(base)
        best = self._best(order, base) if self.moves else None
        on_disk = not any(self.disk.lack(stage) for stage in base.stages)
        if best is None or (on_disk and best.seconds >= before * (1 - 1e-9)):
            return Tried(base, base, before, before) if on_disk else None
        made = split_at(order, self.book, best.counts)
        return Tried(made, base, self.pace.step_s(made), before)

    def _best(self, order: Order, base: Split) -> Best | None:
        """The shortest step's counts. `seconds` includes what the network adds."""
        assert self.pace is not None
        pace, stages = self.pace, len(order)
        held = {one.card.id: one.place.num_layers for one in base.cards}
        net = pace.network([one.fellow_id for one in order])
        if self.book.uniform and not self.disk.may_bind(order):
            curves = [self.curve(one, i, stages, held) for i, one in enumerate(order)]
            found = best_counts(curves, self.num_layers, pace.parts, net.floor_s)
        else:
            found = best_cuts(
                lambda stage, first, count: self._cut_s(order, held, stage, first, count),
                stages, self.num_layers, pace.parts, net.floor_s,
            )  # fmt: skip
        return found and Best(found.seconds + net.fill_s + net.tied_s, found.counts)

    def curve(
        self,
        fellow: FellowCards,
        stage: int,
        stages: int,
        held: Mapping[str, int] | None,
        *,
        head: bool = True,
    ) -> list[float]:
        """Seconds of one micro-batch with 0, 1, ... layers on a fellow at this place.

        Args:
            held: layers of each card in the split by memory; None: no card keeps anything free.
            head: whether the last stage's head counts.
        """
        counts = tuple((held or {}).get(card.id, 0) for card in fellow.cards)
        key = (fellow.fellow_id, stage, stages, held is None, counts, head)
        if key not in self._seen:
            self._seen[key] = self._curve(fellow, (stage, stages), held, head=head)
        return self._seen[key]

    def _curve(
        self,
        fellow: FellowCards,
        at: tuple[int, int],
        held: Mapping[str, int] | None,
        *,
        head: bool,
    ) -> list[float]:
        assert self.pace is not None
        most = self.num_layers - at[1] + 1
        seat = _Seat(self.book, at, held)
        if len(fellow.cards) == 1:
            cap = seat.cap(fellow.cards[0], most)
            steps: list[Spread] = [(fellow.cards, (n,)) for n in range(1, cap + 1)]
        else:
            steps = seat.spreads(fellow.cards, most)
        layer = self.pace.layer_params(0)
        heads = head and at[0] == at[1] - 1
        curve = [math.inf] * (self.num_layers + 1)
        for cards, counted in steps:
            params = [count * layer for count in counted]
            params[-1] += self.book.facts.head_params * heads
            curve[sum(counted)] = sum(map(self.pace.seconds, cards, params))
        return curve

    def _cut_s(
        self, order: Order, held: Mapping[str, int], stage: int, first: int, count: int
    ) -> float:
        assert self.pace is not None
        where = StageLayers(stage, len(order), first, first + count - 1)
        placed = spread(order[stage].cards, self.book, where)
        if not all(_may_hold(one, held) for one in placed) or self.disk.lack(placed):
            return math.inf
        return self.pace.stage_s(placed)


def _may_hold(one: PlacedCard, held: Mapping[str, int]) -> bool:
    gains = one.place.num_layers > held.get(one.card.id, 0)
    limit = one.card.free_bytes - (kept_free(one.card) if gains else 0)
    return one.price.total <= limit


@dataclass(frozen=True)
class _Seat:
    """A fellow's place in a pipeline, and what its cards may hold there."""

    book: PriceBook
    at: tuple[int, int]
    """(stage, stages)."""
    held: Mapping[str, int] | None

    def price(self, card: Card, count: int, *, first: bool = True, last: bool = True) -> int:
        """What a card holds with so many layers."""
        stage, stages = self.at
        start = 0 if stage == 0 and first else 1
        place = CardPlace(stage, stages, start, start + count - 1, first, last)
        return self.book.total(place, card.device)

    def limit(self, card: Card, count: int) -> int:
        """The most that a card may hold with so many layers."""
        gains = self.held is not None and count > self.held.get(card.id, 0)
        return card.free_bytes - (kept_free(card) if gains else 0)

    def cap(self, card: Card, most: int) -> int:
        """The most layers that a fellow's only card may hold. Prices rise with the layers."""
        held = min(most, self.held.get(card.id, 0) if self.held is not None else 0)
        low, high = held, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.price(card, middle) <= self.limit(card, middle):
                low = middle
            else:
                high = middle - 1
        return low

    def spreads(self, cards: Sequence[Card], most: int) -> list[Spread]:
        """(cards, layers of each) for each count that they may hold, spread as `lay` does."""
        told: list[Spread] = []
        for few in range(1, min(most, len(cards) - 1) + 1):
            largest = sorted(cards, key=lambda card: -card.free_bytes)[:few]
            told.append(([card for card in cards if card in largest], (1,) * few))
        counts = [1] * len(cards)
        limit = most - len(cards) + 1

        def share(i: int, count: int) -> float:
            return self._share(cards, i, count) if count <= limit else math.inf

        waiting = [(share(i, 2), i) for i in range(len(cards))]
        heapq.heapify(waiting)
        for total in range(len(cards), most + 1):
            told.append((cards, tuple(counts)))
            if total < most:
                _, i = waiting[0]
                counts[i] += 1
                heapq.heapreplace(waiting, (share(i, counts[i] + 1), i))
        return [one for one in told if self._holds(*one)]

    def _share(self, cards: Sequence[Card], i: int, count: int) -> float:
        price = self.price(cards[i], count, first=i == 0, last=i == len(cards) - 1)
        return price / max(1, cards[i].free_bytes)

    def _holds(self, cards: Sequence[Card], counts: Sequence[int]) -> bool:
        ends = len(cards) - 1
        return all(
            self.price(card, n, first=i == 0, last=i == ends) <= self.limit(card, n)
            for i, (card, n) in enumerate(zip(cards, counts))
        )
