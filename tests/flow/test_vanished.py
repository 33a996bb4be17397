"""A fellow that died is found at once, by two witnesses; one that only hiccups is left in peace."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from control.fellows.vanished import ALONE_AFTER_S, GONE_AFTER_S
from tests.flow.fellows_at_work import loaded, started, steps, view
from tests.leader_twins import Fellow, Pool, open_pool, write_model
from transport.cards import LinkStatus, PathKind

SOON_S = GONE_AFTER_S + 0.3


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    async with open_pool(tmp_path) as made:
        await made.add_model(write_model(tmp_path / "model"))
        await made.add_text()
        yield made


def asks(fellow: Fellow) -> "asyncio.Task[object]":
    """Its daemon's request for newer orders, held by the leader."""
    registry = fellow.pool.leader.office.registry
    revision = registry.get(fellow.fellow_id).revision
    return asyncio.ensure_future(registry.wait_orders(fellow.fellow_id, revision, 25.0))


async def dies(asking: "asyncio.Task[object]") -> None:
    """The system closes the connections of a process that is gone."""
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking


def tells(fellow: Fellow, path: PathKind) -> None:
    """Its next heartbeat says how it reaches the stage before or after its own."""
    (stage,) = fellow.phases
    link = LinkStatus(neighbour=1 - stage.stage, path=path, sent_bytes=1, received_bytes=1)
    fellow.phases = [stage.model_copy(update={"links": [link]})]
    fellow.beat()


async def after(pool: Pool, seconds: float) -> None:
    await pool.clock.advance(seconds)
    await pool.leader._lose_vanished()


async def one_stops_asking(pool: Pool) -> tuple[str, list[Fellow]]:
    """A running job of two stages, a fellow to stand by, and the second one's request cut off."""
    job_id, fellows = await started(pool)
    await pool.add_fellow()
    held = asks(fellows[1])
    await pool.clock.advance(1)
    await dies(held)
    return job_id, fellows


async def test_a_killed_fellow_is_lost_once_its_neighbour_has_lost_its_link_too(pool: Pool) -> None:
    job_id, (first, second) = await started(pool)
    other = await pool.add_fellow()
    await steps([first, second], 1, 2)
    held = [asks(one) for one in (first, second, other)]
    await pool.clock.advance(1)

    await dies(held[1])
    tells(first, "none")
    await after(pool, GONE_AFTER_S - 0.2)
    assert (await view(pool, job_id)).state == "running"
    await after(pool, 0.4)

    job = await view(pool, job_id)
    assert job.state == "recovering"
    assert f"{second.fellow_id} vanished (1.2 s ago it closed its connections" in job.reason
    assert f"stage 0 on {first.fellow_id} lost its link to it" in job.reason
    listed = await pool.ask("fellows_get", fellow_id=second.fellow_id)
    assert listed.fellow.status == "offline"
    for one in (held[0], held[2]):
        await dies(one)


@pytest.mark.parametrize("path", ["direct", "relay"])
async def test_a_fellow_that_asks_nothing_but_is_reached_by_its_neighbour_is_not_lost(
    pool: Pool, path: PathKind
) -> None:
    job_id, (first, _) = await one_stops_asking(pool)
    tells(first, path)
    await after(pool, 8)
    assert (await view(pool, job_id)).state == "running"


async def test_a_fellow_whose_links_are_down_but_that_asks_again_is_not_lost(pool: Pool) -> None:
    job_id, (first, second) = await one_stops_asking(pool)
    tells(first, "none")
    await pool.clock.advance(0.6)
    again = asks(second)
    await after(pool, 8)
    assert (await view(pool, job_id)).state == "running"
    await dies(again)


async def test_a_heartbeat_puts_the_end_off_by_a_second(pool: Pool) -> None:
    job_id, (first, second) = await one_stops_asking(pool)
    tells(first, "none")
    await pool.clock.advance(0.9)
    second.beat()
    await after(pool, 0.9)
    assert (await view(pool, job_id)).state == "running"
    await after(pool, 0.2)
    assert (await view(pool, job_id)).state == "recovering"


async def test_when_most_stop_asking_at_once_nobody_is_lost(pool: Pool) -> None:
    job_id, both = await started(pool)
    await pool.add_fellow()
    held = [asks(one) for one in both]
    await pool.clock.advance(1)
    for asking in held:
        await dies(asking)
    for fellow in both:
        tells(fellow, "none")
    await after(pool, SOON_S)
    assert (await view(pool, job_id)).state == "running"


async def test_a_fellow_that_runs_the_only_stage_has_more_time_as_nobody_can_bear_witness(
    pool: Pool,
) -> None:
    job_id, (lone,) = await started(pool, 1)
    await pool.add_fellow()
    held = asks(lone)
    await pool.clock.advance(1)
    await dies(held)
    await after(pool, ALONE_AFTER_S - 0.2)
    assert (await view(pool, job_id)).state == "running"
    await after(pool, 0.4)
    assert (await view(pool, job_id)).state == "recovering"


async def test_a_new_life_of_the_leader_takes_nobody_for_gone_whom_it_has_not_heard_ask(
    pool: Pool,
) -> None:
    job_id, (first, second) = await started(pool)
    await steps([first, second], 1, 2)
    held = [asks(one) for one in (first, second)]
    await pool.clock.advance(0.1)
    for one in held:
        await dies(one)
    await pool.reopen()
    tells(first, "none")
    second.beat()
    await after(pool, 10)
    assert (await view(pool, job_id)).state == "running"


async def test_a_fellow_that_comes_back_gets_work_again(pool: Pool) -> None:
    job_id, (first, second) = await one_stops_asking(pool)
    tells(first, "none")
    await after(pool, SOON_S)
    first.phases = []
    first.beat()
    second.phases = []
    second.beat()
    await pool.leader.office.jobs.schedule()
    job = await view(pool, job_id)
    assert (job.attempt, job.state) == (2, "recovering")
    assert {stage.fellow_id for stage in job.stages} == {first.fellow_id, second.fellow_id}
    await loaded(pool)
