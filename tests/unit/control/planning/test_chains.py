"""Ways through a network: none is shorter than the bound, and a short one is found."""

from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from control.planning.chains import cost_of, string

RATES = st.lists(
    st.tuples(st.sampled_from([3.0, 20.0, 100.0]), st.sampled_from([10.0, 100.0])),
    min_size=1,
    max_size=6,
)


def _costs(rates: list[tuple[float, float]]) -> list[list[float]]:
    """Of a line each, up and down: an edge costs both directions at the slower rate."""
    return [
        [1 / min(up, down) + 1 / min(other_up, own_down) for other_up, down in rates]
        for up, own_down in rates
    ]


@settings(max_examples=60, deadline=None)
@given(rates=RATES)
def test_no_chain_costs_less_than_the_bound_and_the_one_found_is_near_the_best(
    rates: list[tuple[float, float]],
) -> None:
    costs = _costs(rates)
    best = min(cost_of(costs, chain) for chain in permutations(range(len(rates))))
    found = string(costs, [0.0] * len(rates))
    assert sorted(found.points) == list(range(len(rates)))
    assert found.least <= best * (1 + 1e-9)
    assert cost_of(costs, found.points) <= 1.1 * best


def test_a_point_that_is_dear_between_two_others_goes_to_an_end() -> None:
    costs = [[0.0 if a == b else 1.0 for b in range(6)] for a in range(6)]
    found = string(costs, [0.0, 0.0, 5.0, 0.0, 7.0, 0.0])
    assert {found.points[0], found.points[-1]} == {2, 4}
    assert found.least == 5.0
