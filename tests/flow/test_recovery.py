"""Jobs that go on: by hand and by themselves, on the same fellows, a standby, or those left."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from control.snapshots.keeper import SnapshotKey
from mcp_server.desk import Desk
from tests.flow.fellows_at_work import (
    STEPS,
    crash,
    let_go,
    loaded,
    runs,
    save,
    silent,
    started,
    steps,
    view,
)
from tests.leader_twins import POOL, Pool, job_config, open_pool, write_model
from transport.cards import StageStatus
from transport.errors import SwarmError
from transport.reports import StageFailed


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    async with open_pool(tmp_path) as made:
        await made.add_model(write_model(tmp_path / "model"))
        await made.add_text()
        yield made


async def test_a_cancelled_job_goes_on_by_hand_from_its_saved_step_and_loses_what_came_after(
    pool: Pool,
) -> None:
    job_id, both = await started(pool)
    await steps(both, 1, 12)
    await save(pool, both, 10)
    await pool.ask("jobs_cancel", job_id=job_id)
    await let_go(pool, *both)

    first = await pool.ask("jobs_resume", job_id=job_id, request_id="once")
    again = await pool.ask("jobs_resume", job_id=job_id, request_id="once")

    assert first == again
    assert (first.state, first.attempt, first.step) == ("recovering", 2, 12)
    assert first.config.resume.model_dump(exclude={"at"}) == {
        "attempt": 2, "step": 10, "lost_steps": 2, "by": "hand", "why": "resumed by hand",
    }  # fmt: skip
    orders = [one.assignment().order for one in both]
    assert [order.resume and order.resume.step for order in orders] == [10, 10]
    assert [[f.stage for f in order.resume.files] for order in orders if order.resume] == [[0], [1]]
    assert [order.evaluate_base for order in orders] == [False, False]
    for fellow, order in zip(both, orders, strict=True):
        key = SnapshotKey(fellow.fellow_id, job_id, 1, order.stage, 10)
        assert await Desk(pool.leader).snapshot_for(fellow.fellow_id, key) is not None
        other = SnapshotKey(fellow.fellow_id, job_id, 1, 1 - order.stage, 10)
        assert await Desk(pool.leader).snapshot_for(fellow.fellow_id, other) is None
    await loaded(pool)
    assert (await view(pool, job_id)).state == "recovering"
    await steps(both, 11, 13)
    told = await view(pool, job_id)
    assert (told.state, told.step, told.reason) == ("running", 13, "")
    rows = (await pool.ask("jobs_records", job_id=job_id)).steps
    assert [row.step for row in rows] == list(range(1, 14))


async def refusal(pool: Pool, job_id: str, **more: Any) -> tuple[str, str]:
    with pytest.raises(SwarmError) as told:
        await pool.ask("jobs_resume", job_id=job_id, **more)
    assert told.value.hint
    return told.value.code, str(told.value.facts.get("reason"))


async def test_each_refusal_of_a_resume_has_its_reason(pool: Pool) -> None:
    job_id, both = await started(pool)
    assert await refusal(pool, job_id) == ("conflict", "still-running")
    await steps(both, 1, 12)
    await pool.ask("jobs_cancel", job_id=job_id)
    assert await refusal(pool, job_id) == ("conflict", "nothing-saved")
    with pytest.raises(SwarmError) as unknown:
        await pool.ask("jobs_resume", job_id="j-aaaaaaaa")
    assert unknown.value.code == "not-found"


async def test_a_resume_is_refused_while_a_fellow_is_away_busy_old_or_gone(pool: Pool) -> None:
    job_id, both = await started(pool)
    first, second = both
    await steps(both, 1, 12)
    await save(pool, both, 10)
    await pool.ask("jobs_cancel", job_id=job_id)
    await let_go(pool, *both)
    await silent(pool, first)
    assert await refusal(pool, job_id) == ("conflict", "fellow-offline")
    second.phases = [StageStatus(job_id="j-aaaaaaaa", attempt=1, stage=0, phase="training")]
    second.beat()
    assert await refusal(pool, job_id) == ("conflict", "fellow-not-idle")
    second.phases = []
    beat = pool.leader.office.registry.get(second.fellow_id)
    second.beat()
    assert beat.beat is not None
    beat.beat.machine.features.remove("resume")
    assert await refusal(pool, job_id) == ("conflict", "fellow-too-old")
    second.beat()
    other = await pool.ask("jobs_submit", pool=POOL, config=job_config(steps=STEPS), unpinned=True)
    assert await refusal(pool, job_id) == ("conflict", "another-job-active")
    await pool.ask("jobs_cancel", job_id=other.job_id)
    await let_go(pool, *both)
    second.free_bytes = 1000
    second.beat()
    assert await refusal(pool, job_id) == ("conflict", "fellow-changed")
    second.free_bytes = 4 * 10**9
    second.beat()
    await pool.ask("fellows_remove", fellow_id=second.fellow_id)
    assert await refusal(pool, job_id) == ("conflict", "fellow-no-member")
    placed = await pool.ask("jobs_resume", job_id=job_id, place_again=True)
    assert [stage.fellow_id for stage in placed.stages] == [first.fellow_id]


async def test_of_many_resumes_at_once_one_starts_and_the_others_are_told_so(pool: Pool) -> None:
    job_id, both = await started(pool)
    await steps(both, 1, 12)
    await save(pool, both, 10)
    await pool.ask("jobs_cancel", job_id=job_id)
    await let_go(pool, *both)
    told = await asyncio.gather(
        *(pool.ask("jobs_resume", job_id=job_id) for _ in range(20)), return_exceptions=True
    )
    started_ones = [one for one in told if not isinstance(one, BaseException)]
    reasons = [one.facts["reason"] for one in told if isinstance(one, SwarmError)]
    assert len(started_ones) == 1
    assert reasons == ["already-recovering"] * 19
    assert (await view(pool, job_id)).attempt == 2


async def test_a_worker_that_dies_is_started_again_on_its_fellow_once_all_have_let_go(
    pool: Pool,
) -> None:
    job_id, both = await started(pool)
    first, second = both
    await steps(both, 1, 12)
    await save(pool, both, 10)
    await first.report(
        StageFailed(**first.of(code="stage-failed", message="stage 1 is gone", echo=True))
    )
    await crash(second, exit_code=None)
    told = await view(pool, job_id)
    assert (told.state, told.attempt) == ("recovering", 1)
    assert "stage 1 of 2" in told.reason
    assert told.untrusted_error == f"{second.fellow_id}: the worker process was killed"
    assert first.assignment().pause is True
    assert first.assignment().pause_reason.startswith("stage_failed")
    await pool.leader.office.jobs.schedule()
    assert (await view(pool, job_id)).attempt == 1  # the first has not let go yet
    await let_go(pool, first, second)
    told = await view(pool, job_id)
    assert (told.attempt, told.config.resumes[0].by, told.counts["recoveries"]) == (2, "itself", 1)
    assert [one.assignment().order.attempt for one in both] == [2, 2]
    late = await second.report(second.step(13, 1.0).model_copy(update={"attempt": 1}))
    assert late.refused


async def test_a_silent_fellow_is_replaced_by_a_standby_with_the_same_split(pool: Pool) -> None:
    job_id, both = await started(pool)
    first = both[0]
    await steps(both, 1, 12)
    await save(pool, both, 10)
    standby = await pool.add_fellow()
    before = [(s.first_layer, s.last_layer) for s in (await view(pool, job_id)).stages]
    await silent(pool, first, standby)
    await let_go(pool, first, standby)
    told = await view(pool, job_id)
    assert (told.state, told.attempt) == ("recovering", 2)
    assert {s.fellow_id for s in told.stages} == {first.fellow_id, standby.fellow_id}
    assert [(s.first_layer, s.last_layer) for s in told.stages] == before
    orders = [standby.assignment().order, first.assignment().order]
    for order in orders:
        assert order.resume is not None
        assert order.settings == both[0].assignment().order.settings


async def test_without_a_standby_a_job_waits_and_then_is_split_over_those_left(pool: Pool) -> None:
    job_id, both = await started(pool, recovery_wait_s=60)
    first, second = both
    await steps(both, 1, 12)
    await save(pool, both, 10)
    await silent(pool, first)
    await let_go(pool, first)
    told = await view(pool, job_id)
    assert (told.state, told.attempt) == ("recovering", 1)
    assert "standby" in told.reason
    await silent(pool, first, seconds=70)
    await let_go(pool, first)
    told = await view(pool, job_id)
    assert (told.attempt, len(told.stages)) == (2, 1)
    order = first.assignment().order
    assert order.resume is not None
    assert [one.stage for one in order.resume.files] == [0, 1]
    assert (order.first_layer, order.last_layer) == (0, 3)
    # The one that was away comes back: its old stage is not wanted any more.
    second.beat()
    assert not runs(second)


async def test_a_fellow_that_comes_back_within_the_wait_goes_on_as_before(pool: Pool) -> None:
    job_id, both = await started(pool)
    first, second = both
    await steps(both, 1, 12)
    await save(pool, both, 10)
    await silent(pool, first, seconds=30)
    second.phases = []
    await let_go(pool, first, second)
    told = await view(pool, job_id)
    assert (told.attempt, {s.fellow_id for s in told.stages}) == (
        2,
        {first.fellow_id, second.fellow_id},
    )


async def test_a_job_that_may_not_go_on_by_itself_fails_with_the_reason(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = pool.leader.office.jobs
    monkeypatch.setattr(jobs, "_tools", replace(jobs._tools, auto_replace=False))
    job_id, both = await started(pool)
    await crash(both[1])
    told = await view(pool, job_id)
    assert (told.state, told.attempt) == ("failed", 1)
    assert "turned off" in told.reason


async def test_a_job_that_gets_no_further_from_a_step_gives_up(pool: Pool) -> None:
    job_id, both = await started(pool)
    for _ in range(8):
        await crash(both[1])
        await let_go(pool, *both)
        assert (await view(pool, job_id)).state == "recovering"
    await crash(both[1])
    told = await view(pool, job_id)
    assert told.state == "failed"
    assert "8 times from step 0" in told.reason


async def test_a_fault_of_the_job_itself_fails_it_although_it_may_go_on(pool: Pool) -> None:
    job_id, both = await started(pool)
    await crash(both[1], lost=False, code="cannot-fit", message="out of memory")
    assert (await view(pool, job_id)).state == "failed"


async def test_a_restarted_leader_goes_on_with_a_job_that_had_lost_a_stage(pool: Pool) -> None:
    job_id, both = await started(pool)
    await steps(both, 1, 12)
    await save(pool, both, 10)
    await crash(both[1])
    await pool.reopen()
    await let_go(pool, *both)
    told = await view(pool, job_id)
    assert (told.state, told.attempt) == ("recovering", 2)
    assert told.config.resume is not None
    assert told.config.resume.step == 10


async def test_a_running_job_whose_fellows_have_all_stopped_can_be_resumed(pool: Pool) -> None:
    job_id, both = await started(pool)
    await steps(both, 1, 12)
    await save(pool, both, 10)
    assert await refusal(pool, job_id) == ("conflict", "still-running")
    for fellow in both:
        fellow.phases = []
        fellow.beat()
    told = await pool.ask("jobs_resume", job_id=job_id)
    assert (told.state, told.attempt) == ("recovering", 2)


async def test_a_step_that_an_attempt_was_never_asked_for_is_refused_and_counted(
    pool: Pool,
) -> None:
    job_id, both = await started(pool)
    await steps(both, 1, 12)
    await save(pool, both, 10)
    await pool.ask("jobs_cancel", job_id=job_id)
    await let_go(pool, *both)
    await pool.ask("jobs_resume", job_id=job_id)
    await loaded(pool)
    last = both[-1]
    before = last.sequence
    taken = await last.report(last.step(10, 9.0), last.step(STEPS + 1, 9.0), last.step(11, 5.0))
    assert taken.refused == [before + 1, before + 2]
    told = await view(pool, job_id)
    assert (told.step, told.counts["refused_reports"]) == (12, 2)
    rows = (await pool.ask("jobs_records", job_id=job_id)).steps
    assert 9.0 not in [row.loss for row in rows]
