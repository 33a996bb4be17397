"""A job that has ended: the first error in whole sentences, and no stage that seems to work on."""

from pathlib import Path

import pytest

from tests.leader_twins import POOL, job_config, open_pool, write_model
from transport.reports import StageFailed


@pytest.mark.anyio
async def test_when_a_stage_has_failed_the_others_run_no_longer(tmp_path: Path) -> None:
    async with open_pool(tmp_path) as pool:
        await pool.add_model(write_model(tmp_path / "model"))
        await pool.add_text()
        fellows = [await pool.add_fellow() for _ in range(2)]
        job = await pool.ask("jobs_submit", pool=POOL, config=job_config(), unpinned=True)
        fellows.sort(key=lambda fellow: fellow.assignment().order.stage)
        for fellow in fellows:
            await fellow.bind()
        for fellow in fellows:
            await fellow.load()
        for fellow in fellows:
            await fellow.report(fellow.step(1, 2.0))
        running = await pool.ask("jobs_get", job_id=job.job_id)
        assert [stage.phase for stage in running.stages] == ["training", "training"]

        told = fellows[1].of(
            code="stage-failed",
            message="the worker process was killed by signal 9 (SIGKILL)",
            hint="its last lines are in the job's log",
            echo=False,
            exit_code=-9,
        )
        await fellows[1].report(StageFailed(**told))

        ended = await pool.ask("jobs_get", job_id=job.job_id)
        assert (ended.state, [stage.phase for stage in ended.stages]) == (
            "failed",
            [None, "failed"],
        )
        assert ended.untrusted_error == (
            f"{fellows[1].fellow_id}: the worker process was killed by signal 9 (SIGKILL). "
            "Its last lines are in the job's log"
        )


@pytest.mark.anyio
async def test_when_a_job_was_cancelled_no_stage_runs(tmp_path: Path) -> None:
    async with open_pool(tmp_path) as pool:
        await pool.add_model(write_model(tmp_path / "model"))
        await pool.add_text()
        fellow = await pool.add_fellow()
        job = await pool.ask("jobs_submit", pool=POOL, config=job_config(), unpinned=True)
        await fellow.bind()
        ended = await pool.ask("jobs_cancel", job_id=job.job_id)
        assert [stage.phase for stage in ended.stages] == [None]
