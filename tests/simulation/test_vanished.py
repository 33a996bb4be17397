"""How soon a loss is noticed, in virtual time, and what is no loss although connections close."""

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from tests.simulation.machine import Machine
from tests.simulation.run import _submit, start
from tests.simulation.virtual_time import passed, run_virtual
from tests.simulation.world import World
from transport.api.jobs import JobView

T = TypeVar("T")
Begun = tuple[Path, list[str]]
LOOK_S = 0.05


@pytest.fixture(scope="module")
def begun() -> Iterator[Begun]:
    with start() as (folder, fellows):
        yield folder, fellows


def lived(begun: Begun, name: str, story: Callable[[World], Awaitable[T]]) -> T:
    """What a story in a world of its own comes to, told once a job has done two steps."""
    folder, fellows = begun

    async def live() -> T:
        async with World.open(folder / "start", folder / name, fellows, name) as world:
            await _submit(world)
            while (await job_of(world)).step < 2:
                await passed(LOOK_S)
            return await story(world)

    return run_virtual(live())


async def job_of(world: World) -> JobView:
    listed = await world.ask("jobs_list")
    told: JobView = await world.ask("jobs_get", job_id=listed.jobs[0].job_id)
    return told


async def machine_of(world: World, stage: int) -> Machine:
    shown = (await job_of(world)).stages[stage]
    return next(one for one in world.machines if one.fellow_id == shown.fellow_id)


async def lost_after(world: World, most_s: float) -> float | None:
    """Seconds until the job has lost a stage; None when it has not by then."""
    began = world.clock.monotonic()
    while (waited := world.clock.monotonic() - began) <= most_s:
        job = await job_of(world)
        if job.state == "recovering" or job.attempt > 1:
            return waited
        await passed(LOOK_S)
    return None


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_killed_machine_is_lost_within_two_seconds(begun: Begun, stage: int) -> None:
    async def story(world: World) -> tuple[float | None, str]:
        (await machine_of(world, stage)).kill()
        after = await lost_after(world, 20)
        return after, (await job_of(world)).reason

    after, why = lived(begun, f"kill-{stage}", story)
    assert after is not None
    assert 1.0 <= after <= 2.0
    assert "vanished" in why


def test_a_frozen_machine_is_lost_within_fifteen_seconds(begun: Begun) -> None:
    async def story(world: World) -> float | None:
        machine = await machine_of(world, 1)
        machine.thawed.clear()
        return await lost_after(world, 20)

    after = lived(begun, "frozen", story)
    assert after is not None
    assert 8.0 <= after <= 15.0


def test_a_machine_that_the_leader_does_not_hear_for_a_while_is_no_loss(begun: Begun) -> None:
    async def story(world: World) -> float | None:
        machine = await machine_of(world, 1)
        machine.way.weather.cut.update(("out", "in"))
        await passed(4)
        machine.way.weather.cut.clear()
        return await lost_after(world, 6)

    assert lived(begun, "cut", story) is None


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_leader_that_starts_again_has_lost_nobody(begun: Begun, how: str) -> None:
    async def story(world: World) -> float | None:
        await (world.kill_leader() if how == "killed" else world.stop_leader())
        await passed(1.5)
        await world.start_leader()
        return await lost_after(world, 6)

    assert lived(begun, f"leader-{how}", story) is None
