"""A stage worker without torch: its reports in their order, its waits, its ways to end."""

import asyncio
import hashlib
import json
import struct
from typing import TYPE_CHECKING, Any, Literal

from agents.fellow.reconcile import Key
from tests.saved_files import tensor_of
from tests.simulation.network import Away
from tests.simulation.pipeline import NeighbourLost, loss_of, trained
from tests.simulation.saving import Saving, go_on
from tests.simulation.virtual_time import passed
from transport.cards import LinkStatus
from transport.errors import SwarmError
from transport.orders import StageOrder
from transport.reports import AdapterSaved, StageBound, StageDone, StageLoaded, StepDone

if TYPE_CHECKING:
    from tests.simulation.machine import Machine
    from tests.simulation.world import World

LOAD_S, STEP_S = 2.0, 1.0
RETRY_S = 2.0
Phase = Literal["loading", "ready", "training", "saving", "done", "failed"]


class Stage:
    """One stage of one attempt on one machine."""

    def __init__(self, world: "World", machine: "Machine", order: StageOrder) -> None:
        self.world = world
        self.machine = machine
        self.order = order
        self.key = Key(order.job_id, order.attempt, order.stage)
        self.phase: Phase = "loading"
        self.has_links = False
        self._linked = asyncio.Event()
        self._saving = Saving(machine, order)
        self._pipeline = world.pipeline(order)
        self._task = asyncio.create_task(self._run())

    def connect(self) -> None:
        """The neighbours are known."""
        self.has_links = True
        self._linked.set()

    def links(self) -> list[LinkStatus]:
        """How its neighbours are reached."""
        beside = (self.order.stage - 1, self.order.stage + 1)
        return [
            LinkStatus(
                neighbour=one,
                path="none" if self._pipeline.is_gone(one) else "direct",
                sent_bytes=0,
                received_bytes=0,
            )
            for one in beside
            if self.has_links and 0 <= one < self.order.num_stages
        ]

    def kill(self) -> None:
        """End without a word."""
        self._task.cancel()
        self._saving.stop()
        self._pipeline.leave(self.order.stage)

    def stop(self, reason: str) -> None:
        """End because the leader wants it so."""
        self.kill()
        self.machine.ended(self.key)

    def crash(self) -> None:
        """The worker process dies; its daemon tells."""
        self.kill()
        self.machine.fail(self.key, "the worker process was killed by signal 9", lost=True)
        self.machine.ended(self.key)

    async def _run(self) -> None:
        self._pipeline.join(self.order.stage)
        self._pipeline.on_gone[self.order.stage] = self.machine.beat_soon
        try:
            await self._work()
        except NeighbourLost as lost:
            self.machine.fail(self.key, f"stage {lost} does not answer", echo=True)
        except SwarmError as error:
            self.machine.fail(self.key, error.message)
        self._pipeline.leave(self.order.stage)
        self.machine.ended(self.key)

    async def _work(self) -> None:
        order = self.order
        endpoints = [f"tcp://127.0.0.1:{5000 + order.stage}"] if order.stage else []
        self._tell(StageBound, public_key=f"{order.stage}" * 40, endpoints=endpoints)
        await self._linked.wait()
        await passed(LOAD_S)
        first, state = await go_on(self.machine, order)
        self._tell(
            StageLoaded,
            weight_bytes=1000,
            priced_bytes=2000,
            load_s=LOAD_S,
            downloaded_bytes=10,
            adapters_digest="a" * 64,
        )
        self.phase = "ready"
        await self._pipeline.meet(order.stage, 0)
        self.phase = "training"
        for step in range(first + 1, order.settings.steps + 1):
            state = await self._step(state, step)
            self._saving.after(step, state)
        await self._finish(state)

    async def _step(self, state: bytes, step: int) -> bytes:
        await self.machine.thawed.wait()
        await self._pipeline.meet(self.order.stage, step)
        await passed(STEP_S)
        state = trained(state, step)
        self.world.watch.stepped(self.key, step)
        self._tell(
            StepDone,
            step=step,
            loss=loss_of(state),
            grad_norm=1.0,
            learning_rate=1e-4,
            supervised_tokens=100,
            step_s=STEP_S,
            compute_s=STEP_S / 2,
            wait_s=STEP_S / 2,
            skipped=False,
        )
        return state

    async def _finish(self, state: bytes) -> None:
        self.phase = "saving"
        data = adapter_bytes(state, self.order)
        digest = hashlib.sha256(data).hexdigest()
        while True:
            await self.machine.thawed.wait()
            try:
                await self.machine.way.ask(
                    lambda: self.world.door.adapter(self.machine, self.key, data)
                )
                break
            except Away:
                await passed(RETRY_S)
            except SwarmError as error:
                if error.status < 500:
                    raise
                await passed(RETRY_S)
        self._tell(AdapterSaved, digest=digest, size_bytes=len(data))
        self._tell(StageDone, sent_bytes=10, received_bytes=20)
        self.phase = "done"

    def _tell(self, kind: type[Any], **values: Any) -> None:
        key = self.key
        at = self.world.clock.now()
        told = kind(job_id=key.job_id, attempt=key.attempt, stage=key.stage, at=at, **values)
        self.machine.put(told)


def adapter_bytes(state: bytes, order: StageOrder) -> bytes:
    """A stage's file of trained tensors: one pair for each layer, drawn from the model's state."""
    names = [
        f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{part}.weight"
        for layer in range(order.first_layer, order.last_layer + 1)
        for part in "AB"
    ]
    header: dict[str, Any] = {}
    for place, name in enumerate(names):
        offsets = [place * 16, place * 16 + 16]
        header[name] = {"dtype": "F32", "shape": [2, 2], "data_offsets": offsets}
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + b"".join(tensor_of(state, name) for name in names)
