"""A fellow without processes: the daemon's protocol with its leader, its spool, its reconciling.

What a real machine keeps on disk survives `kill`; the rest does not. Uses the daemon's own
`reconcile`, and speaks to the leader object as the doors do.
"""

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agents.fellow.reconcile import Connect, Key, Seen, Start, Stop, key_of, reconcile
from tests.simulation.network import BEAT_GIVE_UP_S, Away, Way
from tests.simulation.virtual_time import passed
from transport.cards import PROTOCOL, CardReport, Heartbeat, MachineReport, StageStatus
from transport.errors import SwarmError
from transport.orders import DesiredState, StageAssignment
from transport.reports import Numbered, Report, ReportBatch, StageFailed

if TYPE_CHECKING:
    from tests.simulation.stage import Stage
    from tests.simulation.world import Door, World

GB = 10**9
HEARTBEAT_S = 5.0
RETRY_S = 2.0
BATCH = 50


@dataclass
class Disk:
    """What survives the death of the daemon and of the machine."""

    spool: list[Numbered] = field(default_factory=list)
    number: int = 0
    acknowledged: int = 0
    refused: int = 0
    over: dict[Key, bool] = field(default_factory=dict)
    """Stages that were ever started; True once their end was reported."""


def _parts(fellow_id: str, free_bytes: int) -> tuple[MachineReport, list[CardReport]]:
    """What every heartbeat of a machine says alike."""
    machine = MachineReport(
        hostname=f"host-{fellow_id}",
        system="Linux",
        cores=2,
        memory_bytes=8 * GB,
        memory_free_bytes=4 * GB,
        disk_free_bytes=100 * GB,
        version="0.1.0",
        features=["stage", "lora", "full"],
        listen_address="127.0.0.1",
    )
    card = CardReport(
        index=0,
        kind="cpu",
        name="CPU",
        uuid=f"cpu-{fellow_id}",
        total_bytes=free_bytes,
        free_bytes=free_bytes,
        threads=1,
        number_formats=["float32"],
    )
    return machine, [card]


