"""The forkserver by itself, and the plain worker process."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

from tests.oracle.grid import Ground, Point
from tests.oracle.stages import Worker, Workers
from transport.orders import WorkerStart


def has_ended(worker: Worker) -> bool:
    return worker.code is not None


@pytest.fixture(scope="module")
def forkserver() -> Iterator[Workers]:
    pool = Workers()
    yield pool
    pool.close()


def test_it_is_single_threaded_when_it_says_ready(forkserver: Workers) -> None:
    assert forkserver.ready["ready"] is True
    assert forkserver.ready["preload_s"] > 0
    pid = forkserver.process.pid
    threads = Path(f"/proc/{pid}/task").iterdir()
    assert [(thread / "comm").read_text().strip() for thread in threads] == [
        Path(f"/proc/{pid}/comm").read_text().strip()
    ]


def test_a_worker_starts_in_a_fraction_of_a_second(forkserver: Workers) -> None:
    took = []
    for _ in range(3):
        started = time.monotonic()
        worker = forkserver.start(0)
        took.append(time.monotonic() - started)
        worker.channel.close()
        ended = partial(has_ended, worker)
        forkserver.pump([worker], ended, 10)
        assert worker.code == 5
    assert min(took) < 1.0


def test_lines_that_are_no_start_are_refused_and_it_goes_on(forkserver: Workers) -> None:
    forkserver._socket.sendall(b'nonsense\n{"start": "no-fds"}\n')
    first, second = (forkserver._next_line(5) for _ in range(2))
    assert first["refused"] == ""
    assert second["refused"] == "no-fds"
    assert "descriptors" in second["why"]
    worker = forkserver.start(0)
    worker.channel.close()
    forkserver.pump([worker], lambda: worker.code is not None, 10)


def test_a_fork_of_it_tests_the_number_formats_and_it_stays_single_threaded(
    forkserver: Workers,
) -> None:
    forkserver._socket.sendall(b'{"prove": true}\n')
    told = forkserver._next_line(60)["proven"]["cpu"]
    assert told == {"formats": ["float32", "bfloat16", "int8", "nf4"], "failed": ""}
    assert len(list(Path(f"/proc/{forkserver.process.pid}/task").iterdir())) == 1
    worker = forkserver.start(0)
    worker.channel.close()
    forkserver.pump([worker], lambda: worker.code is not None, 10)


def test_its_end_is_the_end_of_its_workers() -> None:
    pool = Workers()
    worker = pool.start(0)
    pool.close()
    assert worker.channel.recv(1) == b""
    assert not Path(f"/proc/{worker.pid}").exists()
    worker.channel.close()


def test_a_plain_worker_speaks_json_lines_and_ends_with_its_channel(ground: Ground) -> None:
    case = ground.case(Point("llama", 2))
    order = case.orders([(0, 2), (3, 5)])[0]
    start = WorkerStart(
        order=order,
        leader_url="",
        leader_token="",
        leader_pin=None,
        cache_folder=str(case.cache),
        work_folder=str(case.cache / "work" / "plain"),
        listen_address="127.0.0.1",
    )
    with subprocess.Popen(
        [sys.executable, "-m", "stage_runtime.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(start.model_dump_json().encode() + b"\n")
        process.stdin.flush()
        told = (json.loads(line)["kind"] for line in iter(process.stdout.readline, b""))
        kinds = list(islice((kind for kind in told if kind != "log"), 2))
        assert kinds == ["bound", "loaded"]
        process.stdin.close()
        assert process.wait(10) == 5


def test_an_unreadable_first_line_ends_a_worker(forkserver: Workers) -> None:
    worker = forkserver.start(0)
    worker.channel.sendall(b"{}\n")
    forkserver.pump([worker], lambda: worker.code is not None, 10)
    assert worker.code == 5
