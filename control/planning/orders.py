"""Which fellows, in which order: branch and bound over orders and subsets, with a lower bound.

Pure and without a clock: the work is bounded by a count of tried orders, so that the same inputs
give the same answer everywhere. What a bound proves is not tried; where the count runs out, the
gap between the best order found and the lower bound is told.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

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
    ends = sorted(
        ((_bound(course, fellows, last), last) for last in fellows),
        key=lambda one: (one[0], one[1].fellow_id),
    )
    best: tuple[Order, Tried] | None = None
    open_bound = math.inf
    for bound, last in ends:
        least = below if best is None else min(below, best[1].seconds)
        if bound >= least * (1 - PROVEN):
            open_bound = min(open_bound, bound)
            break
        found, is_complete = _with_last(course, fellows, last, tries, bound)
        open_bound = open_bound if is_complete else min(open_bound, bound)
        if found is not None and (best is None or found[1].seconds < best[1].seconds):
            best = found
    if best is None:
        return None
    return Ranked(*best, min(open_bound, best[1].seconds))


def _with_last(
    course: Course, fellows: Sequence[FellowCards], last: FellowCards, tries: Tries, bound: float
) -> tuple[tuple[Order, Tried] | None, bool]:
    """(the best order that ends with this fellow, whether no other can be faster)."""
    rest = [one for one in fellows if one is not last]
    best: tuple[Order, Tried] | None = None
    for before in _orders(course, rest):
        if not tries.take():
            return best, False
        order = (*before, last)
        tried = course.tried(order)
        if tried is not None and (best is None or tried.seconds < best[1].seconds):
            best = (order, tried)
        if best is not None and best[1].seconds <= bound * (1 + PROVEN):
            return best, True
    if len(rest) < ALL_ORDERS_UP_TO:
        return best, True
    return _swapped(course, best, tries, bound), False


def _orders(course: Course, rest: Sequence[FellowCards]) -> Iterator[Order]:
    """Orders of the fellows before the last: by name; by room (the first hold the most live
    micro-batches); the slowest line first, where it has one neighbour; every other while few.
    """
    stable = tuple(sorted(rest, key=lambda one: one.fellow_id))
    roomy = tuple(sorted(stable, key=lambda one: -one.free_bytes))
    told = [stable]
    for order in (roomy, *(_slowest_line_first(course, one) for one in (stable, roomy))):
        if order not in told:
            told.append(order)
    yield from told
    if len(rest) < ALL_ORDERS_UP_TO:
        yield from (order for order in permutations(stable) if order not in told)


def _slowest_line_first(course: Course, order: Order) -> Order:
    pace = course.pace
    if pace is None or pace.links is None or len(order) < 2:
        return order
    slowest = max(order, key=lambda one: (pace.inner_s(one.fellow_id), one.fellow_id))
    return (slowest, *(one for one in order if one is not slowest))


def _swapped(
    course: Course, best: tuple[Order, Tried] | None, tries: Tries, bound: float
) -> tuple[Order, Tried] | None:
    """The best after swaps of two fellows before the last, while one helps and tries are left."""
    if best is None:
        return None
    pairs = list(combinations(range(len(best[0]) - 1), 2))
    helped = True
    while helped:
        helped = False
        for i, j in pairs:
            if best[1].seconds <= bound * (1 + PROVEN) or not tries.take():
                return best
            order = list(best[0])
            order[i], order[j] = order[j], order[i]
            tried = course.tried(order)
            if tried is not None and tried.seconds < best[1].seconds * (1 - PROVEN):
                best, helped = (tuple(order), tried), True
    return best


def _bound(course: Course, fellows: Sequence[FellowCards], last: FellowCards) -> float:
    """No order that ends with this fellow has a shorter step: every other fellow stands where it
    may hold the most, no card keeps anything free, and the network costs its cheapest pairs.
    """
    stages = len(fellows)
    curves = [
        course.curve(one, stages - 1, stages, None) if one is last else _widest(course, one, stages)
        for one in fellows
    ]
    return _least(course, curves, _least_network(course, fellows, last))


def _widest(course: Course, fellow: FellowCards, stages: int) -> list[float]:
    """The cheapest that a fellow before the last can be with each count of layers."""
    places = {0, max(0, stages - 2)}
    told = [course.curve(fellow, stage, stages, None, head=False) for stage in sorted(places)]
    return [min(costs) for costs in zip(*told)]


def _least(course: Course, curves: Sequence[Sequence[float]], net: tuple[float, float]) -> float:
    assert course.pace is not None
    if course.pins.counts or course.pins.equal or not course.moves or not course.book.uniform:
        return 0.0
    fill, floor = net
    found = best_counts(curves, course.num_layers, course.pace.parts, floor)
    return math.inf if found is None else found.seconds + fill


def _least_network(
    course: Course, fellows: Sequence[FellowCards], last: FellowCards
) -> tuple[float, float]:
    """(what the boundaries add at least, the busiest line at least), when this fellow is last.

    Every fellow but the first and the last has two neighbours, so each pays at least its two
    cheapest boundaries, half of each; and an inner fellow's own line carries twice.
    """
    assert course.pace is not None
    if course.pace.links is None or len(fellows) < 2:
        return 0.0, 0.0
    fill, twice, floor, inner = 0.0, [], 0.0, []
    for one in fellows:
        nets = [course.pair(one.fellow_id, o.fellow_id) for o in fellows if o is not one]
        fills = sorted(net.fill_s for net in nets)
        own = min(net.floor_s for net in nets)
        fill, floor = fill + fills[0] / 2, max(floor, own)
        if one is not last:
            twice.append(fills[1] / 2 if len(fills) > 1 else 0.0)
            inner.append(max(own, course.pace.inner_s(one.fellow_id)))
    inner.sort(reverse=True)
    return fill + sum(sorted(twice)[:-1]), max(floor, *inner[1:2], 0.0)


CourseOf = Callable[[int], Course]
"""Stages -> how orders of so many fellows are tried."""


def best_subset(
    course_of: CourseOf, fellows: Sequence[FellowCards], fewest: int, most: int, tries: Tries
) -> Ranked | None:
    """The fastest of all subsets and orders, at one batch size."""
    sized = [(size, subset) for size in range(fewest, most + 1)
             for subset in _subsets(course_of(size), fellows, size)]  # fmt: skip
    bounds = sorted(
        ((_any_order(course_of(size), subset), size, i) for i, (size, subset) in enumerate(sized))
    )
    best: Ranked | None = None
    open_bound = _all_bounds(course_of, fellows, fewest, most)
    for bound, size, i in bounds:
        least = math.inf if best is None else best.tried.seconds
        if bound >= least * (1 - PROVEN):
            break
        found = best_order(course_of(size), sized[i][1], tries, least)
        if found is not None and found.tried.seconds < least:
            best = found
        if found is not None:
            open_bound = min(open_bound, found.bound_s)
    if best is None:
        return None
    return Ranked(best.order, best.tried, min(open_bound, best.tried.seconds))


def _any_order(course: Course, fellows: Sequence[FellowCards]) -> float:
    return min(_bound(course, fellows, last) for last in fellows)


def _subsets(
    course: Course, fellows: Sequence[FellowCards], size: int
) -> Iterable[tuple[FellowCards, ...]]:
    """Subsets of a size: all while they are few; else those with the most room, the fastest cards,
    the fastest lines, and those that a split over all of them would use most.
    """
    stable = sorted(fellows, key=lambda one: one.fellow_id)
    if len(stable) <= ALL_ORDERS_UP_TO:
        return list(combinations(stable, size))
    by_room = sorted(stable, key=lambda one: -one.free_bytes)[:size]
    by_speed = sorted(stable, key=lambda one: _layer_s(course, one))[:size]
    chosen = [by_room, by_speed, _used(course, stable, size)]
    pace = course.pace
    if pace is not None and pace.links is not None:
        by_line = sorted(
            stable, key=lambda one: (pace.inner_s(one.fellow_id), _layer_s(course, one))
        )
        chosen.append(by_line[:size])
    told = {tuple(sorted(one, key=_name)) for one in chosen}
    return sorted(told, key=lambda one: [fellow.fellow_id for fellow in one])


def _name(fellow: FellowCards) -> str:
    return fellow.fellow_id


def _layer_s(course: Course, fellow: FellowCards) -> float:
    """Seconds of one layer on a fellow's fastest card."""
    assert course.pace is not None
    layer = course.pace.layer_params(0)
    return min(course.pace.seconds(card, layer) for card in fellow.cards)


