"""The exact split: layers of each stage, for a fixed order, so that a step is shortest.

Pure numbers; knows neither cards nor models. A step of M micro-batches costs the sum of all stages
and M - 1 times the slowest. For every limit on the slowest stage the cheapest sum is found exactly
(greedily where a stage's cost rises evenly, by dynamic programming where it does not or where cost
depends on the place of the layers), and the limits are searched by bisection: between two limits
no split can be better than the sum at the higher one with the lower one as slowest.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

Curve = Sequence[float]
"""Seconds of one micro-batch on a stage with 0, 1, ... L layers; inf where it cannot hold them."""


@dataclass(frozen=True)
class Cuts:
    """Stages whose cost depends on which layers they hold."""

    fits: Callable[[int, int, int], bool]
    """(stage, its first layer, layers): whether it holds them. Then it holds any part of them."""
    seconds: Callable[[int, int, int], float]
    """Of one micro-batch, where it fits; inf where it must not be all the same."""
    most: Sequence[int]
    """No stage holds more layers than this, wherever they lie."""
    num_layers: int

    def firsts(self, stage: int) -> range:
        """Where a stage may begin: those before and after it hold the other layers."""
        after = sum(self.most[stage:])
        low = max(stage, self.num_layers - after)
        high = min(sum(self.most[:stage]), self.num_layers - (len(self.most) - stage))
        return range(low, high + 1)


NEAR = 1e-12


@dataclass(frozen=True)
class Best:
    """The shortest step: its length, and the layers of each stage."""

    seconds: float
    counts: tuple[int, ...]


@dataclass(frozen=True)
class _At:
    """The cheapest sum in which no stage is slower than a limit."""

    total: float
    slowest: float
    counts: tuple[int, ...]


def best_counts(
    curves: Sequence[Curve], num_layers: int, parts: int, floor_s: float = 0.0
) -> Best | None:
    """The counts with the shortest step; None when no counts fit.

    Args:
        curves: of each stage; index 0 is finite only where a stage may be skipped.
        parts: micro-batches.
        floor_s: what each further micro-batch costs at least (the slowest link).
    """
    sums = _Sums(curves, num_layers)
    return _bisect(sums.limits(parts), sums.at, parts, floor_s)


def best_cuts(cuts: Cuts, parts: int, floor_s: float = 0.0, below: float = math.inf) -> Best | None:
    """The same where a stage's cost depends on which layers it holds, not on how many alone.

    Args:
        below: steps that are not shorter than this are not of interest.
    """
    table = _cut_table(cuts)
    limits = sorted({c for row in table for costs in row.values() for c in costs} - {math.inf})
    num_layers = cuts.num_layers
    return _bisect(limits, lambda at: _cut_sum(table, num_layers, at), parts, floor_s, below)


def _bisect(
    limits: Sequence[float],
    at: Callable[[float], _At | None],
    parts: int,
    floor_s: float,
    below: float = math.inf,
) -> Best | None:
    found = at(limits[-1]) if limits else None
    if found is None:
        return None
    more = parts - 1

    def seconds(one: _At) -> float:
        return one.total + more * max(floor_s, one.slowest)

    best = found
    spans = [(0, len(limits) - 1, found)]
    while spans and more:
        low, high, top = spans.pop()
        least = top.total + more * max(floor_s, limits[low])
        if low >= high or least >= min(below, seconds(best)) * (1 - NEAR):
            continue
        middle = (low + high) // 2
        found = at(limits[middle])
        spans.append((middle + 1, high, top))
        if found is not None:
            best = min(best, found, key=seconds)
            spans.append((low, middle, found))
    return Best(seconds(best), best.counts) if seconds(best) < below else None


@dataclass(frozen=True)
class _Even:
    """A stage whose cost rises by the same or more with each layer: steps of equal rise."""

    stage: int
    low: int
    curve: Curve
    high: int

    def at_most(self, limit: float) -> int:
        """The most layers that cost no more than the limit; below `low` when none."""
        end = bisect_right(self.curve, limit * (1 + NEAR), self.low, self.high + 1)
        return end - 1

    def rises(self) -> list[tuple[float, int, int]]:
        """(seconds of one more layer, stage, the count up to which that holds)."""
        blocks: list[tuple[float, int, int]] = []
        for count in range(self.low + 1, self.high + 1):
            rise = self.curve[count] - self.curve[count - 1]
            if blocks and rise <= blocks[-1][0] * (1 + 1e-9):
                blocks[-1] = (blocks[-1][0], self.stage, count)
            else:
                blocks.append((rise, self.stage, count))
        return blocks


class Costs(list[float]):
    """A curve that remembers its shape: one fellow's is asked for in many orders."""

    @cached_property
    def even(self) -> tuple[int, int] | None:
        """The fewest and the most layers, when each further one costs as much or more; None when
        counts have holes, or rises fall.
        """
        return _evenness(self)


