"""A whole pool in one virtual world: the real leader on its real database, machines in plain code.

`template` makes, once, a leader's folder with a pool, a model, tokenized text and joined fellows;
each world begins on a copy of it.
"""

import asyncio
import contextlib
import hashlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from agents.fellow.reconcile import Key
from control.jobs.results import StageKey
from control.leader import Leader
from control.operations.call import Call
from control.settings import Settings
from control.snapshots.keeper import SnapshotKey
from mcp_server.desk import Desk
from mcp_server.office import Promise
from tests.leader_twins import (
    ADMIN,
    GB,
    POOL,
    Pool,
    job_config,
    one_chunk,
    open_pool,
    seeded_bytes,
    write_model,
)
from tests.simulation.machine import Machine
from tests.simulation.network import Away
from tests.simulation.pipeline import Pipeline
from tests.simulation.stage import Stage
from tests.simulation.virtual_time import InlineConnection, LoopClock
from tests.simulation.watch import Watch
from transport.api.catalog import OPERATIONS
from transport.api.operation import Answer
from transport.cards import Heartbeat
from transport.errors import SwarmError
from transport.orders import DesiredState, StageOrder
from transport.reports import ReportBatch, ReportsTaken

T = TypeVar("T")
FELLOWS = 4
LEADER = "leader"
"""The leader's folder, in the template and in each world."""
TOKENIZED_WITHIN_S = 60.0


async def template(folder: Path) -> list[str]:
    """Make the folder that worlds begin with, on the machine's own time. Returns the fellows."""
    async with open_pool(folder) as pool:
        await pool.add_model(write_model(folder / "model"))
        await pool.add_text()
        names = [(await pool.add_fellow()).fellow_id for _ in range(FELLOWS)]
        job = await pool.ask("jobs_submit", pool=POOL, config=job_config(), unpinned=True)
        await _tokenized(pool, folder)
        await pool.ask("jobs_cancel", job_id=job.job_id)
    return names


async def _tokenized(pool: Pool, folder: Path) -> None:
    async with asyncio.timeout(TOKENIZED_WITHIN_S):
        while not list((folder / LEADER / "tokens").glob("*.safetensors")):
            await pool.leader.office.jobs.schedule()
            await pool.leader.office.registry.heard.wait()
            pool.leader.office.registry.heard.clear()


@dataclass
class Door:
    """One life of the leader as machines reach it: silent once that life is over."""

    leader: Leader
    is_open: bool = True

    async def _through(self, ask: Callable[[], Awaitable[T]]) -> T:
        if not self.is_open:
            raise Away
        try:
            told = await ask()
        except Exception:
            if not self.is_open:
                raise Away from None
            raise
        if not self.is_open:
            raise Away
        return told

    def admit(self, fellow_id: str, life: str) -> None:
        """What every request names."""
        if not self.is_open:
            raise Away
        self.leader.admit(fellow_id, life)

    async def heartbeat(self, fellow_id: str, beat: Heartbeat) -> DesiredState:
        """POST /fellow/v1/heartbeat."""
        if not self.is_open:
            raise Away
        return self.leader.heartbeat(fellow_id, beat)

    async def orders(self, fellow_id: str, since: int) -> DesiredState:
        """GET /fellow/v1/orders."""
        return await self._through(lambda: self.leader.wait_orders(fellow_id, since, 25.0))

    async def reports(self, fellow_id: str, batch: ReportBatch) -> ReportsTaken:
        """POST /fellow/v1/reports."""
        return await self._through(lambda: self.leader.take_reports(fellow_id, batch))

    async def adapter(self, machine: Machine, key: Key, data: bytes) -> None:
        """PUT …/adapter."""
        whose = StageKey(machine.fellow_id, key.job_id, key.attempt, key.stage)
        digest = hashlib.sha256(data).hexdigest()
        await self._through(lambda: self._desk.take_adapter(whose, one_chunk(data), digest))

    async def snapshot(self, key: SnapshotKey, data: bytes, promise: Promise) -> None:
        """PUT …/snapshots/…."""
        await self._through(lambda: self._desk.take_snapshot(key, one_chunk(data), promise))

    async def saved_file(self, key: SnapshotKey) -> bytes:
        """GET …/snapshots/…."""
        file = await self._through(lambda: self._desk.snapshot_for(key.fellow_id, key))
        if file is None:
            raise SwarmError("not-found", f"there is no saved state {key}")
        return file.path.read_bytes()

    @property
    def _desk(self) -> Desk:
        return Desk(self.leader)


class World:
    """Everything of one simulated pool."""

    def __init__(self, folder: Path, fellows: list[str], seed: str) -> None:
        self.seed = seed
        self.settings = Settings(data=folder / LEADER)
        self.clock = LoopClock(asyncio.get_running_loop())
        self.watch = Watch(self)
        self.door = Door(None, is_open=False)  # type: ignore[arg-type]
        self.machines = [Machine(self, name, 4 * GB, f"{seed} {name}") for name in fellows]
        self.lives = 0
        self._pipelines: dict[tuple[str, int], Pipeline] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, start: Path, folder: Path, fellows: list[str], seed: str
    ) -> "AsyncIterator[World]":
        """Copy the template, start the leader and the machines; at the end all is down."""
        shutil.copytree(start / LEADER, folder / LEADER)
        world = cls(folder, fellows, seed)
        await world.start_leader()
        for machine in world.machines:
            machine.start()
        try:
            yield world
        finally:
            for machine in world.machines:
                machine.kill()
            await world.stop_leader()

    # --- the leader's lives ------------------------------------------------------------------

    @property
    def leader(self) -> Leader:
        """The leader's present life."""
        return self.door.leader

    async def start_leader(self) -> None:
        """Begin a life of the leader on its folder."""
        self.lives += 1
        dice = seeded_bytes(
            int(hashlib.sha256(f"{self.seed} {self.lives}".encode()).hexdigest(), 16)
        )
        leader = await Leader.open(self.settings, self.clock, dice)
        leader.start()
        self.door = Door(leader)
        self.watch.began()

    async def stop_leader(self) -> None:
        """End it in good order."""
        if self.door.is_open:
            self.door.is_open = False
            await self.leader.close()

    async def kill_leader(self) -> None:
        """End it in the middle of whatever it does: only what was committed stays."""
        if not self.door.is_open:
            return
        self.door.is_open = False
        InlineConnection.opened[-1].crash()
        with contextlib.suppress(Exception):
            await self.leader.close()

    async def ask(self, operation: str, /, call: Call = ADMIN, **arguments: Any) -> Any:
        """Call an operation of the leader."""
        answer: Answer = await self.leader.run(OPERATIONS[operation], call, arguments)
        return answer

    # --- what stages share -------------------------------------------------------------------

    def pipeline(self, order: StageOrder) -> Pipeline:
        """What the stages of one attempt meet in."""
        key = (order.job_id, order.attempt)
        return self._pipelines.setdefault(key, Pipeline(order.num_stages))

    def new_stage(self, machine: Machine, order: StageOrder) -> Stage:
        """A worker for an order."""
        self.watch.started(machine.fellow_id, order)
        return Stage(self, machine, order)
