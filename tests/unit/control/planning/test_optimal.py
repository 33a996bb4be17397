"""The planner's split and order against every one there is, on 500 seeded pools."""

import functools
import math
import random

import pytest

from control.planning.exact import Cuts, best_counts, best_cuts
from tests.oracle.planner_brute_force import (
    Compared,
    a_case,
    an_odd_case,
    compare,
    placed_by_place,
    report,
)

POOLS, PARTS = 500, 10


@functools.cache
def _compared(part: int) -> list[Compared]:
    """A tenth of the pools: even numbers have tight memory."""
    return [compare(a_case(seed)) for seed in range(part, POOLS, PARTS)]


@pytest.mark.parametrize("part", range(PARTS))
def test_the_split_of_a_fixed_order_is_the_best_there_is(part: int) -> None:
    for one in _compared(part):
        assert one.fixed == pytest.approx(one.fixed_best, rel=1e-9)


@pytest.mark.parametrize("part", range(PARTS))
def test_no_subset_and_order_is_faster_by_more_than_a_hundredth(part: int) -> None:
    for one in _compared(part):
        if one.over_all_best < math.inf:
            assert one.over_all <= 1.01 * one.over_all_best
            assert one.bound <= one.over_all_best * (1 + 1e-9)


def test_memory_binds_in_many_pools_and_the_gain_over_all_by_memory_is_told() -> None:
    told = report([one for part in range(PARTS) for one in _compared(part)])
    print(told)
    assert told["caps_bind_in"] >= POOLS / 4
    assert told["median_gain_over_all_by_memory"] >= 1.3


@pytest.mark.parametrize("part", range(4))
def test_the_split_is_the_best_where_layers_differ_and_disks_are_small(part: int) -> None:
    found = 0
    for seed in range(part, 80, 4):
        case = an_odd_case(seed)
        order = tuple(case.fellows)
        tried, best = case.course(len(order)).tried(order), placed_by_place(case, order)
        assert (tried.seconds if tried else math.inf) == pytest.approx(best, rel=1e-9), seed
        found += tried is not None
    assert found >= 5


def _uneven(dice: random.Random, layers: int) -> list[float]:
    """A stage whose second card is slower or faster: its cost does not rise evenly."""
    costs, total = [math.inf], 0.0
    for _ in range(layers):
        total += dice.choice([0.5, 1.0, 4.0])
        costs.append(total if dice.random() < 0.9 else math.inf)
    return costs


def _all(costs: list[list[float]], layers: int, parts: int, floor_s: float) -> float:
    steps = (sum(way) + (parts - 1) * max(*way, floor_s) for way in _ways(costs, layers))
    return min(steps, default=math.inf)


def _ways(costs: list[list[float]], layers: int) -> list[list[float]]:
    if not costs:
        return [[]] if layers == 0 else []
    return [
        [cost, *rest]
        for count, cost in enumerate(costs[0][: layers + 1])
        if cost < math.inf
        for rest in _ways(costs[1:], layers - count)
    ]


@pytest.mark.parametrize("seed", range(60))
def test_uneven_stages_and_cuts_are_exact_too(seed: int) -> None:
    dice = random.Random(seed)
    layers, stages = dice.randint(4, 9), dice.randint(1, 4)
    parts, floor_s = dice.choice([1, 2, 8]), dice.choice([0.0, 3.0])
    costs = [_uneven(dice, layers) for _ in range(stages)]
    least = _all(costs, layers, parts, floor_s)
    found = best_counts(costs, layers, parts, floor_s)
    assert (found.seconds if found else math.inf) == pytest.approx(least)
    rising = [[math.inf, *sorted(one[1:])] for one in costs]
    cuts = Cuts(lambda *_: True, lambda s, _, n: rising[s][n], [layers] * stages, layers)
    cut = best_cuts(cuts, parts, floor_s)
    assert (cut.seconds if cut else math.inf) == pytest.approx(_all(rising, layers, parts, floor_s))
