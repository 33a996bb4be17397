"""A stage that hangs in a live process over live links is found because nothing moves any more."""

from pathlib import Path

import pytest

from agents.demo.processes import wait_until
from tests.acceptance.hanging_worker import HANG_AT, SLOW_AT
from tests.acceptance.real_pool import POOL, START_S, RealPool
from tests.acceptance.recovery_ground import CARD, EVERY, _config
from tests.oracle.checkpoints import write_tiny_model
from transport.api.jobs import JobView
from transport.api.pools import INVITES_CREATE, InvitesCreate

STEPS = 12


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_stage_that_hangs_is_found_by_its_progress_and_one_that_is_slow_is_left_in_peace(
    tmp_path: Path,
) -> None:
    pool = RealPool(tmp_path)
    try:
        _join(pool)
        pool.add_model(write_tiny_model(tmp_path / "tiny", "llama"), "tiny")
        pool.add_rows("rows", [{"text": f"{n} In the beginning was the word."} for n in range(200)])
        job_id = pool.submit(pool.plan(_config(STEPS))).job_id

        slow = pool.wait_step(job_id, SLOW_AT + 1)
        assert (slow.state, slow.attempt) == ("running", 1)

        def lost() -> JobView | None:
            job = pool.job(job_id)
            return job if job.attempt > 1 or job.state == "recovering" else None

        found: JobView = wait_until("the hang to be found", lost, 120, pool.household)
        assert found.step == HANG_AT - 1
        ended: JobView = wait_until("the end", lambda: _ended(pool, job_id), 60, pool.household)
    finally:
        assert pool.close() == []
    (why,) = ended.config.resumes
    assert "stage 1 of 2 on" in why.why
    assert "has made no progress for" in why.why
    assert "although its fellow answers" in why.why
    assert why.step == EVERY * ((HANG_AT - 1) // EVERY)
    assert (ended.state, ended.attempt) == ("completed", 2)
    assert (found.untrusted_error or "").startswith("stage 0 on ")
    assert f"of step {HANG_AT}" in (found.untrusted_error or "")


def _join(pool: RealPool) -> None:
    for number in range(2):
        invite = pool.client.call(INVITES_CREATE, InvitesCreate(pool=POOL))
        words = ["join", pool.url, "--card", CARD, "--no-warm"]
        pool.household.start(
            f"fellow-{number}",
            ["-m", "tests.acceptance.hanging_fellow", *words],
            {"SWARM_INVITE": invite.secret},
        )
    wait_until("the fellows' readiness", pool.all_ready, START_S, pool.household)


def _ended(pool: RealPool, job_id: str) -> JobView | None:
    job = pool.job(job_id)
    return job if job.state in ("completed", "failed") else None
