"""What goes wrong in a world: a schedule drawn from a seed, and how each fault is done."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.simulation.machine import Machine
from tests.simulation.virtual_time import InlineConnection, passed
from tests.simulation.world import World

KINDS = (
    "kill machine",
    "kill worker",
    "freeze machine",
    "cut both ways",
    "cut towards leader",
    "cut towards machine",
    "bad network",
    "kill leader",
    "restart leader",
    "fill disk",
    "wrong clock",
)
DAY_S = 86_400.0


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong for a while."""

    at_s: float
    kind: str
    machine: int
    lasts_s: float

    def __str__(self) -> str:
        return f"{self.at_s:.1f} s: {self.kind} {self.machine} for {self.lasts_s:.1f} s"


def draw(seed: str, machines: int, within_s: float) -> list[Fault]:
    """Five to nine faults in order of time."""
    dice = random.Random(f"faults {seed}")
    faults = [
        Fault(
            dice.uniform(0.5, within_s),
            dice.choice(KINDS),
            dice.randrange(machines),
            dice.choice((0.5, 3.0, 12.0, 25.0, 60.0)) * dice.uniform(0.7, 1.3),
        )
        for _ in range(dice.randint(5, 9))
    ]
    return sorted(faults, key=lambda fault: fault.at_s)


async def play(world: World, faults: list[Fault]) -> None:
    """Let them happen, each at its time; returns when the last one is over."""
    await asyncio.gather(*(_happen(world, fault) for fault in faults))


async def _happen(world: World, fault: Fault) -> None:
    await passed(fault.at_s)
    world.watch.note("fault", kind=fault.kind.replace(" ", "-"), machine=fault.machine)
    await world.watch.check()
    await _DOES[fault.kind](world, world.machines[fault.machine], fault.lasts_s)
    await world.watch.check()


async def _kill_machine(world: World, machine: Machine, lasts_s: float) -> None:
    if machine.is_up:
        machine.kill()
        await passed(lasts_s)
        machine.start()


async def _kill_worker(world: World, machine: Machine, lasts_s: float) -> None:
    for stage in list(machine.stages.values()):
        stage.crash()


async def _freeze(world: World, machine: Machine, lasts_s: float) -> None:
    await machine.freeze(lasts_s)


def _cut(*ways: str) -> Callable[[World, Machine, float], Awaitable[None]]:
    async def cut(world: World, machine: Machine, lasts_s: float) -> None:
        machine.way.weather.cut.update(ways)
        await passed(lasts_s)
        machine.way.weather.cut.clear()

    return cut


async def _bad_network(world: World, machine: Machine, lasts_s: float) -> None:
    weather = machine.way.weather
    weather.delay_s, weather.lost, weather.repeated = 1.0, 0.3, 0.3
    await passed(lasts_s)
    weather.delay_s, weather.lost, weather.repeated = 0.01, 0.0, 0.0


async def _kill_leader(world: World, machine: Machine, lasts_s: float) -> None:
    if world.door.is_open:
        await world.kill_leader()
        await passed(lasts_s)
        await world.start_leader()


async def _restart_leader(world: World, machine: Machine, lasts_s: float) -> None:
    if world.door.is_open:
        await world.stop_leader()
        await world.start_leader()


async def _fill_disk(world: World, machine: Machine, lasts_s: float) -> None:
    InlineConnection.opened[-1].fill_disk(is_full=True)
    await passed(lasts_s)
    InlineConnection.opened[-1].fill_disk(is_full=False)


async def _wrong_clock(world: World, machine: Machine, lasts_s: float) -> None:
    world.clock.off_s = DAY_S
    await passed(lasts_s)
    world.clock.off_s = 0.0


_DOES: dict[str, Callable[[World, Machine, float], Awaitable[None]]] = {
    "kill machine": _kill_machine,
    "kill worker": _kill_worker,
    "freeze machine": _freeze,
    "cut both ways": _cut("out", "in"),
    "cut towards leader": _cut("out"),
    "cut towards machine": _cut("in"),
    "bad network": _bad_network,
    "kill leader": _kill_leader,
    "restart leader": _restart_leader,
    "fill disk": _fill_disk,
    "wrong clock": _wrong_clock,
}
