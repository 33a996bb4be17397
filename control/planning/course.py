"""The fastest split of one order of fellows: by memory first, then layers moved to faster cards.

Pure. A card that gains layers over the split by memory keeps a gigabyte, or a tenth of its free
memory, free by the estimate; a card that only gives is never held back; a fellow's disk must hold
its share. Within that the split is exact (control.planning.exact): where layers are alike and no
disk binds, counts of layers are all there is to it; else what counts promise is checked where the
layers really lie, and the places are searched themselves when a promise does not hold.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from control.planning.disk import Disk
from control.planning.exact import Best, Costs, Cuts, best_counts, best_cuts
from control.planning.pace import Pace
from control.planning.price_book import PriceBook
from control.planning.seats import Held, Seat, may_hold
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

SAME = 1e-9
"""Steps that differ by less than this share of them are the same."""

Order = Sequence[FellowCards]


@dataclass(frozen=True)
class Tried:
    """An order with its split, and the predicted seconds of a step."""

    split: Split
    by_memory: Split
    seconds: float
    memory_seconds: float
    """Of the split by memory, in the same order."""
    exact: bool = True
    """No other split of this order is faster."""


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
    _seen: dict[tuple[object, ...], Costs] = field(default_factory=dict, compare=False)
    _widest: dict[tuple[str, int], Costs] = field(default_factory=dict, compare=False)
    _pairs: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict, compare=False)

    @property
    def num_layers(self) -> int:
        """Of the model."""
        return self.book.facts.num_layers

    def pair(self, one: str, other: str) -> tuple[float, float]:
        """(what the boundary between two fellows adds to a step, what it costs each micro-batch at
        least), whichever comes first.
        """
        key = (one, other) if one < other else (other, one)
        found = self._pairs.get(key)
        if found is None:
            assert self.pace is not None
            found = self._pairs[key] = self.pace.pair_s(*key)
        return found

    def by_memory(self, order: Order) -> Split:
        """The split whose fullest card is emptiest."""
        return split(order, self.book, self.pins)

    def tried(self, order: Order, *, exactly: bool = True) -> Tried | None:
        """The fastest split of this order; None when it does not fit, or has no figure.

        Args:
            exactly: also where places must be searched one by one, which takes long; else the best
                of a few splits.
        """
        base = self.by_memory(order)
        if self.pace is None or (self.disk.checked and not base.fits):
            return None
        before = self.pace.step_s(base)
        on_disk = not any(self.disk.lack(stage) for stage in base.stages)
        kept = Tried(base, base, before, before) if on_disk else None
        if not self.moves:
            return kept
        found, is_exact = self._moved(order, base, exactly=exactly)
        if found is None or (kept is not None and found.seconds >= before * (1 - SAME)):
            return kept and Tried(base, base, before, before, is_exact)
        made = split_at(order, self.book, found.counts)
        return Tried(made, base, self.pace.step_s(made), before, is_exact)

    def _moved(self, order: Order, base: Split, *, exactly: bool) -> tuple[Best | None, bool]:
        """(the counts with the shortest step, whether none are shorter); the network counts in."""
        held = {one.card.id: one.place.num_layers for one in base.cards}
        promised = self._counted(order, held)
        if promised is None or (self.book.uniform and not self.disk.may_bind(order)):
            return promised, True
        found = self._real(order, held, promised.counts)
        if found is not None and found.seconds <= promised.seconds * (1 + SAME):
            return found, True
        careful = self._counted(order, held, dearest=True)
        other = careful and self._real(order, held, careful.counts)
        both = [one for one in (found, other) if one is not None]
        best = min(both, key=lambda one: one.seconds, default=None)
        if not exactly:
            return best, False
        return self._cut(order, held, best.seconds if best else math.inf) or best, True

    def _counted(self, order: Order, held: Held, *, dearest: bool = False) -> Best | None:
        """The best counts, as if layers lay where they weigh least (or most)."""
        pace, stages = self._pace, len(order)
        net = pace.network([one.fellow_id for one in order])
        curves = [
            self.curve(one, (i, stages), held, dearest=dearest) for i, one in enumerate(order)
        ]
        found = best_counts(curves, self.num_layers, pace.parts, net.floor_s)
        return found and Best(found.seconds + net.once_s, found.counts)

    def _real(self, order: Order, held: Held, counts: Sequence[int]) -> Best | None:
        """These counts where they really lie; None when a card or a disk does not hold them."""
        made = split_at(order, self.book, counts)
        if not all(may_hold(one, held) for one in made.cards):
            return None
        if any(self.disk.lack(stage) for stage in made.stages):
            return None
        return Best(self._pace.step_s(made), tuple(counts))

    def _cut(self, order: Order, held: Held, below: float) -> Best | None:
        """The best of all places of the boundaries; None when none is faster than `below`."""
        pace, stages = self._pace, len(order)
        net = pace.network([one.fellow_id for one in order])
        curves = [self.curve(one, (i, stages), held) for i, one in enumerate(order)]
        place = _Places(self, order, held)
        cuts = Cuts(place.fits, place.seconds, [_most(curve) for curve in curves], self.num_layers)
        found = best_cuts(cuts, pace.parts, net.floor_s, below - net.once_s)
        return found and Best(found.seconds + net.once_s, found.counts)

    @property
    def _pace(self) -> Pace:
        assert self.pace is not None
        return self.pace

    def curve(
        self,
        fellow: FellowCards,
        at: tuple[int, int],
        held: Held | None,
        *,
        head: bool = True,
        dearest: bool = False,
    ) -> Costs:
        """Seconds of one micro-batch with 0, 1, ... layers on a fellow at this place.

        Args:
            at: (stage, stages).
            held: layers of each card in the split by memory; None: no card keeps anything free.
            head: whether the last stage's head counts.
            dearest: as if layers lay where they weigh most; else least.
        """
        counts = tuple((held or {}).get(card.id, 0) for card in fellow.cards)
        key = (fellow.fellow_id, *at, held is None, counts, head, dearest)
        if key not in self._seen:
            seat = Seat(self.book, self._pace, *at, head, dearest)
            most = self.disk.most(fellow, at, self.num_layers - at[1] + 1, surely=dearest)
            self._seen[key] = seat.curve(fellow, held, most)
        return self._seen[key]

    def widest(self, fellow: FellowCards, stages: int) -> Costs:
        """The least that a fellow before the last can take with each count of layers."""
        key = (fellow.fellow_id, stages)
        if key not in self._widest:
            places = sorted({0, max(0, stages - 2)})
            told = [self.curve(fellow, (stage, stages), None, head=False) for stage in places]
            self._widest[key] = Costs(map(min, *told)) if len(told) > 1 else told[0]
        return self._widest[key]


def _most(curve: Sequence[float]) -> int:
    """The most layers that a curve allows."""
    return max((count for count, seconds in enumerate(curve) if seconds < math.inf), default=0)


@dataclass(frozen=True)
class _Places:
    """What the fellows of an order hold and take where layers really lie."""

    course: Course
    order: Order
    held: Held
    _placed: dict[tuple[int, int, int], tuple[PlacedCard, ...]] = field(default_factory=dict)

    def _at(self, stage: int, first: int, count: int) -> tuple[PlacedCard, ...]:
        key = (stage, first, count)
        if key not in self._placed:
            where = StageLayers(stage, len(self.order), first, first + count - 1)
            self._placed[key] = spread(self.order[stage].cards, self.course.book, where)
        return self._placed[key]

    def fits(self, stage: int, first: int, count: int) -> bool:
        """Whether memory and disk hold these layers."""
        placed = self._at(stage, first, count)
        return not any(one.missing_bytes for one in placed) and not self.course.disk.lack(placed)

    def seconds(self, stage: int, first: int, count: int) -> float:
        """Of one micro-batch; inf where a card that gains layers would not keep enough free."""
        placed = self._at(stage, first, count)
        if not all(may_hold(one, self.held) for one in placed):
            return math.inf
        assert self.course.pace is not None
        return self.course.pace.stage_s(placed)
