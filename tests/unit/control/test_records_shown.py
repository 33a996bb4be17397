"""The steps of a run as they are shown when nobody names a stage."""

from pathlib import Path

import pytest

from tests.leader_twins import POOL, job_config, open_pool, write_model


@pytest.mark.anyio
async def test_a_step_that_the_last_stage_has_not_told_is_not_shown(tmp_path: Path) -> None:
    async with open_pool(tmp_path) as pool:
        await pool.add_model(write_model(tmp_path / "model"))
        await pool.add_text()
        fellows = [await pool.add_fellow() for _ in range(2)]
        job = await pool.ask("jobs_submit", pool=POOL, config=job_config(), unpinned=True)
        fellows.sort(key=lambda fellow: fellow.assignment().order.stage)
        for fellow in fellows:
            await fellow.bind()
        first, last = fellows
        await first.report(first.step(1, 2.0), first.step(2, 1.5))
        await last.report(last.step(1, 2.0))

        async def shown() -> list[tuple[int, int]]:
            rows = (await pool.ask("jobs_records", job_id=job.job_id)).steps
            return [(row.step, row.stage) for row in rows]

        assert await shown() == [(1, 1)]
        await last.report(last.step(2, 1.5))
        assert await shown() == [(1, 1), (2, 1)]
