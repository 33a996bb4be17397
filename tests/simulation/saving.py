"""A stage's saved states in a simulated world: made from the model's state, sent, read back.

A file's tensors are a function of the model's state and their names. Whoever goes on from a file
compares every byte with what an undisturbed run would have had at that step.
"""

import asyncio
import hashlib
from typing import TYPE_CHECKING

from control.snapshots.keeper import SnapshotKey
from mcp_server.office import Promise
from tests.saved_files import saved_bytes, tensor_of, tensors_in, tensors_of
from tests.simulation.network import Away
from tests.simulation.pipeline import model_after
from tests.simulation.virtual_time import passed
from transport.errors import SwarmError
from transport.orders import SavedStage, StageOrder

if TYPE_CHECKING:
    from tests.simulation.machine import Machine

RETRY_S = 2.0


def saved_file(order: StageOrder, step: int, state: bytes) -> bytes:
    """What a stage saves of a step."""
    return saved_bytes(order, step, {name: tensor_of(state, name) for name in tensors_of(order)})


class Saving:
    """Sends saved states in the background, the newest first; the run never waits for it."""

    def __init__(self, machine: "Machine", order: StageOrder) -> None:
        self._machine = machine
        self._order = order
        self._next: tuple[int, bytes] | None = None
        self._task: asyncio.Task[None] | None = None

    def after(self, step: int, state: bytes) -> None:
        """Save this step if it is one that is saved."""
        every = self._order.settings.snapshot_every_steps
        if every and step % every == 0:
            self._next = (step, saved_file(self._order, step, state))
            if self._task is None or self._task.done():
                self._task = asyncio.ensure_future(self._send())

    def stop(self) -> None:
        """Send nothing more."""
        if self._task is not None:
            self._task.cancel()

    async def _send(self) -> None:
        while self._next is not None:
            (step, data), self._next = self._next, None
            while self._next is None:
                await self._machine.thawed.wait()
                try:
                    await self._machine.way.ask(lambda s=step, d=data: self._put(s, d))  # type: ignore[misc]
                    break
                except Away:
                    await passed(RETRY_S)
                except SwarmError as error:
                    self._machine.world.watch.note("unsaved", step=step, code=error.code)
                    break

    async def _put(self, step: int, data: bytes) -> None:
        order = self._order
        key = SnapshotKey(self._machine.fellow_id, order.job_id, order.attempt, order.stage, step)
        promise = Promise(hashlib.sha256(data).hexdigest(), len(data))
        await self._machine.world.door.snapshot(key, data, promise)


async def go_on(machine: "Machine", order: StageOrder) -> tuple[int, bytes]:
    """(the step to go on after, the model's state then): read back, and compared byte by byte."""
    if order.resume is None:
        return 0, model_after(order.settings.seed, 0)
    step = order.resume.step
    state = model_after(order.settings.seed, step)
    missing = set(tensors_of(order))
    for file in order.resume.files:
        data = await _fetch(machine, order, file)
        for name, values in tensors_in(data).items():
            if name in missing:
                if values != tensor_of(state, name):
                    raise machine.world.watch.broken(f"{name} of step {step} is not what it was")
                missing.discard(name)
    if missing:
        raise machine.world.watch.broken(f"step {step} lacks {len(missing)} tensors of {order}")
    return step, state


async def _fetch(machine: "Machine", order: StageOrder, file: SavedStage) -> bytes:
    assert order.resume is not None
    key = SnapshotKey(
        machine.fellow_id, order.job_id, order.resume.attempt, file.stage, order.resume.step
    )
    while True:
        await machine.thawed.wait()
        try:
            data = await machine.way.ask(lambda: machine.world.door.saved_file(key))
        except Away:
            await passed(RETRY_S)
            continue
        if hashlib.sha256(data).hexdigest() != file.digest:
            raise machine.world.watch.broken(f"the file of stage {file.stage} has changed")
        return data
