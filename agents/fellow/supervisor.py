"""Keeps exactly those stage workers running that the leader wants.

Asks `reconcile` what to do after every change and does it. Owns every worker process; knows
neither HTTP nor what the orders mean.
"""

import asyncio
import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from agents.fellow.attempts import Attempts
from agents.fellow.launcher import Launcher
from agents.fellow.listening import Listening
from agents.fellow.reconcile import Connect, Key, Start, Stop, key_of, reconcile
from agents.fellow.reports import Intake
from agents.fellow.worker import PATIENCE, Patience, Worker
from transport.cards import StageStatus
from transport.errors import SwarmError
from transport.orders import StageAssignment, WorkerStart
from transport.reports import Report

log = logging.getLogger("swarm.fellow")


@dataclass(frozen=True)
class WorkerSetting:
    """What every worker of this machine is told beside its order."""

    leader_url: str
    leader_token: str = field(repr=False)
    leader_pin: str | None
    cache_folder: Path
    work_folder: Path
    """Each worker gets a folder of its own below it."""
    listening: Listening
    patience: Patience = PATIENCE


class Supervisor:
    """The workers of one machine."""

    def __init__(
        self,
        launcher: Launcher,
        attempts: Attempts,
        setting: WorkerSetting,
        put: Callable[[Report], object],
    ) -> None:
        self._launcher = launcher
        self._attempts = attempts
        self._setting = setting
        self._put = put
        self._desired: list[StageAssignment] = []
        self._workers: dict[Key, Worker] = {}
        self._starting: dict[Key, StageAssignment] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self._is_closing = False
        self._ended_bytes = [0, 0]
        """To and from neighbours, of workers that are gone."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when a worker's phase has changed, or it is gone."""
        self._fail_what_was_lost()

    @property
    def sent_bytes(self) -> int:
        """To neighbouring stages since the start."""
        return self._ended_bytes[0] + sum(w.told.sent_bytes for w in self._workers.values())

    @property
    def received_bytes(self) -> int:
        """From neighbouring stages since the start."""
        return self._ended_bytes[1] + sum(w.told.received_bytes for w in self._workers.values())

    def held_bytes(self, card_index: int) -> int:
        """What this machine's own workers hold on a card, by their orders."""
        orders = [w.order for w in self._workers.values()]
        orders += [a.order for a in self._starting.values()]
        shares = (share for order in orders for share in order.cards)
        return sum(share.planned_bytes for share in shares if share.index == card_index)

    def pids(self) -> frozenset[int]:
        """The processes of all workers."""
        return frozenset(worker.process.pid for worker in self._workers.values())

    def pids_on(self, card_index: int) -> frozenset[int]:
        """The processes of the workers that use a card."""
        return frozenset(
            worker.process.pid
            for worker in list(self._workers.values())
            if any(share.index == card_index for share in worker.order.cards)
        )

    def statuses(self) -> list[StageStatus]:
        """All workers as a heartbeat tells them."""
        return [worker.status() for worker in self._workers.values()]

    @property
    def is_idle(self) -> bool:
        """Whether no worker exists."""
        return not self._workers and not self._starting

    def want(self, desired: list[StageAssignment]) -> None:
        """Take a new desired state and work towards it in the background."""
        self._desired = desired
        self._spawn(self._reconcile(), "reconcile")

    async def close(self, reason: str) -> None:
        """Stop every worker, say that their stages failed, and end the launcher."""
        self._is_closing = True
        for worker in list(self._workers.values()):
            if not worker.stop_reason and not worker.told.is_done and not worker.told.has_failed:
                worker.intake.fail(reason, hint="start the fellow again", lost=True)
        await asyncio.gather(*(self._stop(key, reason) for key in list(self._workers)))
        if self._tasks:  # each has its end to write down
            await asyncio.wait(self._tasks, timeout=1.0)
        await self._launcher.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _reconcile(self) -> None:
        async with self._turn:
            if self._is_closing:
                return
            seen = {key: worker.seen() for key, worker in self._workers.items()}
            over = self._attempts.started() | self._starting.keys()
            for action in reconcile(self._desired, seen, over):
                match action:
                    case Stop(key, reason):
                        log.info("stopping worker", extra={"stage": str(key), "why": reason})
                        self._workers[key].stop_reason = reason
                        self._spawn(self._stop(key, reason), f"stop {key}")
                    case Connect(key, links):
                        await self._workers[key].connect(links)
                    case Start(assignment):
                        self._starting[key_of(assignment)] = assignment
                        self._spawn(self._run(assignment), f"run {key_of(assignment)}")

    async def _stop(self, key: Key, reason: str) -> None:
        worker = self._workers.get(key)
        if worker is not None:
            await worker.stop(reason, self._setting.patience)

    async def _run(self, assignment: StageAssignment) -> None:
        """Run one worker from start to end."""
        key = key_of(assignment)
        intake = Intake(key, self._put)
        folder = self._setting.work_folder / str(key).replace("/", "-")
        try:
            # Before the process exists: after a crash in between, the stage counts as lost.
            await asyncio.to_thread(self._attempts.note_start, key)
            worker = await self._launch(key, assignment, intake, folder)
            await worker.watch(self.on_change)
        except SwarmError as error:
            intake.fail(f"no worker could be started: {error.message}", hint=error.hint)
        except OSError as error:
            intake.fail(
                f"no worker could be started: {error.strerror or error}",
                hint="check the free disk space and memory of this machine",
            )
        finally:
            gone = self._workers.pop(key, None)
            if gone is not None:
                self._ended_bytes[0] += gone.told.sent_bytes
                self._ended_bytes[1] += gone.told.received_bytes
            self._starting.pop(key, None)
        await asyncio.to_thread(self._forget, key, folder)
        self.on_change()
        await self._reconcile()

    def _forget(self, key: Key, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        try:
            self._attempts.note_end(key)
        except OSError as error:
            # After a restart it would be called failed once more; the leader keeps the first.
            log.warning("an end was not written down", extra={"why": error.strerror})

    async def _launch(
        self, key: Key, assignment: StageAssignment, intake: Intake, folder: Path
    ) -> Worker:
        await asyncio.to_thread(_empty, folder)
        began = time.monotonic()
        process = await self._launcher.launch(str(key), assignment.order.threads)
        worker = Worker(key, assignment.order, process, intake)
        self._workers[key] = worker
        self._starting.pop(key, None)
        log.info(
            "worker started",
            extra={
                "stage": str(key),
                "layers": f"{assignment.order.first_layer}-{assignment.order.last_layer}",
                "worker_pid": process.pid,
                "start_s": round(time.monotonic() - began, 3),
            },
        )
        await worker.start(self._first_line(assignment, folder))
        self._spawn(self._reconcile(), "reconcile")
        return worker

    def _first_line(self, assignment: StageAssignment, folder: Path) -> WorkerStart:
        setting = self._setting
        return WorkerStart(
            order=assignment.order,
            leader_url=setting.leader_url,
            leader_token=setting.leader_token,
            leader_pin=setting.leader_pin,
            cache_folder=str(setting.cache_folder),
            work_folder=str(folder),
            listen_address=setting.listening.address,
            more_addresses=list(setting.listening.more),
            listen_port=setting.listening.port,
            announced=list(setting.listening.announced),
        )

    def _fail_what_was_lost(self) -> None:
        """Say of stages that ran when an earlier daemon died that they failed with it."""
        for key in self._attempts.unfinished():
            intake = Intake(key, self._put)
            intake.fail(
                "the fellow daemon ended while the stage ran, and the worker with it",
                hint="its job goes on from its last saved step",
                lost=True,
            )
            self._attempts.note_end(key)

    def _spawn(self, work: "asyncio._CoroutineLike[None]", name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the supervisor failed", exc_info=task.exception())


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
