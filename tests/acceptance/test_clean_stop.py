"""kill -9 of any process at any phase: the rest stops, the reason is told, the pool goes on.

One pool of three fellows serves all tests; after each it must complete another job. Phases are held
open by stopping (SIGSTOP) whoever would end them, so that a kill hits what its name says.
"""

import json
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any

import psutil
import pytest
from safetensors.torch import load_file, save_file

from agents.demo.processes import Child, wait_until
from tests.acceptance.real_pool import RealPool
from tests.oracle.checkpoints import write_tiny_model
from transport.api.jobs import JobView

CARDS = ("cpu:300MB:1", "cpu:220MB:1", "cpu:160MB:1")
GONE_S = 10.0
"""In which the others must have stopped."""
PHASE_S = 15.0
TRIES = 5
LONG, LONG_ROWS = 512, 300
ROWS, HELD_OUT = 300, 64
"""Rows for as many held-out sequences as are ever taken: evaluations that can be caught."""


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealPool]:
    folder = tmp_path_factory.mktemp("pool")
    # Readiness is told by heartbeats: quick ones keep these tests short.
    settings = folder / "leader" / ".config" / "swarm"
    settings.mkdir(parents=True)
    (settings / "config.toml").write_text(
        "[leader]\nheartbeat_s = 0.5\noffline_after_s = 5.0\nauto_replace = false\n"
    )
    pool = RealPool(folder)
    try:
        pool.join(CARDS)
        pool.add_model(with_positions(write_tiny_model(folder / "tiny", "llama"), LONG), "tiny")
        text = "In the beginning was the word, and the word was with them. "
        pool.add_rows("rows", [{"text": f"{number} {text * 3}"} for number in range(ROWS)])
        # Long held-out sequences: an evaluation that lasts seconds.
        pool.add_rows("long", [{"text": text * 40} for _ in range(LONG_ROWS)])
        assert complete(pool).state == "completed"
        yield pool
    finally:
        killed = pool.close()
    assert killed == [], "a process did not end by itself"


def with_positions(folder: Path, count: int) -> Path:
    """Let a model of rotary positions, which hold no weights, take longer sequences."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config["max_position_embeddings"] = count
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


def a_config(bucket: str = "rows", **train: Any) -> dict[str, Any]:
    settings = {"steps": 50_000, "seq_len": 32, "batch_size": 4, "eval_sequences": 0}
    return {
        "model": {"id": "local:tiny", "dtype": "float32"},
        "data": {"bucket": bucket},
        "train": {**settings, "learning_rate": 1e-4, **train},
    }


def start(pool: RealPool, bucket: str = "rows", **train: Any) -> JobView:
    """Start a job over all three fellows."""
    pool.wait_ready()
    return pool.submit(pool.plan(a_config(bucket, **train)))


def complete(pool: RealPool) -> JobView:
    """The next job, to its end."""
    return pool.wait_end(start(pool, steps=2).job_id)


def forkserver(daemon: Child) -> psutil.Process | None:
    """A daemon's warm process."""
    for child in psutil.Process(daemon.process.pid).children():
        with suppress(psutil.Error):
            if "stage_runtime.forkserver" in " ".join(child.cmdline()):
                return child
    return None


def server_of(pool: RealPool, fellow: int) -> psutil.Process:
    """A fellow's warm process, as soon as there is one."""
    daemon = pool.fellow_daemons[fellow]
    found: psutil.Process = wait_until(
        "the forkserver", lambda: forkserver(daemon), 30, pool.household
    )
    return found


def worker_of(pool: RealPool, fellow: int, but: Collection[int] = ()) -> psutil.Process:
    """The worker of a fellow, as soon as there is one; `but`: ids of those of earlier jobs."""
    server = server_of(pool, fellow)
    worker: psutil.Process = quickly(
        "a worker", lambda: next((one for one in server.children() if one.pid not in but), None)
    )
    return worker


def quickly(what: str, check: Callable[[], Any]) -> Any:
    """Ask every 2 ms, for moments that pass within a fifth of a second; bounded."""
    deadline, pause = time.monotonic() + PHASE_S, Event()
    while not (answer := check()):
        assert time.monotonic() < deadline, f"{what} did not happen within {PHASE_S:.0f} s"
        pause.wait(0.002)
    return answer


@contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    """Keep a process from running; go on at the end if it still is."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)


def stage_of(pool: RealPool, job_id: str, fellow: int) -> int:
    """Which stage a fellow runs: the workers' folders are named JOB/ATTEMPT/STAGE."""
    (folder,) = quickly("the worker's folder", lambda: work_folders(pool, job_id, fellow))
    return int(folder.name.rsplit("-", 1)[1])


def work_folders(pool: RealPool, job_id: str, fellow: int) -> list[Path]:
    home = pool.folder / pool.fellow_daemons[fellow].name
    return [path for path in home.rglob(f"{job_id}-*") if path.is_dir()]


def assert_clean_end(
    pool: RealPool, job_id: str, victim: psutil.Process, others: list[psutil.Process]
) -> JobView:
    """After a kill: the others stop, the reason names the fellow, another job completes."""
    _, alive = psutil.wait_procs([victim, *others], timeout=GONE_S)
    assert alive == []
    job = pool.wait_end(job_id)
    assert job.state == "failed"
    assert job.untrusted_error is not None
    assert pool.workers() == []
    assert complete(pool).state == "completed"
    return job


def assert_told_by(job: JobView, stage: int, words: str) -> None:
    """The first error, with the fellow whose worker was killed before it."""
    fellow_id = next(one.fellow_id for one in job.stages if one.stage == stage)
    assert job.untrusted_error is not None
    assert job.untrusted_error.startswith(f"{fellow_id}: ")
    assert words in job.untrusted_error
    assert f"stage {stage} of 3 on {fellow_id} was lost" in job.reason


def others_than(pool: RealPool, victim: psutil.Process) -> list[psutil.Process]:
    return [worker for worker in pool.workers() if worker.pid != victim.pid]


# --- a worker is killed --------------------------------------------------------------------------


def test_a_worker_killed_while_it_loads(pool: RealPool) -> None:
    job, victim = hold_while_loading(pool)
    others = others_than(pool, victim)
    stage = stage_of(pool, job.job_id, 1)
    victim.kill()
    ended = assert_clean_end(pool, job.job_id, victim, others)
    assert_told_by(ended, stage, "signal 9")
    assert ended.step == 0


def hold_while_loading(pool: RealPool) -> tuple[JobView, psutil.Process]:
    """A job whose worker at the second fellow stands still before it has loaded."""
    for _ in range(TRIES):
        earlier = {one.pid for one in server_of(pool, 1).children()}
        job = start(pool)
        victim = worker_of(pool, 1, but=earlier)
        victim.send_signal(signal.SIGSTOP)
        wait_until("the others' workers", lambda: len(pool.workers()) == 3, 10, pool.household)
        stage = stage_of(pool, job.job_id, 1)

        def others_ready(job: JobView = job, stage: int = stage) -> JobView | None:
            told = pool.job(job.job_id)
            phases = [one.phase for one in told.stages if one.stage != stage]
            return told if phases == ["ready", "ready"] else None

        told = wait_until("the others' loading", others_ready, 10, pool.household)
        if told.stages[stage].phase in ("starting", "loading"):
            assert told.state == "starting"
            return told, victim
        with suppress(psutil.NoSuchProcess):  # it was too quick for us, or was found frozen already
            victim.kill()
        pool.wait_end(job.job_id)
    pytest.fail(f"no worker could be stopped while it loaded, in {TRIES} tries")


@pytest.mark.parametrize("fellow", [0, 2])
def test_a_worker_killed_in_forward_or_backward(pool: RealPool, fellow: int) -> None:
    job = start(pool)
    before = pool.wait_step(job.job_id, 3)
    stage = stage_of(pool, job.job_id, fellow)
    victim = worker_of(pool, fellow)
    others = others_than(pool, victim)
    assert before.state == "running"
    victim.kill()
    ended = assert_clean_end(pool, job.job_id, victim, others)
    assert_told_by(ended, stage, "signal 9")
    assert 3 <= ended.step < ended.steps


