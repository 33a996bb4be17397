"""`python -m tests.flow.upload_kills FOLDER`: kills a leader at every point of an upload.

A forked child opens the leader and receives the last file of a saved step, and is killed with
SIGKILL at its first point: before or after a sync, a rename, a removal, a commit, between two
pieces of the body. The next child dies at its second point, and so on, until one gets through.
After each death the leader is opened again: what was acknowledged is there, what is there is
whole, and what is charged is what lies on the disk. Prints one JSON object.
"""

import asyncio
import hashlib
import json
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

from control.clock import HandClock
from control.leader import Leader
from control.settings import Settings
from control.snapshots.keeper import SnapshotKey
from control.store import database, snapshots, storage
from control.store.database import Tx
from mcp_server.desk import Desk
from mcp_server.office import Promise
from tests.leader_twins import POOL, Pool, job_config, one_chunk, seeded_bytes, write_model
from tests.saved_files import saved_bytes

MOST_POINTS = 200


class Points:
    """Counts the points that a process passes; at one of them it dies."""

    def __init__(self, deadly: int) -> None:
        self.deadly = deadly
        self.passed: int | None = None
        """None while nothing is counted."""

    def here(self) -> None:
        """Pass a point, or die at it."""
        if self.passed is None:
            return
        self.passed += 1
        if self.passed == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, act: Callable[..., Any]) -> Callable[..., Any]:
        """The same act with a point before and behind it."""

        @wraps(act)
        def wrapped(*given: Any, **more: Any) -> Any:
            self.here()
            done = act(*given, **more)
            self.here()
            return done

        return wrapped

    def install(self) -> None:
        """Put points around all that changes a disk."""
        for name in ("fsync", "replace", "unlink", "rmdir"):
            setattr(os, name, self.around(getattr(os, name)))
        points = self

        class Counted(sqlite3.Connection):
            def execute(self, sql: str, *given: Any) -> sqlite3.Cursor:
                act = super().execute
                return (points.around(act) if sql == "COMMIT" else act)(sql, *given)

        database.sqlite3.connect = partial(sqlite3.connect, factory=Counted)  # type: ignore[attr-defined]


async def opened(folder: Path) -> Pool:
    settings, clock = Settings(data=folder / "leader"), HandClock()
    return Pool(await Leader.open(settings, clock, seeded_bytes(1)), clock, settings)


async def prepare(folder: Path) -> tuple[SnapshotKey, bytes]:
    """A job with two saved steps and half of a third; what its last file will be."""
    pool = await opened(folder)
    try:
        await pool.ask("pools_create", pool=POOL)
        await pool.add_model(write_model(folder / "model"))
        await pool.add_text()
        fellows = [await pool.add_fellow() for _ in range(2)]
        await pool.ask("jobs_submit", pool=POOL, config=job_config(steps=100), unpinned=True)
        fellows.sort(key=lambda fellow: fellow.assignment().order.stage)
        for fellow in fellows:
            await fellow.bind()
        for fellow in fellows:
            await fellow.load()
        last: tuple[SnapshotKey, bytes] | None = None
        for step in (10, 20, 30):
            for fellow in fellows:
                order = fellow.assignment().order
                key = SnapshotKey(fellow.fellow_id, order.job_id, 1, order.stage, step)
                last = key, saved_bytes(order, step)
                if (step, order.stage) != (30, 1):
                    await send(pool, *last)
        assert last is not None
        return last
    finally:
        await pool.leader.close()


async def send(pool: Pool, key: SnapshotKey, data: bytes, points: Points | None = None) -> None:
    promise = Promise(hashlib.sha256(data).hexdigest(), len(data))
    chunks = one_chunk(data) if points is None else _pieces(data, points)
    await Desk(pool.leader).take_snapshot(key, chunks, promise)


async def _pieces(data: bytes, points: Points) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 1000):
        points.here()
        yield data[start : start + 1000]


async def receive(folder: Path, key: SnapshotKey, data: bytes, points: Points, out: int) -> None:
    """In the child: take the file, and tell when it is acknowledged."""
    pool = await opened(folder)
    points.passed = 0
    await send(pool, key, data, points)
    points.here()
    os.write(out, b"!")
    points.here()


async def look(folder: Path, key: SnapshotKey, data: bytes, *, acknowledged: bool) -> bool:
    """Open the leader again; whether the file counts. Raises what must not be."""
    pool = await opened(folder)
    try:
        office = pool.leader.office
        row = await office.database.read(lambda tx: snapshots.find(tx, key.job_id, 1, 30, 1))
        assert row is not None or not acknowledged, "an acknowledged file is lost"
        assert (await pool.ask("jobs_get", job_id=key.job_id)).saved_step == (30 if row else 20)
        await _whole(pool)
        await send(pool, key, data)
        assert (await pool.ask("jobs_get", job_id=key.job_id)).saved_step == 30
        await _whole(pool)
        return row is not None
    finally:
        await pool.leader.close()


async def _whole(pool: Pool) -> None:
    office, data = pool.leader.office, pool.settings.data

    def charged(tx: Tx) -> int:
        return storage.used_bytes(tx, storage.owner_of(POOL))

    rows = await office.database.read(snapshots.every)
    for one in rows:
        path = office.snapshots.path(one.job_id, (one.attempt, one.step), one.stage)
        assert hashlib.sha256(path.read_bytes()).hexdigest() == one.sha256, "half a file is kept"
    lies = list(data.glob("jobs/*/snapshots/**/*.safetensors"))
    assert len(lies) == len(rows), "a file lies there that nobody is charged for"
    buckets = [path for path in data.glob("buckets/**/*") if path.is_file()]
    size = sum(path.stat().st_size for path in (*lies, *buckets))
    assert await office.database.read(charged) == size, "what is charged is not what lies there"
    assert not list(pool.leader.incoming.iterdir()), "half an upload was left behind"


def one_life(folder: Path, key: SnapshotKey, data: bytes, deadly: int) -> tuple[bool, bool]:
    """(whether the child died at its point, whether it had acknowledged the file)."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        points = Points(deadly)
        points.install()
        try:
            asyncio.run(receive(folder, key, data, points, writing))
        finally:
            os._exit(0)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    acknowledged = os.read(reading, 1) == b"!"
    os.close(reading)
    return os.WIFSIGNALED(status), acknowledged


def main(folder: Path) -> None:
    """Kill at every point; print what came of it."""
    start = folder / "start"
    key, data = asyncio.run(prepare(start))
    kept = unacknowledged = 0
    for deadly in range(1, MOST_POINTS):
        life = folder / "life"
        shutil.copytree(start, life)
        died, acknowledged = one_life(life, key, data, deadly)
        is_kept = asyncio.run(look(life, key, data, acknowledged=acknowledged))
        shutil.rmtree(life)
        kept += is_kept
        unacknowledged += is_kept and not acknowledged
        if not died:
            assert acknowledged
            break
    told = {"points": deadly - 1, "kept": kept, "kept_unacknowledged": unacknowledged}
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
