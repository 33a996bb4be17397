"""The cheapest way to string points into a chain: what none can cost less than, and a short one.

Pure numbers; knows neither fellows nor links. Points are 0 .. n - 1, costs are symmetric.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

Costs = Sequence[Sequence[float]]
"""[point][other point]."""

ROUNDS = 40
PATIENCE = 4
"""Rounds without a better bound before the stride is halved."""


@dataclass(frozen=True)
class Chain:
    """A short chain, and what no chain costs less than."""

    points: tuple[int, ...]
    least: float


def string(costs: Costs, weights: Sequence[float]) -> Chain:
    """A short chain through all points.

    Args:
        weights: what a point costs beside when it has two neighbours; only the dearest point that
            has two counts. The bound leaves it out.
    """
    points = _shortened(costs, weights, _nearest(costs))
    least, tree = _bound(costs, cost_of(costs, points))
    if tree is not None:
        other = _shortened(costs, weights, tree)
        if _whole(costs, weights, other) < _whole(costs, weights, points):
            points = other
    return Chain(tuple(points), least)


def cost_of(costs: Costs, chain: Sequence[int]) -> float:
    """What a chain costs."""
    return sum(costs[a][b] for a, b in pairwise(chain))


def _whole(costs: Costs, weights: Sequence[float], chain: Sequence[int]) -> float:
    dearest = max((weights[point] for point in chain[1:-1]), default=0.0)
    return cost_of(costs, chain) + dearest


def _nearest(costs: Costs) -> list[int]:
    """From the point with the dearest neighbour on, always to the nearest."""
    everyone = range(len(costs))
    chain = [max(everyone, key=lambda i: (max(costs[i]), -i))]
    left = set(everyone) - set(chain)
    while left:
        row = costs[chain[-1]]
        point = min(left, key=lambda i: (row[i], i))
        left.discard(point)
        chain.append(point)
    return chain


def _shortened(costs: Costs, weights: Sequence[float], chain: list[int]) -> list[int]:
    """With parts turned around and points moved while that makes it cheaper."""
    cost, helped = _whole(costs, weights, chain), True
    while helped:
        helped = False
        for other in _changes(chain):
            told = _whole(costs, weights, other)
            if told < cost * (1 - 1e-12):
                chain, cost, helped = other, told, True
                break
    return chain


def _changes(chain: Sequence[int]) -> Iterator[list[int]]:
    count = len(chain)
    for i in range(count):
        for j in range(i + 1, count):
            yield [*chain[:i], *reversed(chain[i : j + 1]), *chain[j + 1 :]]
    for i in range(count):
        rest = [*chain[:i], *chain[i + 1 :]]
        for j in range(count):
            if j not in (i, i - 1):
                yield [*rest[:j], chain[i], *rest[j:]]


def _bound(costs: Costs, upper: float) -> tuple[float, list[int] | None]:
    """(no chain costs less, the cheapest chain where it came out).

    A chain is a tree, so it costs no less than the cheapest tree; penalties on points where that
    tree branches too often (and rewards where it ends) bring the tree near a chain and keep the
    bound a bound.

    Args:
        upper: what a chain is known to cost: how far penalties may reach.

    Source: Held and Karp, "The traveling-salesman problem and minimum spanning trees", 1970.
    """
    count = len(costs)
    penalty = [0.0] * count
    best, stride, stuck = 0.0, 1.0, 0
    for _ in range(ROUNDS if count > 1 else 0):
        total, parents = _tree(costs, penalty)
        ends = sorted(range(count), key=penalty.__getitem__)[:2]
        found = total - 2 * sum(penalty) + sum(penalty[i] for i in ends)
        stuck = 0 if found > best else stuck + 1
        best = max(best, found)
        over = [parents.count(i) - 1 + (i in ends) for i in range(count)]
        over[0] -= 2  # the root is its own parent, and no edge leads up from it
        size = sum(n * n for n in over)
        if not size:
            return min(best, upper), _walk(parents, ends[0])
        if stuck == PATIENCE:
            stride, stuck = stride / 2, 0
        step = stride * max(upper - found, 0.0) / size
        penalty = [p + step * n for p, n in zip(penalty, over)]
    return min(best, upper), None


def _tree(costs: Costs, penalty: Sequence[float]) -> tuple[float, list[int]]:
    """(what the cheapest tree over all points costs with penalties, the parent of each point)."""
    count = len(costs)
    total = 0.0
    near = [cost + penalty[0] + own for cost, own in zip(costs[0], penalty)]
    parents = [0] * count
    left = list(range(1, count))
    while left:
        point = min(left, key=near.__getitem__)
        left.remove(point)
        total += near[point]
        row, own = costs[point], penalty[point]
        for i in left:
            told = row[i] + own + penalty[i]
            if told < near[i]:
                near[i], parents[i] = told, point
    return total, parents


def _walk(parents: Sequence[int], end: int) -> list[int]:
    """The points of a tree that is a chain, from one of its ends on."""
    beside: list[set[int]] = [set() for _ in parents]
    for point, parent in enumerate(parents):
        if point != parent:
            beside[point].add(parent)
            beside[parent].add(point)
    chain = [end]
    while beside[chain[-1]]:
        point = beside[chain[-1]].pop()
        beside[point].discard(chain[-1])
        chain.append(point)
    return chain
