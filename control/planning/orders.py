"""In which order the fellows stand: branch and bound over orders, with a lower bound.

Pure and without a clock: the work is bounded by a count of tried orders, so that the same inputs
give the same answer everywhere. What a bound proves is not tried; where the count runs out, the
gap between the best order found and the lower bound is told.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise, permutations

from control.planning.chains import Chain, string
from control.planning.course import Course, Tried
from control.planning.exact import best_counts
from control.planning.split import FellowCards

ALL_ORDERS_UP_TO = 5
"""Fellows whose every order is tried, but for those that a bound rules out."""
MOST_TRIES = 200
PROVEN = 1e-9

Order = tuple[FellowCards, ...]


@dataclass(frozen=True)
class Ranked:
    """The best order found of some fellows, and what no order of them can be faster than."""

    order: Order
    tried: Tried
    bound_s: float

    @property
    def gap(self) -> float:
        """How far the best found may be above the best there is; 0 = proven."""
        return max(0.0, self.tried.seconds / self.bound_s - 1) if self.bound_s > 0 else math.inf


class Tries:
    """Counts tried orders."""

    def __init__(self, most: int) -> None:
        self.left = most

    def at_most(self, most: int) -> "Tries":
        """A part of what is left, at least one."""
        taken = max(1, min(most, self.left))
        self.left -= taken
        return Tries(taken)

    def take(self) -> bool:
        """Whether one more may be tried."""
        self.left -= 1
        return self.left >= 0


def best_order(
    course: Course, fellows: Sequence[FellowCards], tries: Tries, below: float = math.inf
) -> Ranked | None:
    """The order of all these fellows with the shortest step; None when none fits.

    Args:
        below: orders that cannot be faster than this are not of interest.
    """
    return _Search(course, list(fellows), tries, below).best()


@dataclass(frozen=True)
class _Least:
    """What orders that end with one fellow cannot be faster than, the network apart."""

    last: FellowCards
    compute_s: float = 0.0
    """Of a whole step."""
    fill_s: float = 0.0
    """What the boundaries add at least."""
    curves: tuple[Sequence[float], ...] = ()
    """Of each fellow, the least."""

    @cached_property
    def sum_s(self) -> float:
        """One micro-batch through all stages, as short as it can be."""
        found = best_counts(self.curves, len(self.curves[0]) - 1, 1) if self.curves else None
        return found.seconds if found else 0.0

    @property
    def seconds(self) -> float:
        """Of a whole step."""
        return self.compute_s + self.fill_s


@dataclass
class _Search:
    """One search: which orders were tried, and the best of them."""

    course: Course
    fellows: list[FellowCards]
    tries: Tries
    below: float
    order: Order = ()
    tried: Tried | None = None
    open_s: float = math.inf
    """No order that was not looked at is faster than this."""

    @property
    def limit_s(self) -> float:
        """What is not faster than this is not of interest."""
        known = self.below if self.tried is None else min(self.below, self.tried.seconds)
        return known * (1 - PROVEN) if known < math.inf else known

    @property
    def few(self) -> bool:
        """Whether all orders are looked at."""
        return len(self.fellows) <= ALL_ORDERS_UP_TO

    def best(self) -> Ranked | None:
        """The best order of all."""
        chain = None if self.few else self._strung()
        leasts = _leasts(self.course, self.fellows)
        if chain is not None:
            leasts = [replace(one, fill_s=max(one.fill_s, chain.least)) for one in leasts]
        for least in sorted(leasts, key=lambda one: (one.seconds, one.last.fellow_id)):
            if least.seconds >= self.limit_s:
                self.open_s = min(self.open_s, least.seconds)
                break
            self._with_last(least, self._points(chain, least.last))
        if self.tried is None:
            return None
        if not self.few:
            self._swap({one.last.fellow_id: one for one in leasts})
        if not self.tried.exact:
            self.tried = self.course.tried(self.order) or self.tried
        return Ranked(self.order, self.tried, min(self.open_s, self.tried.seconds))

    def _points(self, chain: Chain | None, last: FellowCards) -> list[Order]:
        """The fellows of a chain before its last one, which this fellow becomes."""
        if chain is None:
            return []
        told = tuple(self.fellows[i] for i in chain.points)
        if told[0] is last:
            told = told[::-1]
        return [tuple(one for one in told if one is not last)]

    def _with_last(self, least: _Least, strung: list[Order]) -> None:
        """Look at orders that end with one fellow."""
        rest = [one for one in self.fellows if one is not least.last]
        told = [*strung, *_orders(self.course, rest)]
        if self.few:
            told += permutations(sorted(rest, key=_name))
        for before in dict.fromkeys(told):
            if not self._look((*before, least.last), least):
                return
        if not self.few:
            self.open_s = min(self.open_s, least.seconds)

    def _strung(self) -> Chain | None:
        """A short way through the network."""
        course, pace = self.course, self.course.pace
        if pace is None or pace.links is None:
            return None
        names = [one.fellow_id for one in self.fellows]
        costs = [[course.pair(a, b)[0] if a != b else 0.0 for b in names] for a in names]
        return string(costs, [(pace.parts - 1) * pace.inner_s(name) for name in names])

    def _look(self, order: Order, least: _Least) -> bool:
        """Try an order where it may be the best. False when there is no need, or no way, to go on
        with this last fellow.
        """
        if not self.few and least.seconds >= self.limit_s:
            return False
        if self._least_of(order, least) >= self.limit_s:
            return True
        if not self.tries.take():
            self.open_s = min(self.open_s, least.seconds)
            return False
        tried = self.course.tried(order, exactly=self.few)
        if tried is not None and tried.seconds < self.limit_s:
            self.order, self.tried = order, tried
        return True

    def _least_of(self, order: Order, least: _Least) -> float:
        """This order is not faster than this: its own boundaries and lines count."""
        pace = self.course.pace
        assert pace is not None
        if pace.links is None:
            return least.seconds
        nets = [self.course.pair(a.fellow_id, b.fellow_id) for a, b in pairwise(order)]
        inner = [pace.inner_s(one.fellow_id) for one in order[1:-1]]
        floor = max([floor_s for _, floor_s in nets] + inner, default=0.0)
        fill = sum(fill_s for fill_s, _ in nets)
        if least.compute_s + fill >= self.limit_s:
            return least.compute_s + fill
        return max(least.compute_s, least.sum_s + (pace.parts - 1) * floor) + fill

    def _swap(self, leasts: Mapping[str, _Least]) -> None:
        """Swap two fellows of the best order while one swap helps."""
        helped = True
        while helped:
            before = self.tried
            for i, j in combinations(range(len(self.order)), 2):
                order = list(self.order)
                order[i], order[j] = order[j], order[i]
                least = leasts[order[-1].fellow_id]
                if least.seconds < self.limit_s and not self._look(tuple(order), least):
                    return
            helped = self.tried is not before


def _orders(course: Course, rest: Sequence[FellowCards]) -> list[Order]:
    """Orders of the fellows before the last: by name; by room (the first hold the most live
    micro-batches); the slowest line first, where it has one neighbour.
    """
    stable = tuple(sorted(rest, key=_name))
    roomy = tuple(sorted(stable, key=lambda one: -one.free_bytes))
    return [stable, roomy, *(_slowest_line_first(course, one) for one in (stable, roomy))]


def _slowest_line_first(course: Course, order: Order) -> Order:
    pace = course.pace
    if pace is None or pace.links is None or len(order) < 2:
        return order
    slowest = max(order, key=lambda one: (pace.inner_s(one.fellow_id), one.fellow_id))
    return (slowest, *(one for one in order if one is not slowest))


def any_order_s(course: Course, fellows: Sequence[FellowCards]) -> float:
    """No order of all these fellows is faster than this."""
    return min(least.seconds for least in _leasts(course, fellows))


def _leasts(course: Course, fellows: Sequence[FellowCards]) -> list[_Least]:
    """For each fellow: no order that ends with it has a shorter step. Every other one stands where
    it may hold the most, no card keeps anything free, and the network costs its cheapest pairs.
    """
    if course.pins.counts or course.pins.equal or not course.moves:
        return [_Least(last) for last in fellows]
    near = [_near(course, fellows, one) for one in fellows]
    widest = [course.widest(one, len(fellows)) for one in fellows]
    return [_least(course, fellows, at, near, widest) for at in range(len(fellows))]


def _least(
    course: Course,
    fellows: Sequence[FellowCards],
    at: int,
    near: "Sequence[_Near]",
    widest: Sequence[Sequence[float]],
) -> _Least:
    assert course.pace is not None
    last, stages = fellows[at], len(fellows)
    curves = (*widest[:at], course.curve(last, (stages - 1, stages), None), *widest[at + 1 :])
    fill, floor = _least_network(near, at)
    found = best_counts(curves, course.num_layers, course.pace.parts, floor)
    return _Least(last, math.inf if found is None else found.seconds, fill, curves)


@dataclass(frozen=True)
class _Near:
    """A fellow's cheapest boundaries, whoever its neighbours are, in seconds."""

    fill_s: float = 0.0
    second_s: float = 0.0
    """The second cheapest."""
    floor_s: float = 0.0
    inner_s: float = 0.0


