"""Which of the fellows: the subset, at one batch size, whose best order has the shortest step.

Pure. All subsets of a few fellows; of many those that have the most room, the fastest cards or
lines, or that a split over all of them would use. What none can be faster than is told beside.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations

from control.planning.course import Course
from control.planning.exact import best_counts
from control.planning.orders import ALL_ORDERS_UP_TO, PROVEN, Ranked, Tries, any_order_s, best_order
from control.planning.split import FellowCards

CourseOf = Callable[[int], Course]
"""Stages -> how orders of so many fellows are tried."""


def best_subset(
    course_of: CourseOf, fellows: Sequence[FellowCards], fewest: int, most: int, tries: Tries
) -> Ranked | None:
    """The fastest of all subsets and orders, at one batch size."""
    sized = [(size, subset) for size in range(fewest, most + 1)
             for subset in _subsets(course_of(size), fellows, size)]  # fmt: skip
    bounds = sorted(
        ((any_order_s(course_of(size), subset), size, i) for i, (size, subset) in enumerate(sized))
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
        curve = list(course.widest(fellow, stages))
        if stages > 1 or len(fellows) > 1:
            end = course.curve(fellow, (stages - 1, stages), None, head=False)
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
    return min(course.pace.seconds(card, 0, head) for one in fellows for card in one.cards)


def _name(fellow: FellowCards) -> str:
    return fellow.fellow_id
