"""Measuring a fellow measures its links too: two real daemons, a real leader, real processes."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.fellow.daemon import Daemon, DaemonSetting
from agents.fellow.joining import join
from control.fellows.link_tests import Prober, introduced, order_of, order_of_peer
from control.store import link_figures
from tests.flow.open_leader import OTHER, OpenLeader, open_leader
from transport.cards import Heartbeat, MachineReport, ProbeEnd

FIGURES = '{"speeds":[{"number_format":"float32","tflops":0.5,"measured_at":1.0}]}'
PROBE = ("/bin/sh", "-c", f"echo '{FIGURES}'")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[OpenLeader]:
    async with open_leader(tmp_path / "leader") as opened:
        yield opened


@asynccontextmanager
async def a_fellow(world: OpenLeader, folder: Path) -> AsyncIterator[str]:
    """A running daemon; its fellow_id."""
    secret = (await world.post("/invites", pool=OTHER))["secret"]
    identity = await join(folder, world.url, secret, ("cpu:1GB:1",))
    setting = DaemonSetting(folder, folder / "cache", is_warm=False, probe=PROBE)
    daemon = Daemon(replace(identity, heartbeat_s=0.2), setting)
    running = asyncio.create_task(daemon.run())
    try:
        yield identity.fellow_id
    finally:
        daemon.stop()
        await asyncio.wait_for(running, 10)


async def until(truth: Callable[[], Any], limit_s: float = 30.0) -> Any:
    """Wait until something is so."""
    deadline, never = time.monotonic() + limit_s, asyncio.Event()
    while not (found := truth()):
        assert time.monotonic() < deadline, "it did not come about"
        try:
            await asyncio.wait_for(never.wait(), 0.02)
        except TimeoutError:
            continue
    return found


async def test_a_measured_fellow_knows_its_links_and_plans_see_them(
    world: OpenLeader, tmp_path: Path
) -> None:
    assert world.leader is not None
    office = world.leader.office
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(a_fellow(world, tmp_path / "one"))
        other = await stack.enter_async_context(a_fellow(world, tmp_path / "other"))
        registry = office.registry
        await until(lambda: all(registry.get(name).online for name in (one, other)))
        shown = await world.post(f"/fellows/{one}/measure")
        assert shown["fellow"]["status"] == "measuring"
        await until(lambda: (one, other) in registry.link_figures and not _busy(world, one, other))

        for ends in ((one, other), (other, one), (one, "leader"), ("leader", one)):
            figure = registry.link_figures[ends]
            assert 1e6 < figure.bytes_s < 1e11
            assert 0 < figure.latency_s < 1
        assert registry.link_figures[one, other].path == "local"
        stored = await office.database.read(link_figures.every)
        assert {(row.sender, row.taker) for row in stored} == set(registry.link_figures)
        links = office.planner._links(OTHER)
        assert links is not None
        assert links.between(one, other) is not None
        async with world.http() as client:
            view = (await client.get(f"/api/v1/fellows/{one}")).json()
        assert {(link["sender"], link["taker"]) for link in view["links"]} == set(
            registry.link_figures
        )


def _busy(world: OpenLeader, *names: str) -> bool:
    assert world.leader is not None
    return any(world.leader.office.registry.get(name).is_measuring for name in names)


def beat(fellow_id: str, *ends: ProbeEnd) -> Heartbeat:
    machine = MachineReport(
        hostname="box", system="Linux", cores=1, memory_bytes=1, memory_free_bytes=1,
        disk_free_bytes=None, version="1", listen_address="127.0.0.1",
    )  # fmt: skip
    return Heartbeat(protocol=1, fellow_id=fellow_id, machine=machine, cards=[], probes=list(ends))


def test_two_ends_are_introduced_once_both_are_known_and_only_once() -> None:
    one, other = "f-aaaaaaaa", "f-bbbbbbbb"
    asked = order_of("t", [other], links=True)
    answers = order_of_peer("t", one, other)
    name = asked.links[0].name
    ends = [
        ProbeEnd(name=name, public_key=letter * 40, endpoints=[f"tcp://10.0.0.{letter}:9"])
        for letter in "12"
    ]
    alone = Prober(one, asked, beat(one, ends[0])), Prober(other, answers, beat(other))
    assert introduced(*alone) is None
    both = alone[0], Prober(other, answers, beat(other, ends[1]))
    told = introduced(*both)
    assert told is not None
    dialled, dialling = (order.links[0].neighbour for order in told)
    assert dialled is not None
    assert dialling is not None
    assert (dialled.stage, dialled.public_key, dialled.endpoints) == (
        1,
        "2" * 40,
        ["tcp://10.0.0.2:9"],
    )
    assert (dialling.stage, dialling.public_key, dialling.endpoints) == (0, "1" * 40, [])
    again = introduced(replace(both[0], order=told[0]), replace(both[1], order=told[1]))
    assert again is None
    stranger = Prober("f-cccccccc", answers, both[1].beat)
    assert introduced(both[0], stranger) is None
