"""Random schedules of faults through the real leader in virtual time.

python -m tests.simulation.run --schedules 10000 --seed 1      a run; stops at the first break
python -m tests.simulation.run --replay 1/4711                 one schedule again, with its trace
"""

import argparse
import asyncio
import gc
import itertools
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from control.store import database
from tests.leader_twins import POOL, job_config
from tests.simulation.faults import draw, play
from tests.simulation.virtual_time import InlineConnection, passed, run_virtual
from tests.simulation.world import World, template
from transport.errors import SwarmError

STEPS, EVERY = 8, 2
FAULTS_WITHIN_S = 18.0
CALM_S = 600.0
"""How long everything is up at the end before it must have come to rest."""
MEMORY = Path("/dev/shm")
COLLECT_EVERY = 20
_worlds = itertools.count(1)


@dataclass
class Ran:
    """What one schedule came to."""

    seed: str
    trace: list[str]
    counts: Counter[str]
    virtual_s: float
    faults: list[str] = field(default_factory=list)


@contextmanager
def start() -> Iterator[tuple[Path, list[str]]]:
    """A template in memory, and the database without its thread."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        fellows = asyncio.run(template(Path(folder) / "start"))
        with mock.patch.object(database, "_Connection", InlineConnection), _rare_collections():
            yield Path(folder), fellows


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Look for garbage between schedules only, and not among what was there before: a tenth of the
    time would go there.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def run_schedule(folder: Path, fellows: list[str], seed: str) -> Ran:
    """Play one schedule in a world of its own.

    Raises:
        Broken: an invariant does not hold; its text names the seed.
    """
    world_folder = folder / "world"
    try:
        return run_virtual(_schedule(folder / "start", world_folder, fellows, seed))
    finally:
        shutil.rmtree(world_folder, ignore_errors=True)
        if next(_worlds) % COLLECT_EVERY == 0:
            gc.collect()


async def _schedule(start: Path, folder: Path, fellows: list[str], seed: str) -> Ran:
    faults = draw(seed, len(fellows), FAULTS_WITHIN_S)
    async with World.open(start, folder, fellows, seed) as world:
        happening = asyncio.ensure_future(play(world, faults))
        await _submit(world)
        await happening
        await _come_to_rest(world)
        await world.watch.check_end()
        counts = Counter(world.watch.counts)
        at = world.clock.monotonic()
        return Ran(seed, world.watch.told, counts, at, [str(fault) for fault in faults])


async def _submit(world: World) -> None:
    """An owner who tries until the leader has the job; the same request is the same job."""
    # Three of the four machines: one stands by.
    config = {
        **job_config(steps=STEPS, snapshot_every_steps=EVERY),
        "min_workers": 3,
        "max_workers": 3,
    }
    while True:
        try:
            job = await world.ask(
                "jobs_submit", pool=POOL, config=config, unpinned=True, request_id="one"
            )
        except (SwarmError, AttributeError):
            await passed(1.0)
        else:
            return world.watch.accepted(job.job_id)


async def _come_to_rest(world: World) -> None:
    for _ in range(round(CALM_S / 5)):
        await passed(5)
        await world.watch.check()
        listed = await world.ask("jobs_list", pool=POOL)
        if all(job.state in ("completed", "failed", "cancelled") for job in listed.jobs):
            break
    await passed(10)


def main() -> None:
    """Run schedules and say how it went."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--schedules", type=int, default=1000)
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--replay", default="")
    asked = words.parse_args()
    if asked.replay:
        with start() as (folder, fellows):
            ran = run_schedule(folder, fellows, asked.replay)
        print("\n".join([*ran.faults, *ran.trace]))
        return
    began = time.monotonic()
    counts, virtual_s = Counter[str](), 0.0
    with start() as (folder, fellows):
        for number in range(asked.schedules):
            ran = run_schedule(folder, fellows, f"{asked.seed}/{number}")
            counts += ran.counts
            virtual_s += ran.virtual_s
            if number % 100 == 99:
                print(f"{number + 1} schedules", file=sys.stderr)
    seconds = time.monotonic() - began
    print(f"{asked.schedules} schedules of seed {asked.seed}, no invariant broken")
    print(f"{asked.schedules / seconds:.1f} schedules/s, {virtual_s / seconds:.0f} x real time")
    print(", ".join(f"{what} {num}" for what, num in sorted(counts.items())))


if __name__ == "__main__":
    main()
