"""How fast a loss is noticed and a run goes on, with real processes at the leader's own defaults.

    OMP_NUM_THREADS=1 python -m tests.bench.detection

Three fellows, two of them at work, one standing by warm. Times from the blow, seen by asking the
leader every 50 ms: until the job says that it lost a stage, until the other worker is gone, and
until the first new step.
"""

import contextlib
import os
import tempfile
import time
from pathlib import Path

import psutil

from tests.acceptance import recovery_ground
from tests.acceptance.recovery_ground import Ground
from transport.api.jobs import JOBS_CANCEL, JobsCancel

STEPS = 100_000
LIMITS = {"kill worker": 2.0, "freeze worker": 15.0, "kill daemon": 2.0, "freeze daemon": 15.0}
GO_ON_S = 30.0


def measure(ground: Ground, blow: str) -> tuple[float, float, float]:
    """(noticed, the other stopped, first new step) in seconds after one blow."""
    how, victim_kind = blow.split()
    ground.until("readiness", ground._all_ready, 90)
    config = recovery_ground._config()
    config["train"] |= {"steps": STEPS, "snapshot_every_steps": 5}
    job_id = ground.pool.submit(ground.pool.plan(config)).job_id

    def has_saved() -> bool:
        return bool((job := ground._view(job_id)) and job.saved_step)

    ground.until("a saved step", has_saved, 90)
    workers = ground.pool.workers()
    victim = workers[1]
    if victim_kind == "daemon":
        forkserver = victim.parent()
        assert forkserver is not None
        daemon = forkserver.parent()
        assert daemon is not None
        victim = daemon
    struck = time.monotonic()
    victim.kill() if how == "kill" else victim.suspend()
    noticed = stopped = 0.0

    def has_gone_on() -> bool:
        nonlocal noticed, stopped
        job = ground._view(job_id)
        if job is None:
            return False
        if not noticed and (job.state == "recovering" or job.attempt > 1):
            noticed = time.monotonic() - struck
        if not stopped and not workers[0].is_running():
            stopped = time.monotonic() - struck
        return job.attempt > 1 and job.state == "running"

    ground.until("the next attempt's first step", has_gone_on, 120)
    first = time.monotonic() - struck
    with contextlib.suppress(psutil.NoSuchProcess):
        victim.resume()
    ground.pool.client.call(JOBS_CANCEL, JobsCancel(job_id=job_id))
    return noticed, stopped or first, first


def main() -> None:
    """Print a line for each kind of loss."""
    os.environ["OMP_NUM_THREADS"] = "1"
    recovery_ground.SETTINGS = "[leader]\n"
    with tempfile.TemporaryDirectory() as folder:
        ground = Ground(Path(folder))
        try:
            for blow, limit_s in LIMITS.items():
                noticed, stopped, first = measure(ground, blow)
                print(
                    f"{blow}: noticed after {noticed:.1f} s (limit {limit_s:.0f} s), the other"
                    f" worker gone after {stopped:.1f} s, first new step after {first:.1f} s"
                    f" (limit {GO_ON_S:.0f} s and loading)",
                    flush=True,
                )
        finally:
            ground.close()


if __name__ == "__main__":
    main()
