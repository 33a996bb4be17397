"""One stage worker from its start to its end, as the daemon sees it.

Feeds it its lines, passes on what it says, notices how it ends and says so when it cannot. Does
not decide what should run.
"""

import asyncio
import logging
import signal
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import psutil

from agents.fellow.launcher import Ended, Process
from agents.fellow.reconcile import Key, Seen
from agents.fellow.reports import Intake
from transport.cards import LinkStatus, StageStatus
from transport.orders import Links, StageOrder, WorkerLinks, WorkerPause, WorkerStart
from transport.reports import (
    AdapterSaved,
    Evaluated,
    LinkPath,
    StageBound,
    StageDone,
    StageFailed,
    StageLoaded,
    StageReport,
    StepDone,
)

WorkerPhase = Literal[
    "starting", "loading", "ready", "training", "evaluating", "saving", "done", "failed"
]
DONE, FAILED, PAUSED = 0, 3, 4  # exit codes of a worker
_LAST_LINES = 12

log = logging.getLogger("swarm.fellow")


@dataclass(frozen=True)
class Patience:
    """How long a worker is given to stop. The whole is the 5 s that a leader counts on."""

    pause_s: float = 3.0
    """From the pause line to SIGTERM."""
    term_s: float = 1.5
    """From SIGTERM to SIGKILL."""


PATIENCE = Patience()


@dataclass
class Told:
    """What a worker has said of itself so far."""

    phase: WorkerPhase = "starting"
    step: int | None = None
    has_failed: bool = False
    is_done: bool = False
    links: dict[int, LinkPath] = field(default_factory=dict)
    """Neighbour -> the newest word on the link to it."""
    whole: StageDone | None = None

    @property
    def sent_bytes(self) -> int:
        """To its neighbours so far, as far as it has told."""
        return max(
            self.whole.sent_bytes if self.whole else 0,
            sum(link.sent_bytes for link in self.links.values()),
        )

    @property
    def received_bytes(self) -> int:
        """From its neighbours so far, as far as it has told."""
        return max(
            self.whole.received_bytes if self.whole else 0,
            sum(link.received_bytes for link in self.links.values()),
        )

    @property
    def paths(self) -> dict[int, tuple[str, str]]:
        """How its neighbours are reached."""
        return {neighbour: (link.path, link.why) for neighbour, link in self.links.items()}

    def note(self, report: StageReport) -> None:
        """Learn from one report."""
        match report:
            case LinkPath():
                self.links[report.neighbour] = report
            case StageBound():
                self.phase = "loading"
            case StageLoaded():
                self.phase = "ready"
            case StepDone():
                self.phase, self.step = "training", report.step
            case Evaluated():
                ends = report.moment in ("trained", "bypassed")
                self.phase = "saving" if ends else "training"
            case AdapterSaved():
                self.phase = "saving"
            case StageDone():
                self.phase, self.is_done, self.whole = "done", True, report
            case StageFailed():
                self.phase, self.has_failed = "failed", True


@dataclass
class Worker:
    """A running worker process and its stage."""

    key: Key
    order: StageOrder
    process: Process
    intake: Intake
    told: Told = field(default_factory=Told)
    has_links: bool = False
    stop_reason: str = ""
    _printed: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))

    async def start(self, first_line: WorkerStart) -> None:
        """Hand it its order; a worker that does not read it is ended."""
        if not await self.process.channel.send(first_line.model_dump_json()):
            self.process.signal(signal.SIGKILL)

    async def connect(self, links: Links) -> None:
        """Tell it its neighbours, once."""
        self.has_links = True
        await self.process.channel.send(WorkerLinks(links=links).model_dump_json())

    async def stop(self, reason: str, patience: Patience) -> Ended:
        """Ask, then insist. Returns how it ended; safe to call again."""
        self.stop_reason = self.stop_reason or reason
        await self.process.channel.send(
            WorkerPause(reason=self.stop_reason).model_dump_json(), timeout_s=0.5
        )
        for number, wait_s in (
            (signal.SIGTERM, patience.pause_s),
            (signal.SIGKILL, patience.term_s),
        ):
            try:
                async with asyncio.timeout(wait_s):
                    return await asyncio.shield(self.process.ended)
            except TimeoutError:
                self.process.signal(number)
        return await asyncio.shield(self.process.ended)

    async def watch(self, changed: Callable[[], None]) -> Ended:
        """Pass on everything it says until it is gone, then say what it could not."""
        talk = asyncio.gather(self._read_reports(changed), self._read_printed())
        try:
            how = await asyncio.shield(self.process.ended)
            # Its last words are in the sockets already; a grandchild may hold those open.
            await asyncio.wait([talk], timeout=2.0)
        finally:
            talk.cancel()
            await asyncio.gather(talk, return_exceptions=True)
            self.process.close()
        self._conclude(how)
        return how

    def seen(self) -> Seen:
        """As reconcile needs it."""
        return Seen(
            "stopping" if self.stop_reason else "running",
            frozenset(share.index for share in self.order.cards),
            self.has_links,
        )

    def status(self) -> StageStatus:
        """As a heartbeat tells it."""
        try:
            resident: int | None = psutil.Process(self.process.pid).memory_info().rss
        except psutil.Error:
            resident = None
        return StageStatus(
            job_id=self.key.job_id,
            attempt=self.key.attempt,
            stage=self.key.stage,
            phase=self.told.phase,
            step=self.told.step,
            resident_bytes=resident,
            links=[
                LinkStatus(
                    neighbour=link.neighbour,
                    path=link.path,
                    untrusted_why=link.why,
                    sent_bytes=link.sent_bytes,
                    received_bytes=link.received_bytes,
                    resent_frames=link.resent_frames,
                )
                for link in self.told.links.values()
            ][:2],
        )

    async def _read_reports(self, changed: Callable[[], None]) -> None:
        async for line in self.process.channel.lines():
            report = self.intake.take(line)
            if report is not None:
                before = self.told.phase, self.told.paths
                self.told.note(report)
                if (self.told.phase, self.told.paths) != before:
                    changed()

    async def _read_printed(self) -> None:
        async for line in self.process.printed.lines():
            self._printed.append(line)
            self.intake.say("info", line)

    def _conclude(self, how: Ended) -> None:
        """Say of a worker that died, or left without a word, that its stage has failed."""
        told = self.told
        log.info("worker ended", extra={"stage": str(self.key), "how": how.words()})
        # Whatever goes wrong after a stage said that it is done costs the job nothing.
        if self.stop_reason or told.has_failed or told.is_done:
            return
        for line in self._printed:
            self.intake.say("error", line)
        told.phase, told.has_failed = "failed", True
        if how.code == DONE:
            words = "ended without saying that its stage was finished"
        elif how.code == PAUSED:
            words = "stopped as if it had been paused, which nobody asked of it"
        else:
            words = how.words()
        hint = "its last lines are in the job's log"
        if how.signal == signal.SIGKILL:
            hint += "; signal 9 is often the system saving memory: give the card a smaller budget"
        self.intake.fail(
            f"the worker process {words}", hint=hint, exit_code=how.code, lost=how.code != DONE
        )
