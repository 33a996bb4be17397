"""`swarm verify` on real processes: stages against plain transformers and peft, with a verdict."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.demo.processes import wait_until
from tests.acceptance.real_pool import RealPool
from tests.oracle.checkpoints import write_tiny_model
from transport.api.verify import JOBS_VERIFY, JobsVerify, VerifyView


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[RealPool]:
    settings = tmp_path / "leader" / ".config" / "swarm"
    settings.mkdir(parents=True)
    (settings / "config.toml").write_text("[leader]\nheartbeat_s = 0.5\n")
    pool = RealPool(tmp_path)
    try:
        pool.join(("cpu:300MB:1", "cpu:200MB:1"))
        pool.add_model(write_tiny_model(tmp_path / "tiny", "llama"), "tiny")
        pool.add_rows("rows", [{"text": f"{n} The word was with them."} for n in range(60)])
        yield pool
    finally:
        killed = pool.close()
    assert killed == [], "a process did not end by itself"


@pytest.mark.slow
def test_two_stages_are_found_equal_to_one_process(pool: RealPool) -> None:
    config = {
        "model": {"id": "local:tiny", "dtype": "float32"},
        "data": {"bucket": "rows"},
        "train": {"steps": 3, "seq_len": 24, "batch_size": 4, "eval_sequences": 2},
    }
    job = pool.wait_end(pool.submit(pool.plan(config)).job_id)
    assert job.state == "completed", job.reason
    pool.wait_ready()

    def ask() -> VerifyView | None:
        view = pool.client.call(JOBS_VERIFY, JobsVerify(job_id=job.job_id, timeout_s=2.0))
        return view if view.verification.state in ("done", "failed") else None

    view: VerifyView = wait_until("a verdict", ask, 60, pool.household)
    found = view.verification
    assert (found.state, found.verdict) == ("done", "equal"), found
    assert found.stages == 2
    assert found.largest_difference is not None
    assert found.largest_difference <= found.tolerance == 1e-5
    assert len(found.split_losses) == len(found.one_process_losses) == 4
    assert pool.job(job.job_id).verification == found
    pool.wait_ready()
