"""A job's whole life in one process: real leader, real database, fellows in plain code."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from tests.leader_twins import POOL, Fellow, Pool, job_config, open_pool, write_model
from transport.api.jobs import JobView
from transport.errors import SwarmError
from transport.reports import StageDone, StageFailed


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    async with open_pool(tmp_path) as made:
        await made.add_model(write_model(tmp_path / "model"))
        await made.add_text()
        yield made


async def submit(pool: Pool, **train: object) -> JobView:
    view: JobView = await pool.ask(
        "jobs_submit", pool=POOL, config=job_config(**train), unpinned=True
    )
    return view


async def started(
    pool: Pool, num_fellows: int = 2, **train: object
) -> tuple[JobView, list[Fellow]]:
    """A job whose stages are all loaded, and its fellows in order of stages."""
    for _ in range(num_fellows):
        await pool.add_fellow()
    job = await submit(pool, **train)
    assert job.state == "starting"
    by_stage = sorted(pool.fellows, key=lambda fellow: fellow.assignment().order.stage)
    for fellow in by_stage:
        await fellow.bind()
    for fellow in by_stage:
        await fellow.load()
    return job, by_stage


async def ended(pool: Pool, job_id: str) -> JobView:
    """The job once it has ended; the clock stands still, so that only its end ends the wait."""
    async with asyncio.timeout(10):
        view: JobView = await pool.ask("jobs_wait", job_id=job_id, timeout_s=50)
    return view


async def test_a_job_runs_from_submission_to_an_adapter_folder_that_can_be_fetched(
    pool: Pool,
) -> None:
    job, (first, second) = await started(pool)
    assert (await pool.ask("jobs_get", job_id=job.job_id)).state == "running"
    assert first.assignment().links is not None
    assert first.assignment().links.next.endpoints == ["tcp://127.0.0.1:5001"]  # type: ignore[union-attr]
    await second.evaluate("base", 0, 3.5)
    spent = {"forward": 0.1, "backward": 0.2, "wait": 0.2}
    for number, loss in enumerate((3.0, 2.0, 1.0), start=1):
        await first.report(first.step(number, loss, marks=spent))
        assert (await pool.ask("jobs_get", job_id=job.job_id)).step_time is None or number > 1
        await second.report(second.step(number, loss, marks=spent))
    await second.evaluate("trained", 3, 1.1)
    await first.finish()
    await second.finish()

    view = await ended(pool, job.job_id)

    assert (view.state, view.step, view.loss) == ("completed", 3, 1.0)
    assert view.smoothed_loss == pytest.approx((0.64 * 3 + 0.8 * 2 + 1) / (0.64 + 0.8 + 1))
    assert [e.moment for e in view.evaluations] == ["base", "trained"]
    assert [e.perplexity for e in view.evaluations] == [math.exp(3.5), math.exp(1.1)]
    assert [s.peak_bytes for s in view.stages] == [500, 500]
    assert view.step_time is not None
    assert (view.step_time.steps, view.step_time.step_s) == (1, 0.5)
    assert [s.backward_s for s in view.step_time.stages] == [0.2, 0.2]
    steps = (await pool.ask("jobs_records", job_id=job.job_id)).steps
    assert [step.marks for step in steps] == [spent] * 3
    export = await pool.ask("models_export", job_id=job.job_id)
    assert [f.name for f in export.files] == [
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert export.adapter_config["base_model_name_or_path"] == "local:tiny"
    found = await pool.leader.adapter_file(job.job_id, "adapter_model.safetensors")
    assert found is not None
    assert len(load_file(found.path)) == 8
    records = pool.leader.records_file(job.job_id)
    assert records is not None
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert [line["marks"] for line in lines] == [spent] * 6
    assert pool.leader.office.registry.desired(first.fellow_id).stages == []


async def test_the_first_error_is_kept_and_the_other_stages_are_told_to_pause(pool: Pool) -> None:
    job, (first, second) = await started(pool)
    echo = StageFailed(**second.of(code="link-lost", message="stage 0 is gone", echo=True))
    true = StageFailed(
        **first.of(code="out-of-memory", message="needed \x1b[31m1.2 GB more", exit_code=3)
    )
    late = StageFailed(**second.of(code="other", message="a second error"))
    await second.report(echo)
    await first.report(true)
    await second.report(late)

    view = await pool.ask("jobs_get", job_id=job.job_id)

    assert view.state == "failed"
    assert view.untrusted_error == f"{first.fellow_id}: needed 1.2 GB more"
    assert "out-of-memory" in view.reason
    assert "1.2 GB" not in view.reason + view.summary
    assert second.assignment().pause is True
    second.beat()
    first.beat()
    await pool.clock.advance(1)
    second.beat()
    await pool.leader.office.jobs.schedule()
    assert pool.leader.office.registry.desired(second.fellow_id).stages == []
    assert (await submit(pool)).state == "starting"


async def test_cancelling_stops_the_stages_and_a_second_cancel_changes_nothing(pool: Pool) -> None:
    job, (first, _) = await started(pool)
    view = await pool.ask("jobs_cancel", job_id=job.job_id)
    again = await pool.ask("jobs_cancel", job_id=job.job_id)
    assert (view.state, again.state) == ("cancelled", "cancelled")
    assert first.assignment().pause is True
    taken = await first.report(first.step(1, 3.0))
    assert taken.refused == []
    assert (await pool.ask("jobs_get", job_id=job.job_id)).state == "cancelled"


async def test_a_pinned_plan_starts_as_shown_and_is_refused_when_a_card_has_filled_up(
    pool: Pool,
) -> None:
    fellow = await pool.add_fellow()
    plan = await pool.ask("jobs_plan", pool=POOL, config=job_config())
    assert plan.fits
    fellow.free_bytes = 1000
    fellow.beat()
    with pytest.raises(SwarmError) as refusal:
        await pool.ask("jobs_submit", pool=POOL, config=job_config(), plan_id=plan.plan_id)
    assert refusal.value.code == "plan-changed"
    assert refusal.value.facts["changes"]
    fellow.free_bytes = 4 * 10**9
    fellow.beat()
    job = await pool.ask("jobs_submit", pool=POOL, config=job_config(), plan_id=plan.plan_id)
    assert (job.state, job.plan_id, job.pinned) == ("starting", plan.plan_id, True)
    assert fellow.assignment().order.plan_id == plan.plan_id


async def test_a_plan_of_another_config_an_unknown_one_and_an_old_one_are_told_apart(
    pool: Pool,
) -> None:
    await pool.add_fellow()
    plan = await pool.ask("jobs_plan", pool=POOL, config=job_config())

    async def code(config: dict[str, Any], **more: Any) -> str:
        with pytest.raises(SwarmError) as refusal:
            await pool.ask("jobs_submit", pool=POOL, config=config, **more)
        return refusal.value.code

    assert await code(job_config(steps=4), plan_id=plan.plan_id) == "conflict"
    assert await code(job_config(), plan_id="0" * 16) == "not-found"
    assert await code(job_config()) == "invalid-input"
    assert await code(job_config(), plan_id=plan.plan_id, unpinned=True) == "invalid-input"
    await pool.clock.advance(25 * 3600)
    assert await code(job_config(), plan_id=plan.plan_id) == "expired"


async def test_a_job_waits_with_the_reason_and_starts_by_itself_when_a_fellow_comes(
    pool: Pool,
) -> None:
    job = await submit(pool)
    assert job.state == "pending"
    assert "fellow" in job.reason
    await pool.add_fellow()
    await pool.leader.office.jobs.schedule()
    assert (await pool.ask("jobs_get", job_id=job.job_id)).state == "starting"


async def test_jobs_start_in_order_and_one_that_cannot_start_blocks_no_later_one(
    pool: Pool,
) -> None:
    large = await pool.ask(
        "jobs_submit", pool=POOL, config={**job_config(), "min_workers": 3}, unpinned=True
    )
    small, third = await submit(pool), await submit(pool)
    await pool.add_fellow()
    await pool.leader.office.jobs.schedule()
    states = {
        job.job_id: (await pool.ask("jobs_get", job_id=job.job_id)).state
        for job in (large, small, third)
    }
    assert list(states.values()) == ["pending", "starting", "pending"]


async def test_a_fellow_that_falls_silent_fails_its_job_with_the_reason(pool: Pool) -> None:
    job, (first, second) = await started(pool, on_node_loss="fail")
    await second.report(second.step(1, 3.0))
    for _ in range(4):
        await pool.clock.advance(5)
        first.beat()
        await pool.leader._sweep()
    assert first.assignment().pause is True
    await pool.leader.office.jobs.schedule()
    view = await ended(pool, job.job_id)
    assert view.state == "failed"
    assert second.fellow_id in view.reason
    assert "step 1" in view.reason


async def test_a_leader_that_restarts_goes_on_where_it_was(pool: Pool) -> None:
    job, (first, second) = await started(pool)
    await second.report(second.step(1, 3.0))
    before = await pool.ask("jobs_get", job_id=job.job_id)
    revision = pool.leader.office.registry.desired(first.fellow_id).revision
    await pool.clock.advance(3)

    await pool.reopen()

    assert await pool.ask("jobs_get", job_id=job.job_id) == before
    await pool.leader._sweep()
    assert (await pool.ask("jobs_get", job_id=job.job_id)).state == "running"
    told = first.beat()
    assert told.revision > revision
    assert told.stages[0].links is not None
    assert told.reports_committed == first.sequence
    assert first.assignment().order.attempt == 1
    for number, loss in ((2, 2.0), (3, 1.0)):
        await second.report(second.step(number, loss))
    await first.finish()
    await second.finish()
    assert (await ended(pool, job.job_id)).state == "completed"


async def test_an_end_that_a_restart_cut_off_is_brought_to_its_end(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, (first, second) = await started(pool)
    await first.finish()
    await second.save()
    monkeypatch.setattr(pool.leader.office.jobs, "_begin_finish", lambda _: None)

    await second.report(StageDone(**second.of(sent_bytes=1, received_bytes=1)))
    assert (await pool.ask("jobs_get", job_id=job.job_id)).state == "running"
    await pool.reopen()
    assert (await ended(pool, job.job_id)).state == "completed"


async def test_repeated_and_stale_reports_change_nothing_and_late_points_fill_in(
    pool: Pool,
) -> None:
    job, (_, second) = await started(pool)
    await second.report(second.step(1, 3.0))
    await second.report(second.step(3, 1.0))
    second.sequence -= 1
    await second.report(second.step(2, 9.0))
    assert (await pool.ask("jobs_get", job_id=job.job_id)).step == 3
    await second.report(second.step(2, 2.0))
    stale = second.step(3, 7.0).model_copy(update={"attempt": 9})
    taken = await second.report(stale, second.step(4, 1.0))

    view = await pool.ask("jobs_get", job_id=job.job_id)

    assert taken.refused == [second.sequence - 1, second.sequence]
    assert (view.step, view.loss) == (3, 1.0)
    assert view.counts == {"refused_reports": 2}
    rows = (await pool.ask("jobs_records", job_id=job.job_id)).steps
    assert [(r.step, r.loss) for r in rows] == [(1, 3.0), (2, 2.0), (3, 1.0)]
    assert view.smoothed_loss == pytest.approx(rows[-1].smoothed_loss)


async def test_log_lines_are_cleaned_filtered_and_read_on_from_a_cursor(pool: Pool) -> None:
    job, (first, _) = await started(pool)
    await first.report(first.line("one\u202e\x07"), first.line("bad", "error"), first.line("two"))
    read = await pool.ask("jobs_logs", job_id=job.job_id)
    assert [line.untrusted_text for line in read.lines] == ["one", "bad", "two"]
    errors = await pool.ask("jobs_logs", job_id=job.job_id, level="error")
    assert [line.untrusted_text for line in errors.lines] == ["bad"]
    await first.report(first.line("three"))
    more = await pool.ask("jobs_logs", job_id=job.job_id, cursor=read.cursor)
    assert [line.untrusted_text for line in more.lines] == ["three"]
    log = pool.settings.data / "jobs" / job.job_id / "log.jsonl"
    assert [json.loads(line)["text"] for line in log.read_text().splitlines()][-1] == "three"


async def test_data_that_is_too_short_is_refused_before_anything_starts(pool: Pool) -> None:
    await pool.add_fellow()
    await pool.ask("buckets_create", pool=POOL, bucket="short")
    await pool.ask("buckets_add", pool=POOL, bucket="short", name="a.txt", content="a few words")
    config = {**job_config(), "data": {"bucket": "short"}}
    with pytest.raises(SwarmError) as refusal:
        await pool.ask("jobs_submit", pool=POOL, config=config, unpinned=True)
    assert refusal.value.code == "invalid-input"
    assert "tokens" in refusal.value.message
    assert (await pool.ask("jobs_list")).jobs == []
