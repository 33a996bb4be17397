"""What an idle fellow costs the network: real daemon, real leader, every byte counted between."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from agents.fellow.daemon import Daemon, DaemonSetting
from agents.fellow.joining import join
from tests.flow.open_leader import OTHER, OpenLeader, open_leader
from transport.beats import ShortBeat, lengthened, shortened
from transport.cards import CardReport, Envelope, Heartbeat, MachineReport

BEAT_S, HOLD_S = 5.0, 25.0
"""As a fellow of a real pool does: a heartbeat, and a held request for orders."""
LIMIT_BYTES_S = 1000.0
NOTHING = Envelope(least=0, mean=0, most=0)


@dataclass
class Counter:
    """A TCP line to the leader; counts what crosses it, both ways, and connections."""

    target: int
    port: int = 0
    bytes_: int = 0
    connections: int = 0
    _tasks: "set[asyncio.Task[None]]" = field(default_factory=set)

    @classmethod
    @asynccontextmanager
    async def to(cls, target: int) -> "AsyncIterator[Counter]":
        """One that is open."""
        counter = cls(target)
        server = await asyncio.start_server(counter._accept, "127.0.0.1", 0)
        counter.port = server.sockets[0].getsockname()[1]
        try:
            yield counter
        finally:
            server.close()
            for task in counter._tasks:
                task.cancel()
            await asyncio.gather(*counter._tasks, return_exceptions=True)

    async def _accept(self, near: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        self.connections += 1
        far, into = await asyncio.open_connection("127.0.0.1", self.target)
        for source, sink in ((near, into), (far, out)):
            self._tasks.add(asyncio.create_task(self._pass(source, sink)))

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                self.bytes_ += len(data)
                sink.write(data)
                await sink.drain()
        finally:
            sink.close()
            with contextlib.suppress(ConnectionError):
                await sink.wait_closed()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[OpenLeader]:
    async with open_leader(tmp_path / "leader") as opened:
        yield opened


async def test_an_idle_fellow_s_traffic_with_its_leader_stays_below_a_kilobyte_a_second(
    world: OpenLeader, tmp_path: Path
) -> None:
    """Beats come thirty times as fast here; what one costs is what is bounded."""
    secret = (await world.post("/invites", pool=OTHER))["secret"]
    async with Counter.to(int(world.url.rpartition(":")[2])) as line:
        url, folder = f"http://127.0.0.1:{line.port}", tmp_path / "fellow"
        identity = await join(folder, url, secret, ("cpu:1GB:1",))
        setting = DaemonSetting(folder, tmp_path / "cache", is_warm=False)
        daemon = Daemon(replace(identity, heartbeat_s=BEAT_S / 30), setting)
        running = asyncio.create_task(daemon.run())
        assert world.leader is not None
        member = world.leader.office.registry.get(identity.fellow_id)

        async def beats(count: int) -> None:
            """Until so many more have come."""
            for _ in range(count):
                before, deadline = member.heard_at, time.monotonic() + 10
                while member.heard_at == before:
                    assert time.monotonic() < deadline
                    await asyncio.wait([running], timeout=0.01)

        await beats(3)
        began, connections = line.bytes_, line.connections
        await beats(20)
        beat_bytes = (line.bytes_ - began) / 20
        assert line.connections == connections, "a connection is kept"
        (load,) = member.loads
        assert (load.memory_bytes, load.busy) == (NOTHING, NOTHING)

        link = daemon._link  # another one would be a second daemon with its credential
        await link.orders(-1)
        began = line.bytes_
        await link.orders(-1)
        orders_bytes = line.bytes_ - began
        daemon.stop()
        await asyncio.wait_for(running, 10)
    rate = beat_bytes / BEAT_S + orders_bytes / HOLD_S
    assert beat_bytes > 100
    assert rate <= LIMIT_BYTES_S / 2, (beat_bytes, orders_bytes)
    print(f"{beat_bytes=:.0f} {orders_bytes=:.0f} {rate=:.0f}")


async def test_a_leader_that_does_not_know_a_machine_asks_for_all_of_it(
    world: OpenLeader, tmp_path: Path
) -> None:
    secret = (await world.post("/invites", pool=OTHER))["secret"]
    identity = await join(tmp_path / "fellow", world.url, secret, ("cpu:1GB:1",))
    setting = DaemonSetting(tmp_path / "fellow", tmp_path / "cache", is_warm=False)
    daemon = Daemon(replace(identity, heartbeat_s=0.1), setting)
    running = asyncio.create_task(daemon.run())
    assert world.leader is not None
    member = world.leader.office.registry.get(identity.fellow_id)

    async def known() -> None:
        deadline = time.monotonic() + 10
        while member.beat is None:
            assert time.monotonic() < deadline
            await asyncio.wait([running], timeout=0.01)

    await known()
    member.beat = None  # as after a restart
    await known()
    assert member.cards()[0].total_bytes == 10**9
    daemon.stop()
    await asyncio.wait_for(running, 10)


def a_beat() -> Heartbeat:
    machine = MachineReport(
        hostname="box", system="Linux", cores=4, memory_bytes=16, memory_free_bytes=12,
        disk_free_bytes=100, version="1", listen_address="127.0.0.1",
    )  # fmt: skip
    card = CardReport(
        index=0, kind="cpu", name="CPU", uuid="cpu-0", total_bytes=4, free_bytes=3,
        number_formats=["float32"],
    )  # fmt: skip
    return Heartbeat(protocol=1, fellow_id="f-aaaaaaaa", machine=machine, cards=[card])


def test_a_short_heartbeat_stands_for_the_whole_one() -> None:
    before = a_beat()
    card = before.cards[0].model_copy(update={"free_bytes": None})
    machine = before.machine.model_copy(update={"memory_free_bytes": 1, "disk_free_bytes": None})
    now = before.model_copy(update={"cards": [card], "machine": machine, "sent_bytes": 9})
    short = shortened(now, before)
    assert short is not None
    assert lengthened(ShortBeat.model_validate_json(short.model_dump_json()), before) == now


def test_whatever_else_has_changed_is_told_in_full() -> None:
    before = a_beat()
    assert shortened(before, None) is None
    moved = before.machine.model_copy(update={"hostname": "other"})
    assert shortened(before.model_copy(update={"machine": moved}), before) is None
    assert shortened(before.model_copy(update={"cards": []}), before) is None
    named = before.cards[0].model_copy(update={"name": "another"})
    assert shortened(before.model_copy(update={"cards": [named]}), before) is None
    short = shortened(before, before)
    assert short is not None
    assert lengthened(short, None) is None
    assert lengthened(short, before.model_copy(update={"cards": []})) is None
