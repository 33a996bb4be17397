"""A daemon in small: starts real stage workers, hands them links, and reads what they report."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from transport.orders import (
    CardShare,
    Links,
    ModelSource,
    Neighbour,
    ResumeFrom,
    StageOrder,
    TokenFile,
    TrainSettings,
    WorkerLinks,
    WorkerPause,
    WorkerStart,
)
from transport.reports import FromStage, StageBound, StageFailed, StageReport

ROOT = Path(__file__).resolve().parents[2]
REVISION = "0123456789abcdef0123456789abcdef01234567"
_REPORT: TypeAdapter[Any] = TypeAdapter(StageReport)
R = TypeVar("R", bound=FromStage)


@dataclass
class Worker:
    """One worker process and everything it said."""

    stage: int
    channel: socket.socket
    pid: int = 0
    reports: list[Any] = field(default_factory=list)
    code: int | None = None
    """Exit code; minus the signal when it was killed."""
    ended_at: float | None = None
    buffer: bytearray = field(default_factory=bytearray)

    def of(self, kind: type[R]) -> list[R]:
        """Its reports of one kind."""
        return [report for report in self.reports if isinstance(report, kind)]

    def send(self, line: WorkerStart | WorkerLinks | WorkerPause) -> None:
        """Write one line on its channel."""
        self.channel.sendall(line.model_dump_json().encode() + b"\n")


class Workers:
    """A warm forkserver, and the runs started from it."""

    def __init__(self, **environment: str) -> None:
        ours, theirs = socket.socketpair()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the forkserver
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stage_runtime.forkserver"],
            stdin=theirs.fileno(),
            stdout=self._log,
            stderr=self._log,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **environment},
        )
        theirs.close()
        self._socket = ours
        self._buffer = bytearray()
        self._by_name: dict[str, Worker] = {}
        self._names = 0
        self.ready = self._next_line(60.0)

    def close(self) -> None:
        """End the forkserver and with it its workers."""
        self._socket.close()
        self.process.wait(timeout=10)
        self._log.close()

    def printed(self) -> str:
        """What forkserver and workers printed so far."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def start(self, stage: int) -> Worker:
        """Fork a worker that waits for its first line."""
        ours, theirs = socket.socketpair()
        self._names += 1
        name = f"w{self._names}"
        worker = Worker(stage, ours)
        self._by_name[name] = worker
        line = json.dumps({"start": name}).encode() + b"\n"
        socket.send_fds(self._socket, [line], [theirs.fileno(), self._log.fileno()])
        theirs.close()
        deadline = time.monotonic() + 10
        while not worker.pid:
            self._take_events(deadline - time.monotonic())
            assert time.monotonic() < deadline, "the forkserver did not fork in 10 s"
        return worker

    def pump(
        self, workers: list[Worker], until: Callable[[], bool], timeout_s: float = 60.0
    ) -> None:
        """Read reports and exits until a condition holds; fails past the limit."""
        deadline = time.monotonic() + timeout_s
        while not until():
            left = deadline - time.monotonic()
            assert left > 0, self._story(workers)
            sockets = [worker.channel for worker in workers if worker.channel.fileno() >= 0]
            ready, _, _ = select.select([self._socket, *sockets], [], [], min(left, 1.0))
            for worker in workers:
                if worker.channel in ready:
                    _read(worker)
            if self._socket in ready:
                self._take_events(0)

    def _story(self, workers: list[Worker]) -> str:
        ends = "\n".join(
            f"stage {w.stage} code {w.code}: {[repr(r)[:300] for r in w.reports[-3:]]}"
            for w in workers
        )
        return f"the run did not get there in time\n{ends}\n{self.printed()[-2000:]}"

    def _next_line(self, timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while (end := self._buffer.find(b"\n")) < 0:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._socket], [], [], max(0.0, left))
            assert ready, f"the forkserver is silent: {self.printed()[-2000:]}"
            data = self._socket.recv(65536)
            assert data, f"the forkserver died: {self.printed()[-2000:]}"
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return dict(json.loads(line))

    def _take_events(self, timeout_s: float) -> None:
        event = self._next_line(max(0.1, timeout_s))
        while True:
            if "started" in event:
                self._by_name[event["started"]].pid = event["pid"]
            elif "exited" in event:
                worker = self._by_name.pop(event["exited"])
                worker.code = event["code"] if event["signal"] is None else -event["signal"]
                worker.ended_at = time.monotonic()
            if b"\n" not in self._buffer:
                return
            event = self._next_line(0.1)


def _read(worker: Worker) -> None:
    try:
        data = worker.channel.recv(1 << 16)
    except ConnectionError:
        data = b""
    if not data:
        worker.channel.close()
        return
    worker.buffer += data
    while (end := worker.buffer.find(b"\n")) >= 0:
        worker.reports.append(_REPORT.validate_json(bytes(worker.buffer[:end])))
        del worker.buffer[: end + 1]