def _evenness(curve: Curve) -> tuple[int, int] | None:
    allowed = [count for count, cost in enumerate(curve) if cost < math.inf]
    if not allowed or allowed[-1] - allowed[0] + 1 != len(allowed):
        return None
    low, high = allowed[0], allowed[-1]
    rises = [curve[n + 1] - curve[n] for n in range(low, high)]
    grows = all(b >= a * (1 - 1e-9) for a, b in pairwise(rises))
    return (low, high) if grows and min(rises, default=0) >= 0 else None


def _even(stage: int, curve: Curve) -> _Even | None:
    """The stage as an even one, or None."""
    ends = curve.even if isinstance(curve, Costs) else _evenness(curve)
    return None if ends is None else _Even(stage, ends[0], curve, ends[1])


@dataclass(frozen=True)
class _Sums:
    """Cheapest sums under a limit."""

    curves: Sequence[Curve]
    num_layers: int

    @cached_property
    def even(self) -> list[_Even]:
        """The stages that a greedy fill serves exactly."""
        return [one for stage, curve in enumerate(self.curves) if (one := _even(stage, curve))]

    @cached_property
    def uneven(self) -> list[int]:
        """The other stages."""
        known = {one.stage for one in self.even}
        return [stage for stage in range(len(self.curves)) if stage not in known]

    def limits(self, parts: int) -> list[float]:
        """What the slowest stage may cost, in order: all costs up to where the least sum is free.

        One micro-batch needs no more than that sum.
        """
        free = self.at(math.inf)
        if free is None:
            return []
        if parts == 1:
            return [free.slowest]
        return sorted({cost for curve in self.curves for cost in curve if cost <= free.slowest})

    @cached_property
    def rises(self) -> list[tuple[float, int, int]]:
        """All rises, cheapest first; those of one stage in order of its layers."""
        return sorted(rise for one in self.even for rise in one.rises())

    def at(self, limit: float) -> _At | None:
        """The cheapest sum of all layers in which no stage costs more than the limit."""
        most = {one.stage: one.at_most(limit) for one in self.even}
        if any(most[one.stage] < one.low for one in self.even):
            return None
        if not self.uneven:
            left = self.num_layers - sum(one.low for one in self.even)
            filled = self._fill(most, left)
            return None if filled is None else self._told(filled)
        return self._with_uneven(limit, most)

    def _fill(self, most: dict[int, int], left: int) -> list[int] | None:
        """Counts with `left` layers laid where one more is cheapest; None when they do not fit."""
        counts = [0] * len(self.curves)
        for one in self.even:
            counts[one.stage] = one.low
        if left < 0:
            return None
        for _, stage, end in self.rises:
            if left == 0:
                break
            taken = min(left, max(0, min(end, most[stage]) - counts[stage]))
            counts[stage] += taken
            left -= taken
        return counts if left == 0 else None

    def _told(self, counts: Sequence[int]) -> _At:
        costs = [curve[count] for curve, count in zip(self.curves, counts)]
        return _At(math.fsum(costs), max(costs), tuple(counts))

    def _with_uneven(self, limit: float, most: dict[int, int]) -> _At | None:
        """Uneven stages by dynamic programming over the layers left for the even ones."""
        sums, chosen = [0.0] + [math.inf] * self.num_layers, []
        for stage in self.uneven:
            sums, picks = _joined(sums, self.curves[stage], limit)
            chosen.append(picks)
        base = sum(one.low for one in self.even)
        rest = self._even_sums(most, self.num_layers - base)
        ends = [
            (sums[used] + rest[self.num_layers - base - used], used)
            for used in range(self.num_layers - base + 1)
        ]
        total, used = min(ends, default=(math.inf, 0))
        if total == math.inf:
            return None
        counts = self._fill(most, self.num_layers - base - used)
        assert counts is not None
        for stage, picks in zip(reversed(self.uneven), reversed(chosen)):
            counts[stage] = picks[used]
            used -= picks[used]
        return self._told(counts)

    def _even_sums(self, most: dict[int, int], up_to: int) -> list[float]:
        """Cheapest sum of the even stages with 0, 1, ... further layers."""
        counts = {one.stage: one.low for one in self.even}
        sums = [math.fsum(one.curve[one.low] for one in self.even)]
        for rise, stage, end in self.rises:
            taken = max(0, min(end, most[stage]) - counts[stage])
            counts[stage] += taken
            sums += [sums[-1] + rise * (i + 1) for i in range(min(taken, up_to + 1 - len(sums)))]
        return (sums + [math.inf] * (up_to + 1))[: up_to + 1] if up_to >= 0 else []


