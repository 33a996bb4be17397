"""Jobs at work on fellows in plain code: started, stepping, saving, losing a stage."""

import hashlib

from control.snapshots.keeper import SnapshotKey
from mcp_server.desk import Desk
from mcp_server.office import Promise
from tests.leader_twins import POOL, Fellow, Pool, job_config, one_chunk
from tests.saved_files import saved_bytes
from transport.api.jobs import JobView
from transport.cards import StageStatus
from transport.reports import StageFailed

STEPS = 100


async def started(pool: Pool, num: int = 2, **train: object) -> tuple[str, list[Fellow]]:
    """A running job over `num` fellows, in order of stages."""
    for _ in range(num):
        await pool.add_fellow()
    config = {**job_config(steps=STEPS, **train), "min_workers": num, "max_workers": num}
    job = await pool.ask("jobs_submit", pool=POOL, config=config, unpinned=True)
    return job.job_id, await loaded(pool)


async def loaded(pool: Pool) -> list[Fellow]:
    """All stages bound and loaded; their fellows in order of stages."""
    working = [one for one in pool.fellows if runs(one)]
    by_stage = sorted(working, key=lambda one: one.assignment().order.stage)
    for fellow in by_stage:
        await fellow.bind()
    for fellow in by_stage:
        order = fellow.assignment().order
        fellow.phases = [
            StageStatus(
                job_id=order.job_id, attempt=order.attempt, stage=order.stage, phase="training"
            )
        ]
        await fellow.load()
        fellow.beat()
    return by_stage


def runs(fellow: Fellow) -> bool:
    desired = fellow.pool.leader.office.registry.desired(fellow.fellow_id).stages
    return any(not told.pause for told in desired)


async def let_go(pool: Pool, *fellows: Fellow) -> None:
    """The workers of these fellows have ended, and they say so."""
    await pool.clock.advance(1)
    for fellow in fellows:
        fellow.phases = []
        fellow.beat()
    await pool.leader.office.jobs.schedule()


async def steps(fellows: list[Fellow], first: int, last: int) -> None:
    for number in range(first, last + 1):
        for fellow in fellows:
            await fellow.report(fellow.step(number, 5.0 - number / 100))


async def save(pool: Pool, fellows: list[Fellow], step: int) -> None:
    for fellow in fellows:
        order = fellow.assignment().order
        data = saved_bytes(order, step)
        key = SnapshotKey(fellow.fellow_id, order.job_id, order.attempt, order.stage, step)
        promised = Promise(hashlib.sha256(data).hexdigest(), len(data))
        await Desk(pool.leader).take_snapshot(key, one_chunk(data), promised)


async def view(pool: Pool, job_id: str) -> JobView:
    told: JobView = await pool.ask("jobs_get", job_id=job_id)
    return told


async def crash(fellow: Fellow, **values: object) -> None:
    """Its worker dies, and its daemon tells."""
    told = {"code": "stage-failed", "message": "the worker process was killed", "lost": True}
    fellow.phases = []
    await fellow.report(StageFailed(**fellow.of(**{**told, **values})))


async def silent(pool: Pool, *others: Fellow, seconds: int = 20) -> None:
    """Time passes in which only the others beat."""
    for _ in range(seconds // 5):
        await pool.clock.advance(5)
        for fellow in others:
            fellow.beat()
        await pool.leader._sweep()
