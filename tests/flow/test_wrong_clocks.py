"""A clock that is a day off, the leader's or a fellow's, ends nothing early and loses nothing."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.flow.fellows_at_work import let_go, loaded, save, silent, started, steps, view
from tests.leader_twins import Fellow, Pool, open_pool, write_model
from transport.cards import Speed
from transport.reports import Measured

DAY_S = 86_400.0


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    async with open_pool(tmp_path) as made:
        await made.add_model(write_model(tmp_path / "model"))
        await made.add_text()
        yield made


def put_clock(pool: Pool, by_s: float) -> None:
    """Somebody sets the date of the leader's machine; its monotonic clock goes on."""
    pool.clock._start += by_s


@pytest.mark.parametrize("by_s", [DAY_S, -DAY_S])
async def test_a_leader_whose_date_jumps_waits_no_shorter_and_no_longer_for_a_lost_fellow(
    pool: Pool, by_s: float
) -> None:
    job_id, (first, second) = await started(pool, recovery_wait_s=60)
    await steps([first, second], 1, 6)
    await save(pool, [first, second], 5)
    await silent(pool, first)
    await let_go(pool, first)
    assert "waits up to" in (await view(pool, job_id)).reason

    put_clock(pool, by_s)
    await silent(pool, first, seconds=30)
    await pool.leader.office.jobs.schedule()
    assert (await view(pool, job_id)).attempt == 1
    await silent(pool, first, seconds=40)
    await pool.leader.office.jobs.schedule()
    job = await view(pool, job_id)
    assert (job.attempt, [stage.fellow_id for stage in job.stages]) == (2, [first.fellow_id])


@pytest.mark.parametrize("by_s", [DAY_S, -DAY_S])
async def test_a_leader_whose_date_jumps_takes_nobody_for_silent_and_keeps_what_is_saved(
    pool: Pool, by_s: float
) -> None:
    job_id, both = await started(pool)
    await steps(both, 1, 6)
    await save(pool, both, 5)
    put_clock(pool, by_s)
    await pool.leader._sweep()
    await pool.leader._keep_house()
    job = await view(pool, job_id)
    assert (job.state, job.saved_step) == ("running", 5)
    assert {row.status for row in (await pool.ask("fellows_list")).fellows} == {"training"}
    await steps(both, 7, 8)
    assert (await view(pool, job_id)).step == 8


@pytest.mark.parametrize("by_s", [DAY_S, -DAY_S])
async def test_a_fellow_whose_clock_is_a_day_off_trains_and_saves_like_another(
    pool: Pool, by_s: float
) -> None:
    job_id, (first, second) = await started(pool)
    now = pool.clock.now()
    for number in range(1, 4):
        await first.report(first.step(number, 2.0))
        await second.report(second.step(number, 2.0, at=now + by_s))
    await save(pool, [first, second], 3)
    job = await view(pool, job_id)
    assert (job.state, job.step, job.saved_at) == ("running", 3, now)
    await pool.ask("jobs_cancel", job_id=job_id)
    await let_go(pool, first, second)
    resumed = await pool.ask("jobs_resume", job_id=job_id)
    assert resumed.attempt == 2
    assert resumed.config.resume.at == pool.clock.now()
    await loaded(pool)


async def test_a_figure_that_is_measured_anew_counts_although_the_clock_was_ahead_before(
    pool: Pool,
) -> None:
    fellow = await pool.add_fellow()

    async def measured(tflops: float, at: float) -> float:
        speed = Speed(number_format="float32", tflops=tflops, measured_at=at)
        told = Measured(at=at, card_index=0, token="t", speeds=[speed])
        await fellow.report(told)
        return speed_of(pool, fellow)

    now = pool.clock.now()
    assert await measured(0.2, now + DAY_S) == 0.2
    assert await measured(0.3, now) == 0.3
    await pool.reopen()
    fellow.beat()
    assert speed_of(pool, fellow) == 0.3


def speed_of(pool: Pool, fellow: Fellow) -> float:
    (card,) = pool.leader.office.registry.get(fellow.fellow_id).cards()
    return card.speeds[0].tflops
