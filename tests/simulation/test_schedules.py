"""A thousand schedules of faults through the real leader, in virtual time.

A failure prints one seed: `python -m tests.simulation.run --replay SEED` shows it byte for byte.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from control.jobs import intake, lifecycle
from tests.simulation.run import Ran, run_schedule, start
from tests.simulation.watch import Broken

SCHEDULES, PARTS = 1000, 10
Start = tuple[Path, list[str]]


@pytest.fixture(scope="module")
def begun() -> Iterator[Start]:
    """The template that every world begins with."""
    with start() as (folder, fellows):
        yield folder, fellows


def part(begun: Start, number: int) -> list[Ran]:
    size = SCHEDULES // PARTS
    folder, fellows = begun
    return [run_schedule(folder, fellows, f"{number}/{each}") for each in range(size)]


@pytest.mark.parametrize("number", range(PARTS))
def test_no_schedule_of_faults_breaks_an_invariant(begun: Start, number: int) -> None:
    ran = part(begun, number)
    assert all(one.counts["ended"] for one in ran)
    assert sum(one.counts["fault"] for one in ran) >= 5 * len(ran)
    # The faults do meet the run: some leaders died, some machines ran a stage.
    assert sum(one.counts["leader"] for one in ran) > len(ran)
    assert sum(one.counts["started"] for one in ran) >= 2 * len(ran)


def test_one_seed_gives_the_same_world_byte_for_byte(begun: Start) -> None:
    folder, fellows = begun
    first, again = (run_schedule(folder, fellows, "replay/1") for _ in range(2))
    assert first == again
    assert len(first.trace) > 50
    assert run_schedule(folder, fellows, "replay/2").trace != first.trace


def test_a_leader_that_acknowledges_what_it_has_not_stored_is_found(
    begun: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = intake.take_batch

    def too_much(*given: Any, **more: Any) -> Any:
        taken = take(*given, **more)
        return replace(taken, committed=taken.committed + 1)

    monkeypatch.setattr(lifecycle, "take_batch", too_much)
    with pytest.raises(Broken, match="was told"):
        part(begun, 0)


def test_a_job_whose_end_could_not_be_written_ends_all_the_same(
    begun: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = lifecycle.Jobs._finish
    tried: list[str] = []

    async def the_first_time_in_vain(self: lifecycle.Jobs, job_id: str) -> None:
        tried.append(job_id)
        if len(tried) > 1:
            await finish(self, job_id)

    monkeypatch.setattr(lifecycle.Jobs, "_finish", the_first_time_in_vain)
    ends = []
    for number in range(20):
        tried.clear()
        ran = run_schedule(*begun, f"ends/{number}")
        ends += [line for line in ran.trace if "state=completed" in line and len(tried) > 1]
    assert ends