def _near(course: Course, fellows: Sequence[FellowCards], one: FellowCards) -> _Near:
    assert course.pace is not None
    if course.pace.links is None or len(fellows) < 2:
        return _Near()
    nets = [course.pair(one.fellow_id, other.fellow_id) for other in fellows if other is not one]
    fills = sorted(fill_s for fill_s, _ in nets)
    own = min(floor_s for _, floor_s in nets)
    inner = max(own, course.pace.inner_s(one.fellow_id))
    return _Near(fills[0], fills[1] if len(fills) > 1 else 0.0, own, inner)


def _least_network(near: Sequence[_Near], last: int) -> tuple[float, float]:
    """(what the boundaries add at least, the busiest line at least), when this fellow is last.

    Every fellow but the first and the last has two neighbours, so each pays at least its two
    cheapest boundaries, half of each; and an inner fellow's own line carries twice.
    """
    others = [one for at, one in enumerate(near) if at != last]
    fill = sum(one.fill_s for one in near) / 2
    twice = sorted(one.second_s / 2 for one in others)
    inner = sorted((one.inner_s for one in others), reverse=True)
    floor = max((one.floor_s for one in near), default=0.0)
    return fill + sum(twice[:-1]), max(floor, *inner[1:2], 0.0)


def _name(fellow: FellowCards) -> str:
    return fellow.fellow_id
