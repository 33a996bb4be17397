"""What the planner predicts is what a step takes, and its split is faster than the equal one by as
much as it says: two real fellows, one held to a quarter of a core.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import pytest

from tests.acceptance.control_group import ControlGroup
from tests.acceptance.true_at_the_start import SHARE, held_pool, measure, run

WITHIN = 0.15
ROUNDS = 3
"""Each measured anew. The middle one counts: other work on a core may fall into one of them."""


@pytest.fixture
def group() -> Iterator[ControlGroup]:
    with ExitStack() as stack:
        try:
            held = stack.enter_context(ControlGroup.held_to(SHARE))
        except OSError as error:
            pytest.skip(f"a quota on processor time needs root and a cpu controller: {error}")
        yield held


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_predicted_step_is_true_and_the_split_beats_the_equal_one_as_predicted(
    group: ControlGroup, tmp_path: Path
) -> None:
    planned, equal = [], []
    with held_pool(tmp_path, group) as pool:
        for _ in range(ROUNDS):
            quick, held = measure(pool)
            assert held < quick / 2, "the quota does not show in the figures"
            planned.append(run(pool, "weighted"))
            equal.append(run(pool, "equal"))
    assert median(one.ratio for one in planned) == pytest.approx(1, abs=WITHIN), planned
    assert median(one.ratio for one in equal) == pytest.approx(1, abs=WITHIN), equal
    told = median(b.predicted_s / a.predicted_s for a, b in zip(planned, equal))
    found = median(b.measured_s / a.measured_s for a, b in zip(planned, equal))
    assert told > 1.2
    assert found == pytest.approx(told, rel=WITHIN), (planned, equal)
