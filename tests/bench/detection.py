"""How fast a loss is noticed and a run goes on, with real processes at the leader's own defaults.

    OMP_NUM_THREADS=1 python -m tests.bench.detection
    OMP_NUM_THREADS=1 python -m tests.bench.detection "kill daemon" stops      some of it alone

Three fellows, two of them at work, one standing by warm. Times from the blow, seen by asking the
leader every 50 ms: until the job says that it lost a stage, until the other stage has left what it
did (as its worker tells in the job's log), and until the first new step. Then jobs are cancelled at
random moments: how long after the word came each stage stopped, by its worker's own clock.
"""

import contextlib
import os
import random
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.acceptance import recovery_ground
from tests.acceptance.recovery_ground import Ground
from transport.api.jobs import JOBS_CANCEL, JOBS_LOGS, JobsCancel, JobsLogs

STEPS = 100_000
LIMITS = {"kill worker": 2.0, "freeze worker": 15.0, "kill daemon": 2.0, "freeze daemon": 15.0}
GO_ON_S, FAN_OUT_S = 30.0, 2.0
CANCELS, IN_A_WAIT_MS = 8, 100.0
TOLD = re.compile(
    r"stopped (?P<ms>[\d.]+) ms after the word came, "
    r"(?P<how>in a wait|at work; its longest block took (?P<block>[\d.]+) ms)"
)


@dataclass(frozen=True)
class Stopped:
    """What one worker told of how it stopped."""

    at: float
    """Unix time."""
    ms: float
    block_ms: float | None
    """Its longest block; None when the word came while it waited."""


def stops_of(ground: Ground, job_id: str) -> list[Stopped]:
    """Every stage of a job that was told to stop, and has said how long it took."""
    told = ground.pool.client.call(JOBS_LOGS, JobsLogs(job_id=job_id, limit=500))
    found = ((row.at, TOLD.search(row.untrusted_text)) for row in told.lines)
    return [
        Stopped(at, float(one["ms"]), float(one["block"]) if one["block"] else None)
        for at, one in found
        if one is not None
    ]


def begun(ground: Ground, **train: int) -> str:
    """A job that has saved a step."""
    ground.until("readiness", ground._all_ready, 90)
    config = recovery_ground._config()
    config["train"] |= {"steps": STEPS, "snapshot_every_steps": 5, **train}
    job_id = ground.pool.submit(ground.pool.plan(config)).job_id

    def has_saved() -> bool:
        return bool((job := ground._view(job_id)) and job.saved_step)

    ground.until("a saved step", has_saved, 90)
    return job_id


def measure(ground: Ground, blow: str) -> tuple[float, float | None, float]:
    """(noticed, the other stage out of what it did, first new step) in seconds after one blow."""
    how, victim_kind = blow.split()
    job_id = begun(ground)
    workers = ground.pool.workers()
    victim = workers[1]
    if victim_kind == "daemon":
        forkserver = victim.parent()
        assert forkserver is not None
        daemon = forkserver.parent()
        assert daemon is not None
        victim = daemon
    struck, struck_at = time.monotonic(), time.time()
    victim.kill() if how == "kill" else victim.suspend()
    noticed = 0.0

    def has_gone_on() -> bool:
        nonlocal noticed
        job = ground._view(job_id)
        if job is None:
            return False
        if not noticed and (job.state == "recovering" or job.attempt > 1):
            noticed = time.monotonic() - struck
        return job.attempt > 1 and job.state == "running"

    ground.until("the next attempt's first step", has_gone_on, 120)
    first = time.monotonic() - struck
    with contextlib.suppress(psutil.NoSuchProcess):
        victim.resume()
    stopped = [one.at - struck_at for one in stops_of(ground, job_id)]
    ground.pool.client.call(JOBS_CANCEL, JobsCancel(job_id=job_id))
    return noticed, min(stopped, default=None), first


def tell(ground: Ground, blow: str, limit_s: float) -> bool:
    """Print one kind of loss. Whether it is within its limits."""
    noticed, stopped, first = measure(ground, blow)
    other = "said nothing" if stopped is None else f"stopped after {stopped:.2f} s"
    print(
        f"{blow}: noticed after {noticed:.1f} s (limit {limit_s:.0f} s), the other stage {other},"
        f" first new step after {first:.1f} s (limit {GO_ON_S:.0f} s and loading)",
        flush=True,
    )
    # The fan-out counts from the report; a killed worker's comes at once.
    is_told = blow != "kill worker" or (stopped is not None and stopped <= FAN_OUT_S)
    return noticed <= limit_s and is_told


def tell_stops(ground: Ground) -> bool:
    """Cancel jobs at random moments; print how fast their stages stopped. Whether within limits."""
    dice, found = random.Random(1), list[Stopped]()
    for _ in range(CANCELS):
        job_id = begun(ground, seq_len=64, batch_size=256)
        ground._rest(dice.uniform(0.1, 1.0))
        ground.pool.client.call(JOBS_CANCEL, JobsCancel(job_id=job_id))
        ground.until("both words", lambda one=job_id: len(stops_of(ground, one)) == 2, 20)  # type: ignore[misc]
        found += stops_of(ground, job_id)
    waited = [one.ms for one in found if one.block_ms is None]
    worked = [(one.ms, one.block_ms) for one in found if one.block_ms is not None]
    most = max(waited, default=0.0)
    print(f"{len(waited)} stages stopped in a wait, {most:.1f} ms at most (limit 100 ms)")
    share, (ms, block) = max(((a / b, (a, b)) for a, b in worked), default=(0.0, (0.0, 0.0)))
    print(
        f"{len(worked)} stages stopped at work, the slowest after {ms:.1f} ms, {share:.2f} of its"
        f" longest block of {block:.1f} ms (limit 1)",
        flush=True,
    )
    return most <= IN_A_WAIT_MS and share <= 1.0


def main() -> int:
    """Print a line for each kind of loss; 1 past a limit."""
    os.environ["OMP_NUM_THREADS"] = "1"
    recovery_ground.SETTINGS = "[leader]\n"
    asked = sys.argv[1:] or [*LIMITS, "stops"]
    with tempfile.TemporaryDirectory() as folder:
        ground = Ground(Path(folder))
        try:
            held = [tell(ground, one, LIMITS[one]) for one in LIMITS if one in asked]
            if "stops" in asked:
                held.append(tell_stops(ground))
        finally:
            ground.close()
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
