"""A disk that is full: whatever would be written is refused, the leader stays, and works again."""

import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.flow.open_leader import JOB, POOL, join_fellow
from tests.flow.refusals import World, check, everything, rest_told
from tests.flow.refusing_leaders import join_ready, process_world

pytestmark = pytest.mark.usefixtures("told_where")

DISK = "16m"
TEXT = "the word was with all of them\n" * 20_000  # 600 kB


def has_mounts(folder: Path) -> bool:
    """Whether this machine lets us have a small disk of our own."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    words = ["unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    return subprocess.run(words, capture_output=True, timeout=10, check=False).returncode == 0


@pytest.fixture(scope="module")
async def world(
    tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> AsyncIterator[World]:
    """A leader whose data folder is a disk of 16 MB, in a mount namespace of its own."""
    folder = tmp_path_factory.mktemp("leader")
    (folder / "data").mkdir()
    if not has_mounts(folder / "data"):
        pytest.skip("needs root, for a disk of its own")
    data = folder / "data"
    script = f'mount -t tmpfs -o size={DISK} tmpfs "$0" && exec "$@"'
    before = ("unshare", "-m", "sh", "-c", script, str(data))
    async with process_world(folder, *before, seen_at=f"/proc/{{pid}}/root{data}") as opened:
        yield opened


class FullDisk:
    """The leader's disk without one free byte, until `free`."""

    def __init__(self, data: Path) -> None:
        self.ballast = data / "ballast"

    def fill(self) -> None:
        """Write until nothing more goes in."""
        with self.ballast.open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                try:
                    while file.write(b"x" * size) == size:
                        pass
                except OSError:
                    continue

    def free(self) -> None:
        """Give the space back."""
        self.ballast.unlink(missing_ok=True)


async def report(
    world: World, fellow_id: str, credential: str, sequence: int, job: str = "j-zzzzzzzz"
) -> Any:
    """What the fellows' door answers to a report."""
    line = {"kind": "log", "job_id": job, "attempt": 1, "stage": 0, "at": 1.0,
            "level": "info", "text": "hello"}  # fmt: skip
    batch = {"protocol": 1, "fellow_id": fellow_id,
             "reports": [{"sequence": sequence, "report": line}]}  # fmt: skip
    async with world.http(credential) as client:
        return await client.post("/fellow/v1/reports", json=batch)


async def test_a_full_disk_refuses_every_change_and_the_leader_works_again_after(
    world: World,
) -> None:
    fellow_id, credential = await join_fellow(world, POOL)
    shown = await world.post("/jobs/plan", pool=POOL, config=JOB)
    await world.post("/buckets", pool=POOL, bucket="fresh")
    fresh = {"pool": POOL, "name": "a.txt", "content": TEXT[:9000]}
    await world.post("/buckets/fresh/files", **fresh)
    disk = FullDisk(world.data)
    disk.fill()
    try:
        rows = {"pool": POOL, "bucket": "words", "name": "b.txt", "content": TEXT}
        said = ("the leader's disk is full", "free space in the leader's data folder")
        await world.refused("buckets_add", rows, "storage-full", *said)
        ask = {"pool": POOL, "config": JOB, "plan_id": shown["plan_id"]}
        await world.refused("jobs_submit", ask, "storage-full", *said)
        await world.refused("pools_create", {"pool": "ann/x"}, "storage-full", *said)
        longer = JOB | {"data": {"bucket": "fresh"}}
        await world.refused(
            "jobs_plan", {"pool": POOL, "config": longer}, "storage-full", *said, but=("cli",)
        )
        config = {"name": "tiny2", "file": "config.json", "content": "{}"}
        await world.refused("models_add", config, "storage-full", *said, but=("cli",))
        before = everything(world.data)
        told = rest_told(await report(world, fellow_id, credential, 1))
        check(told, "storage-full", said)
        async with world.http() as client:
            for path in ("/api/v1/pools", "/api/v1/jobs", "/api/v1/buckets", "/healthz"):
                assert (await client.get(path)).status_code == 200
        assert everything(world.data) == before
    finally:
        disk.free()
    assert (await world.post("/jobs", **ask))["state"] in ("starting", "pending")
    assert (await world.post("/buckets/words/files", **rows))["files"] == 2
    taken = await report(world, fellow_id, credential, 1)
    assert (taken.status_code, taken.json()["committed"]) == (200, 1)


async def test_a_log_line_on_a_full_disk_is_taken_once_there_is_room(world: World) -> None:
    job, fellow_id, credential = await running_job(world)
    disk = FullDisk(world.data)
    disk.fill()
    try:
        before = everything(world.data)
        told = rest_told(await report(world, fellow_id, credential, 1, job))
        check(told, "storage-full", ("disk is full",))
        assert everything(world.data) == before
    finally:
        disk.free()
    taken = await report(world, fellow_id, credential, 1, job)
    assert (taken.status_code, taken.json()["committed"]) == (200, 1)
    async with world.http() as client:
        lines = (await client.get(f"/api/v1/jobs/{job}/logs")).json()["lines"]
    assert [line["untrusted_text"] for line in lines] == ["hello"]


async def running_job(world: World) -> tuple[str, str, str]:
    """(job, fellow, credential) of a job whose one stage that fellow has."""
    pool = "ann/full"
    await world.post("/pools", pool=pool)
    await world.post("/buckets", pool=pool, bucket="words")
    rows = {"pool": pool, "name": "a.txt", "content": TEXT[:6000]}
    await world.post("/buckets/words/files", **rows)
    fellow_id, credential = await join_ready(world, pool)
    job = await world.post("/jobs", pool=pool, config=JOB, unpinned=True)
    assert [stage["fellow_id"] for stage in job["stages"]] == [fellow_id], job["reason"]
    return job["job_id"], fellow_id, credential