class Machine:
    """One machine with one card."""

    def __init__(self, world: "World", fellow_id: str, free_bytes: int, seed: str) -> None:
        self.world = world
        self.fellow_id = fellow_id
        self.free_bytes = free_bytes
        self.disk = Disk()
        self.way = Way(random.Random(seed))
        self.stages: dict[Key, Stage] = {}
        self.thawed = asyncio.Event()
        self.thawed.set()
        self.is_up = False
        self.starts = 0
        self._machine, self._cards = _parts(fellow_id, free_bytes)
        self._tasks: list[asyncio.Task[None]] = []
        self._desired: list[StageAssignment] = []
        self._revision = 0
        self._heard_at = 0.0
        self._beat_now = asyncio.Event()
        self._filled = asyncio.Event()

    # --- power -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the daemon."""
        self.is_up = True
        self.starts += 1
        self._revision, self._desired = 0, []
        for key, is_over in list(self.disk.over.items()):
            if not is_over:
                self.fail(key, "the fellow daemon ended while the stage ran", lost=True)
                self.disk.over[key] = True
        self._tasks = [
            asyncio.create_task(work)
            for work in (self._heartbeats(), self._orders(), self._send_reports())
        ]

    def kill(self) -> None:
        """End the daemon and its workers at once, saying nothing to anybody."""
        self.is_up = False
        for task in self._tasks:
            task.cancel()
        for stage in list(self.stages.values()):
            stage.kill()
        self.stages.clear()

    def raise_what_ended_a_loop(self) -> None:
        """A loop of the daemon that ended by a mistake must not go unseen."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()):
                raise error

    async def freeze(self, seconds: float) -> None:
        """Let nothing on this machine move for a while."""
        self.thawed.clear()
        await passed(seconds)
        self.thawed.set()

    # --- what it tells -----------------------------------------------------------------------

    def put(self, report: Report) -> None:
        """Keep a report until the leader has it."""
        self.disk.number += 1
        self.disk.spool.append(Numbered(sequence=self.disk.number, report=report))
        self._filled.set()

    def fail(self, key: Key, message: str, *, echo: bool = False, lost: bool = False) -> None:
        """Say that a stage has failed."""
        told = StageFailed(
            job_id=key.job_id,
            attempt=key.attempt,
            stage=key.stage,
            at=self.world.clock.now(),
            code="stage-failed",
            message=message,
            echo=echo,
            lost=lost,
        )
        self.put(told)

    def ended(self, key: Key) -> None:
        """A stage of this machine is over."""
        self.stages.pop(key, None)
        self.disk.over[key] = True
        self._beat_now.set()
        self._reconcile()

    def beat_soon(self) -> None:
        """Something has changed that the leader should hear at once."""
        self._beat_now.set()

    def beat(self) -> Heartbeat:
        """How this machine is."""
        return Heartbeat(
            protocol=PROTOCOL,
            fellow_id=self.fellow_id,
            machine=self._machine,
            cards=self._cards,
            stages=[
                StageStatus(
                    job_id=key.job_id,
                    attempt=key.attempt,
                    stage=key.stage,
                    phase=one.phase,
                    links=one.links(),
                )
                for key, one in self.stages.items()
            ],
        )

    # --- its loops ---------------------------------------------------------------------------

    async def _heartbeats(self) -> None:
        while True:
            await self.thawed.wait()
            self._beat_now.clear()
            pause_s = HEARTBEAT_S
            try:
                asked_at = self.world.clock.monotonic()
                self._take(await self.way.ask(self._one_beat, BEAT_GIVE_UP_S), asked_at)
            except (Away, SwarmError):
                pause_s = RETRY_S
            try:
                async with asyncio.timeout(pause_s):
                    await self._beat_now.wait()
            except TimeoutError:
                pass

    async def _orders(self) -> None:
        while True:
            await self.thawed.wait()
            try:
                asked_at = self.world.clock.monotonic()
                self._take(await self.way.ask(self._held), asked_at)
            except (Away, SwarmError):
                await passed(RETRY_S)

    async def _send_reports(self) -> None:
        while True:
            await self.thawed.wait()
            if not self.disk.spool:
                self._filled.clear()
                await self._filled.wait()
            batch = ReportBatch(
                protocol=PROTOCOL, fellow_id=self.fellow_id, reports=self.disk.spool[:BATCH]
            )
            try:
                taken = await self.way.ask(
                    lambda told=batch: self._speak().reports(self.fellow_id, told)  # type: ignore[misc]
                )
            except (Away, SwarmError):
                await passed(RETRY_S)
                continue
            self.disk.refused += len(taken.refused)
            self._acknowledged(taken.committed)

    def _acknowledged(self, number: int) -> None:
        self.world.watch.acknowledged(self.fellow_id, number)
        self.disk.acknowledged = max(self.disk.acknowledged, number)
        self.disk.spool = [one for one in self.disk.spool if one.sequence > number]

    def _speak(self) -> "Door":
        """The leader's door, once it has let in this start of the daemon."""
        self.world.door.admit(self.fellow_id, f"{self.starts:016x}")
        return self.world.door

    async def _one_beat(self) -> DesiredState:
        return await self._speak().heartbeat(self.fellow_id, self.beat())

    async def _held(self) -> DesiredState:
        return await self._speak().orders(self.fellow_id, self._revision)

    def _take(self, state: DesiredState, asked_at: float) -> None:
        """Take the leader's word, unless a newer one came while this was on its way."""
        self._acknowledged(state.reports_committed)
        if state.revision < self._revision and asked_at < self._heard_at:
            return
        self._revision, self._heard_at = state.revision, self.world.clock.monotonic()
        self._desired = state.stages
        self._reconcile()

    def _reconcile(self) -> None:
        if not self.is_up:
            return
        seen = {
            key: Seen("running", frozenset({0}), one.has_links) for key, one in self.stages.items()
        }
        for action in reconcile(self._desired, seen, frozenset(self.disk.over)):
            match action:
                case Stop(key, reason):
                    self.stages[key].stop(reason)
                case Connect(key, _):
                    self.stages[key].connect()
                case Start(assignment):
                    self._start_stage(assignment)

    def _start_stage(self, assignment: StageAssignment) -> None:
        key = key_of(assignment)
        self.disk.over[key] = False
        self.stages[key] = self.world.new_stage(self, assignment.order)
        if assignment.links is not None:
            self.stages[key].connect()
