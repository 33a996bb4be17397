"""While a job runs, the leader knows what it would go on with without each of its fellows."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from control.jobs.planner import PoolPlanner
from control.jobs.ready_plans import REST_S, SETTLE_S
from tests.flow.fellows_at_work import crash, loaded, runs, save, silent, started, steps, view
from tests.leader_twins import Fellow, Pool, open_pool, write_model
from transport.api.jobs import IfLost


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    async with open_pool(tmp_path) as made:
        await made.add_model(write_model(tmp_path / "model"))
        await made.add_text()
        yield made


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The fellows without which a plan was searched; "" for the pool as it is."""
    found: list[str] = []
    search = PoolPlanner.plan_again

    async def counted(self: PoolPlanner, job: Any, config: Any, without: str = "") -> Any:
        found.append(without)
        return await search(self, job, config, without)

    monkeypatch.setattr(PoolPlanner, "plan_again", counted)
    return found


async def ready(pool: Pool, job_id: str, *away: Fellow) -> list[IfLost]:
    await pool.leader.office.jobs.keep_ready()
    for _ in range(2):  # nothing is planned before a run has settled
        await pool.clock.advance(SETTLE_S / 2)
        for fellow in pool.fellows:
            if fellow not in away:
                fellow.beat()
    await pool.leader.office.jobs.keep_ready()
    return (await view(pool, job_id)).if_lost


async def test_a_standby_is_named_for_each_fellow(pool: Pool) -> None:
    job_id, both = await started(pool)
    standby = await pool.add_fellow()
    first, second = (one.fellow_id for one in both)
    told = await ready(pool, job_id)
    assert [(one.fellow_id, one.then) for one in told] == [(first, "standby"), (second, "standby")]
    assert [set(one.fellows) for one in told] == [
        {standby.fellow_id, second}, {standby.fellow_id, first},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("train", "then", "after_s"),
    [
        ({}, "split", 600.0),
        ({"on_node_loss": "resplit"}, "split", 0.0),
        ({"on_node_loss": "fail"}, "fail", 0.0),
    ],
)
async def test_without_a_standby_it_is_as_the_job_says(
    pool: Pool, train: dict[str, Any], then: str, after_s: float
) -> None:
    job_id, (first, second) = await started(pool, **train)
    told = await ready(pool, job_id)
    assert [(one.then, one.after_s) for one in told] == [(then, after_s)] * 2
    if then == "split":
        assert [one.fellows for one in told] == [[second.fellow_id], [first.fellow_id]]
    else:
        assert all("no standby can take its stage" in one.why for one in told)


async def test_a_job_that_fits_nowhere_else_waits_and_says_why(pool: Pool) -> None:
    job_id, (lone,) = await started(pool, 1)
    (told,) = await ready(pool, job_id)
    assert (told.fellow_id, told.then) == (lone.fellow_id, "wait")
    assert "does not fit" in told.why


async def test_plans_are_made_anew_when_the_pool_has_changed_and_not_otherwise(
    pool: Pool, searches: list[str]
) -> None:
    job_id, both = await started(pool)
    await ready(pool, job_id)
    assert set(searches) == {one.fellow_id for one in both}
    searches.clear()
    await pool.clock.advance(REST_S)
    await ready(pool, job_id)
    assert searches == []
    await pool.add_fellow()
    assert {one.then for one in await ready(pool, job_id)} == {"standby"}
    searches.clear()
    await pool.add_fellow()
    await ready(pool, job_id)
    assert searches == []  # not again within the rest
    await pool.clock.advance(REST_S)
    await ready(pool, job_id)
    assert searches


async def test_a_loss_is_answered_with_the_plan_that_was_ready(
    pool: Pool, searches: list[str]
) -> None:
    job_id, (first, second) = await started(pool)
    standby = await pool.add_fellow()
    await steps([first, second], 1, 6)
    await save(pool, [first, second], 5)
    await ready(pool, job_id)
    searches.clear()
    await silent(pool, first, standby)
    first.phases = []
    first.beat()
    await pool.leader.office.jobs.schedule()
    job = await view(pool, job_id)
    assert (job.attempt, job.state) == (2, "recovering")
    assert searches == []
    assert runs(standby)
    assert job.if_lost == []
    both = await loaded(pool)
    await steps(both, 6, 7)
    assert {one.fellow_id for one in await ready(pool, job_id)} == {one.fellow_id for one in both}


async def test_a_plan_that_no_longer_holds_is_not_used(pool: Pool, searches: list[str]) -> None:
    job_id, (first, second) = await started(pool)
    standby, other = await pool.add_fellow(), await pool.add_fellow()
    await steps([first, second], 1, 6)
    await save(pool, [first, second], 5)
    told = await ready(pool, job_id)
    (chosen,) = set(told[1].fellows) - {first.fellow_id, second.fellow_id}
    gone, left = (standby, other) if chosen == standby.fellow_id else (other, standby)
    gone.free_bytes = 1
    gone.beat()
    searches.clear()
    await silent(pool, first, gone, left)
    first.phases = []
    first.beat()
    await pool.leader.office.jobs.schedule()
    assert searches == [""]
    assert (await view(pool, job_id)).attempt == 2
    assert runs(left)
    assert not runs(gone)


async def test_a_job_that_has_ended_keeps_no_plans(pool: Pool) -> None:
    job_id, both = await started(pool, on_node_loss="fail")
    assert await ready(pool, job_id)
    await crash(both[1], lost=False)
    assert await ready(pool, job_id) == []