def _used(course: Course, fellows: Sequence[FellowCards], size: int) -> list[FellowCards]:
    """Those with the most layers when each may also have none."""
    found = _relaxed(course, fellows)
    if found is None:
        return list(fellows[:size])
    ranked = sorted(range(len(fellows)), key=lambda i: (-found[1][i], fellows[i].fellow_id))
    return [fellows[i] for i in ranked[:size]]


def _relaxed(
    course: Course, fellows: Sequence[FellowCards]
) -> tuple[float, tuple[int, ...]] | None:
    """(seconds, counts) when any of these may be skipped: a bound for every subset of the size
    that the course is for.
    """
    assert course.pace is not None
    stages = course.stages
    curves = []
    for fellow in fellows:
        curve = list(_widest(course, fellow, stages))
        if stages > 1 or len(fellows) > 1:
            end = course.curve(fellow, stages - 1, stages, None, head=False)
            curve = [min(costs) for costs in zip(curve, end)]
        curve[0] = 0.0
        curves.append(curve)
    found = best_counts(curves, course.num_layers, course.pace.parts)
    return None if found is None else (found.seconds, found.counts)


def _all_bounds(
    course_of: CourseOf, fellows: Sequence[FellowCards], fewest: int, most: int
) -> float:
    """What no subset in any order can be faster than; inf where every subset is looked at."""
    if len(fellows) <= ALL_ORDERS_UP_TO:
        return math.inf
    told = []
    for size in range(fewest, most + 1):
        course = course_of(size)
        found = _relaxed(course, fellows)
        if found is not None:
            told.append(found[0] + _least_head(course, fellows))
    return min(told, default=math.inf)


def _least_head(course: Course, fellows: Sequence[FellowCards]) -> float:
    assert course.pace is not None
    head = course.book.facts.head_params
    return min(course.pace.seconds(card, head) for one in fellows for card in one.cards)
