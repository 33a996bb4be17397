"""Measurements on one machine come one after another."""

import asyncio

from agents.fellow.turn import measuring_turn


async def test_two_measurements_at_once_wait_for_each_other() -> None:
    running, most = 0, 0

    async def measure() -> bool:
        nonlocal running, most
        async with measuring_turn(10, "\0swarm-test-turn") as came:
            running += 1
            most = max(most, running)
            await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=0.05)
            running -= 1
        return came

    assert all(await asyncio.gather(measure(), measure(), measure()))
    assert most == 1


async def test_who_waited_long_enough_goes_on_without_a_turn() -> None:
    name = "\0swarm-test-late"
    async with measuring_turn(1, name) as first, measuring_turn(0, name) as second:
        assert (first, second) == (True, False)