def _joined(sums: Sequence[float], curve: Curve, limit: float) -> tuple[list[float], list[int]]:
    """Sums with one more stage, and how many layers it takes of each."""
    allowed = [(n, c) for n, c in enumerate(curve) if c <= limit * (1 + NEAR)]
    joined, picks = [math.inf] * len(sums), [0] * len(sums)
    for before, total in enumerate(sums):
        if total == math.inf:
            continue
        for count, cost in allowed:
            after = before + count
            if after < len(joined) and total + cost < joined[after]:
                joined[after], picks[after] = total + cost, count
    return joined, picks


_Row = dict[int, list[float]]
"""First layer -> seconds with 1, 2, ... layers."""


def _cut_table(cuts: Cuts) -> list[_Row]:
    table = []
    for stage, most in enumerate(cuts.most):
        row: _Row = {}
        end, later = 0, len(cuts.most) - 1 - stage
        for first in cuts.firsts(stage):
            # What fits up to an end fits up to it from one layer later on as well.
            end = max(end, first)
            top = min(first + most, cuts.num_layers - later)
            while end < top and cuts.fits(stage, first, end + 1 - first):
                end += 1
            row[first] = [cuts.seconds(stage, first, n) for n in range(1, end + 1 - first)]
        table.append(row)
    return table


def _cut_sum(table: list[_Row], num_layers: int, limit: float) -> _At | None:
    sums, chosen = {0: 0.0}, []
    for row in table:
        joined: dict[int, float] = {}
        picks: dict[int, int] = {}
        for first, before in sums.items():
            for end, cost in enumerate(row.get(first, ()), start=first + 1):
                if cost <= limit * (1 + NEAR) and before + cost < joined.get(end, math.inf):
                    joined[end], picks[end] = before + cost, end - first
        sums = joined
        chosen.append(picks)
    if num_layers not in sums:
        return None
    counts, end = [], num_layers
    for picks in reversed(chosen):
        counts.append(picks[end])
        end -= picks[end]
    counts.reverse()
    firsts = [sum(counts[:stage]) for stage in range(len(counts))]
    costs = [table[s][first][n - 1] for s, (first, n) in enumerate(zip(firsts, counts))]
    return _At(math.fsum(costs), max(costs), tuple(counts))