def test_a_worker_killed_while_it_evaluates(pool: RealPool) -> None:
    job = start(pool, "long", steps=1, seq_len=LONG, eval_sequences=HELD_OUT)
    victim = worker_of(pool, 1)
    pool.wait_step(job.job_id, 1)
    stage = stage_of(pool, job.job_id, 1)
    others = others_than(pool, victim)
    # The only step is done; what follows is the evaluation of what it trained.
    victim.kill()
    ended = assert_clean_end(pool, job.job_id, victim, others)
    assert_told_by(ended, stage, "signal 9")
    assert (ended.step, [one.moment for one in ended.evaluations]) == (1, ["base"])


def test_a_worker_killed_while_its_adapter_is_on_the_way(pool: RealPool) -> None:
    job = start(pool, "long", steps=1, seq_len=LONG, eval_sequences=HELD_OUT)
    leader = psutil.Process(pool.leader.process.pid)
    victim = worker_of(pool, 1)
    pool.wait_step(job.job_id, 1)
    others = others_than(pool, victim)
    stage = stage_of(pool, job.job_id, 1)
    (folder,) = work_folders(pool, job.job_id, 1)
    # The long evaluation is still going on. From here the leader takes nothing, so whoever has
    # written its file waits for its answer.
    with stopped(leader):
        quickly("the saving", lambda: list(folder.glob("stage-*.safetensors")))
        assert victim.is_running()
        victim.kill()
        psutil.wait_procs([victim], timeout=GONE_S)
    ended = assert_clean_end(pool, job.job_id, victim, others)
    assert_told_by(ended, stage, "signal 9")
    assert ended.step == ended.steps
    assert not ended.adapter_ready


# --- what stands above a worker is killed --------------------------------------------------------


def test_a_forkserver_that_is_killed_takes_its_worker_along_and_is_replaced(pool: RealPool) -> None:
    job = start(pool)
    pool.wait_step(job.job_id, 2)
    stage = stage_of(pool, job.job_id, 1)
    victim = worker_of(pool, 1)
    others = others_than(pool, victim)
    server = forkserver(pool.fellow_daemons[1])
    assert server is not None
    server.kill()
    ended = assert_clean_end(pool, job.job_id, victim, others)
    assert_told_by(ended, stage, "the worker process")


def test_a_daemon_that_is_killed_takes_its_worker_along_and_the_pool_goes_on_when_it_is_back(
    pool: RealPool,
) -> None:
    job = start(pool)
    pool.wait_step(job.job_id, 2)
    stage = stage_of(pool, job.job_id, 1)
    victim = worker_of(pool, 1)
    everyone = [*others_than(pool, victim), victim]
    daemon = pool.fellow_daemons[1]
    server = forkserver(daemon)
    assert server is not None
    pool.household.children.remove(daemon)
    daemon.process.kill()
    daemon.process.wait(5)
    _, alive = psutil.wait_procs([*everyone, server], timeout=GONE_S)
    assert alive == []
    ended = pool.wait_end(job.job_id)
    fellow_id = next(one.fellow_id for one in ended.stages if one.stage == stage)
    assert ended.state == "failed"

    again = pool.household.start(daemon.name, ["-m", "agents.cli.main", "fellow"])
    pool.household.children.remove(again)
    pool.household.children.insert(2, again)
    assert complete(pool).state == "completed"
    assert fellow_id in pool.job(job.job_id).reason


def test_a_weight_that_is_no_number_fails_the_job_by_its_name(pool: RealPool) -> None:
    folder = write_tiny_model(pool.folder / "spoiled", "llama")
    file = min(folder.glob("*.safetensors"))
    tensors = load_file(file)
    name = next(name for name in sorted(tensors) if "layers" in name)
    tensors[name].view(-1)[0] = float("nan")
    save_file(tensors, file)
    pool.add_model(folder, "spoiled")
    pool.wait_ready()
    config = a_config(steps=2) | {"model": {"id": "local:spoiled", "dtype": "float32"}}

    job = pool.wait_end(pool.submit(pool.plan(config)).job_id)

    assert job.state == "failed"
    assert "invalid-input" in job.reason
    assert f"{name} in {file.name} holds NaN" in (job.untrusted_error or "")
    assert complete(pool).state == "completed"