@dataclass(frozen=True)
class Case:
    """A run to start: the model's folder lies in the cache in the hub's layout."""

    cache: Path
    model: str
    num_layers: int
    settings: TrainSettings
    tokens: TokenFile
    evaluate_base: bool = False
    budget_bytes: int = 1 << 40
    leader_url: str = ""
    attempt: int = 1
    resume: ResumeFrom | None = None

    def orders(self, cuts: list[tuple[int, int]]) -> list[StageOrder]:
        """One order a stage; `cuts` are inclusive spans of layers."""
        source = ModelSource(
            model_id=f"local:{self.model}",
            repository=f"local/{self.model}",
            revision=REVISION,
            from_leader=True,
        )
        return [
            StageOrder(
                job_id="j-abcdefgh",
                attempt=self.attempt,
                stage=stage,
                num_stages=len(cuts),
                first_layer=first,
                last_layer=last,
                num_layers=self.num_layers,
                model=source,
                settings=self.settings,
                tokens=self.tokens,
                cards=[
                    CardShare(
                        index=0,
                        uuid="cpu-0",
                        first_layer=first,
                        last_layer=last,
                        planned_bytes=0,
                        budget_bytes=self.budget_bytes,
                    )
                ],
                threads=1,
                evaluate_base=self.evaluate_base,
                plan_id="0123456789abcdef",
                resume=self.resume,
            )
            for stage, (first, last) in enumerate(cuts)
        ]


def model_folder(cache: Path, name: str) -> Path:
    """Where the hub's layout keeps a model at the tests' revision."""
    return cache / "hub" / f"models--local--{name}" / "snapshots" / REVISION


def even_cuts(num_layers: int, num_stages: int) -> list[tuple[int, int]]:
    """Spans of layers, the longer ones first."""
    size, more = divmod(num_layers, num_stages)
    ends = [sum(size + (i < more) for i in range(k)) for k in range(num_stages + 1)]
    return [(ends[k], ends[k + 1] - 1) for k in range(num_stages)]


class Run:
    """The workers of one job."""

    def __init__(self, workers: Workers, case: Case, num_stages: int) -> None:
        self._pool = workers
        self.work = case.cache / "work" / os.urandom(4).hex()
        self.orders = case.orders(even_cuts(case.num_layers, num_stages))
        self.workers = [workers.start(order.stage) for order in self.orders]
        for worker, order in zip(self.workers, self.orders, strict=True):
            worker.send(
                WorkerStart(
                    order=order,
                    leader_url=case.leader_url,
                    leader_token="swn_test",
                    leader_pin=None,
                    cache_folder=str(case.cache),
                    work_folder=str(self.work / str(order.stage)),
                    listen_address="127.0.0.1",
                )
            )

    def connect(self) -> None:
        """Wait until all have bound, then hand out the links."""
        self.pump(lambda: all(worker.of(StageBound) for worker in self.workers))
        bound = [worker.of(StageBound)[0] for worker in self.workers]
        sides = [_neighbour(order.stage, one) for order, one in zip(self.orders, bound)]
        for stage, worker in enumerate(self.workers):
            links = Links(
                previous=sides[stage - 1] if stage else None,
                next=sides[stage + 1] if stage + 1 < len(sides) else None,
            )
            worker.send(WorkerLinks(links=links))

    def pump(self, until: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Read reports until a condition holds."""
        self._pool.pump(self.workers, until, timeout_s)

    def finish(self, timeout_s: float = 60.0) -> "Run":
        """Wait until every worker has ended and said all it had to say."""
        self.pump(self.has_ended, timeout_s)
        return self

    def has_ended(self) -> bool:
        """Whether all processes are gone and their channels read to the end."""
        return all(w.code is not None and w.channel.fileno() < 0 for w in self.workers)

    def kill(self, stage: int) -> None:
        """SIGKILL one worker."""
        with suppress(ProcessLookupError):
            os.kill(self.workers[stage].pid, signal.SIGKILL)

    def failures(self) -> list[StageFailed]:
        """Every StageFailed, in order of stages."""
        return [one for worker in self.workers for one in worker.of(StageFailed)]

    def file_of(self, stage: int) -> Path:
        """A stage's saved result."""
        return self.work / str(stage) / f"stage-{stage}.safetensors"


def _neighbour(stage: int, bound: StageBound) -> Neighbour:
    return Neighbour(
        stage=stage,
        fellow_id="f-abcdefgh",
        public_key=bound.public_key,
        endpoints=bound.endpoints,
    )


def run_to_end(workers: Workers, case: Case, num_stages: int, timeout_s: float = 60.0) -> Run:
    """Start, connect and finish a run; fails when a stage did."""
    run = Run(workers, case, num_stages)
    run.connect()
    run.finish(timeout_s)
    assert not run.failures(), run.failures()
    assert [worker.code for worker in run.workers] == [0] * num_stages
    return run
