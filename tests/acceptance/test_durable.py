"""A leader process that is killed at work keeps every promise. 200 kills: see durable_run."""

import asyncio
from pathlib import Path

import pytest

from tests.acceptance.durable_load import Ledger
from tests.acceptance.durable_run import look, run

KILLS = 4


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_leader_killed_at_random_moments_loses_nothing_and_its_job_goes_on(
    tmp_path: Path, seed: int
) -> None:
    told = asyncio.run(run(KILLS, seed, tmp_path))
    print(told)
    assert told["lost_or_wrong"] == []
    assert told["job"][0] == "completed"
    assert min(told[what] for what in ("submits", "cancels", "buckets", "reads")) > 0
    assert told["asked_again"] > 0
    # What was never promised is not there, and the look would have said so.
    never = Ledger(
        submits={"r": "j-never"}, buckets={"b-never"}, reports={"f-never": 1}, steps={0: 10**6}
    )
    missing = [one for one in look(tmp_path, told["job_id"], never) if "running job" not in one]
    assert len(missing) == 4
