"""Saved states at the leader: a step counts when every file is there and right, and not before."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from control.snapshots.keeper import SnapshotKey
from mcp_server.desk import Desk
from mcp_server.office import Promise
from tests.leader_twins import POOL, Fellow, Pool, job_config, one_chunk, open_pool, write_model
from tests.saved_files import saved_bytes, tensors_of
from transport.errors import SwarmError
from transport.orders import StageOrder

STEPS = 100


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    async with open_pool(tmp_path) as made:
        await made.add_model(write_model(tmp_path / "model"))
        await made.add_text()
        yield made


@dataclass(frozen=True)
class Running:
    """A running job of two stages, for tests that change nothing that others look at."""

    pool: Pool
    job_id: str
    first: Fellow
    second: Fellow


@pytest.fixture(scope="module")
async def running(
    tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> AsyncIterator[Running]:
    folder = tmp_path_factory.mktemp("running")
    async with open_pool(folder) as made:
        await made.add_model(write_model(folder / "model"))
        await made.add_text()
        yield Running(made, *await started(made))


async def started(pool: Pool) -> tuple[str, Fellow, Fellow]:
    """A running job of two stages."""
    for _ in range(2):
        await pool.add_fellow()
    config = job_config(steps=STEPS)
    job = await pool.ask("jobs_submit", pool=POOL, config=config, unpinned=True)
    first, second = sorted(pool.fellows, key=lambda one: one.assignment().order.stage)
    for fellow in (first, second):
        await fellow.bind()
        await fellow.load()
    return job.job_id, first, second


def key_of(fellow: Fellow, step: int) -> SnapshotKey:
    order = fellow.assignment().order
    return SnapshotKey(fellow.fellow_id, order.job_id, order.attempt, order.stage, step)


async def send(pool: Pool, key: SnapshotKey, data: bytes, promised: Promise | None = None) -> None:
    """Upload, as the fellows' door hands it on."""
    told = promised or Promise(hashlib.sha256(data).hexdigest(), len(data))
    await Desk(pool.leader).take_snapshot(key, one_chunk(data), told)


async def save(pool: Pool, fellow: Fellow, step: int) -> bytes:
    data = saved_bytes(fellow.assignment().order, step)
    await send(pool, key_of(fellow, step), data)
    return data


async def refused(pool: Pool, key: SnapshotKey, data: bytes, **more: Promise) -> SwarmError:
    with pytest.raises(SwarmError) as refusal:
        await send(pool, key, data, **more)
    assert not list(pool.leader.incoming.iterdir())
    return refusal.value


def on_disk(pool: Pool) -> list[str]:
    folder = pool.settings.data / "jobs"
    return sorted(
        str(path.relative_to(folder)).partition("snapshots/")[2]
        for path in folder.rglob("stage-*.safetensors")
    )


async def test_a_step_counts_when_the_last_file_is_there_and_two_newest_are_kept(
    pool: Pool,
) -> None:
    job_id, first, second = await started(pool)
    await save(pool, first, 10)
    assert (await pool.ask("jobs_get", job_id=job_id)).saved_step is None
    await save(pool, second, 10)
    view = await pool.ask("jobs_get", job_id=job_id)
    assert (view.saved_step, view.saved_at) == (10, pool.clock.now())
    for step in (20, 30):
        await save(pool, second, step)
        await save(pool, first, step)
    await save(pool, first, 40)
    told = await pool.ask("jobs_snapshots", job_id=job_id)
    assert [(row.step, len(row.files)) for row in told.steps] == [(30, 2), (20, 2)]
    assert (await pool.ask("jobs_get", job_id=job_id)).saved_step == 30
    assert [name for name in on_disk(pool) if "step-10" in name] == []
    found = await pool.leader.office.snapshots.file(job_id, 30, 1)
    assert found is not None
    assert hashlib.sha256(found.path.read_bytes()).hexdigest() == told.steps[0].files[1].sha256


async def test_the_same_upload_again_changes_nothing_and_other_bytes_are_refused(
    running: Running,
) -> None:
    pool, job_id, first, second = running.pool, running.job_id, running.first, running.second
    data = await save(pool, first, 10)
    await send(pool, key_of(first, 10), data)
    other = tensors_of(first.assignment().order)
    name = next(iter(other))
    other[name] = bytes(16)
    changed = saved_bytes(first.assignment().order, 10, other)
    assert (await refused(pool, key_of(first, 10), changed)).code == "conflict"
    await save(pool, second, 10)
    await send(pool, key_of(first, 10), data)
    assert (await pool.ask("jobs_get", job_id=job_id)).saved_step == 10


def damaged(data: bytes) -> bytes:
    return data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]


async def test_a_flipped_bit_is_found_by_the_whole_digest_and_by_the_tensor_s_own(
    running: Running,
) -> None:
    pool, first = running.pool, running.first
    good = saved_bytes(first.assignment().order, 20)
    promised = Promise(hashlib.sha256(good).hexdigest(), len(good))
    refusal = await refused(pool, key_of(first, 20), damaged(good), promised=promised)
    assert "promised" in refusal.message
    refusal = await refused(pool, key_of(first, 20), damaged(good))
    assert "digest" in refusal.message


def bad_files(order: StageOrder) -> list[tuple[str, bytes]]:
    """Words of the refusal, and a file of step 40 that is right but for that."""
    other = {"job_id": "j-aaaaaaaa", "step": "7", "stage": "7", "attempt": "7", "first_layer": "7"}
    made = [
        (f"says {key}", saved_bytes(order, 40, metadata={key: value}))
        for key, value in other.items()
    ]
    good = tensors_of(order)
    names = (
        "weight.../../etc/passwd",
        "weight.layers.0/../q.lora_A",
        "/weight.layers.0.q",
        "weight.model.layers.0\x00.q",
        "layers",
    )
    for name in names:
        data = saved_bytes(order, 40, good | {name: bytes(16)})
        made.append(("no name of a tensor", data))
    elsewhere = "weight.model.layers.3.self_attn.q_proj.lora_A.weight"
    made.append(("is not of layers 0-1", saved_bytes(order, 40, good | {elsewhere: bytes(16)})))
    moment = next(name for name in good if name.startswith("exp_avg_sq."))
    for value in (np.nan, np.inf):
        broken = np.array([1, value, 2, 3], dtype="<f4").tobytes()
        made.append(("not a finite number", saved_bytes(order, 40, good | {moment: broken})))
    made.append(("digests", saved_bytes(order, 40, metadata={"digests": "{}"})))
    made.append(("whole safetensors", saved_bytes(order, 40)[:-5]))
    return made


async def test_files_of_others_bad_names_and_numbers_that_are_not_finite_are_refused(
    running: Running,
) -> None:
    pool, first = running.pool, running.first
    for why, data in bad_files(first.assignment().order):
        refusal = await refused(pool, key_of(first, 40), data)
        assert refusal.code == "invalid-input"
        assert why in refusal.message
    assert not [name for name in on_disk(pool) if "step-40" in name]
    await save(pool, first, 40)


async def test_a_size_that_was_not_declared_or_a_broken_upload_leaves_nothing_behind(
    running: Running,
) -> None:
    pool, first = running.pool, running.first
    data = saved_bytes(first.assignment().order, 60)
    digest = hashlib.sha256(data).hexdigest()
    promise = Promise(digest, len(data) // 2)
    assert (await refused(pool, key_of(first, 60), data, promised=promise)).code == "too-large"
    promise = Promise(digest, len(data))
    half = await refused(pool, key_of(first, 60), data[: len(data) // 2], promised=promise)
    assert half.code == "invalid-input"

    async def broken() -> AsyncIterator[bytes]:
        yield data[:100]
        raise EOFError

    promised = Promise(hashlib.sha256(data).hexdigest(), len(data))
    with pytest.raises(EOFError):
        await Desk(pool.leader).take_snapshot(key_of(first, 60), broken(), promised)
    assert not list(pool.leader.incoming.iterdir())
    await save(pool, first, 60)


async def test_a_step_that_was_never_planned_and_a_stage_of_another_are_refused(
    running: Running,
) -> None:
    pool, first, second = running.pool, running.first, running.second
    order = first.assignment().order
    for step in (0, -1, STEPS, STEPS + 1):
        key = key_of(first, step)
        assert (await refused(pool, key, saved_bytes(order, step))).code == "invalid-input"
    key = SnapshotKey(second.fellow_id, order.job_id, 1, order.stage, 10)
    assert (await refused(pool, key, saved_bytes(order, 10))).code == "not-found"
    stale = SnapshotKey(first.fellow_id, order.job_id, 2, order.stage, 10)
    assert (await refused(pool, stale, saved_bytes(order, 10))).code == "not-found"


async def test_a_full_owner_pauses_saving_with_the_reason_and_the_run_goes_on(
    pool: Pool,
) -> None:
    job_id, first, second = await started(pool)
    await save(pool, first, 10)
    used = (await pool.ask("jobs_snapshots", job_id=job_id)).storage_used_bytes
    terms = pool.leader.office.snapshots._terms
    object.__setattr__(terms, "limit_bytes", used + 10)
    refusal = await refused(pool, key_of(second, 10), saved_bytes(second.assignment().order, 10))
    assert refusal.code == "storage-full"
    view = await pool.ask("jobs_get", job_id=job_id)
    assert (view.state, view.saved_step) == ("running", None)
    assert "storage of ada is full" in view.saving_paused
    await second.report(second.step(11, 3.0))
    object.__setattr__(terms, "limit_bytes", 10**9)
    await save(pool, first, 20)
    await save(pool, second, 20)
    view = await pool.ask("jobs_get", job_id=job_id)
    assert (view.step, view.saved_step, view.saving_paused) == (11, 20, "")
    assert not [name for name in on_disk(pool) if "step-10" in name]


async def test_two_uploads_at_once_cannot_share_the_same_room(pool: Pool) -> None:
    job_id, first, second = await started(pool)
    used = (await pool.ask("jobs_snapshots", job_id=job_id)).storage_used_bytes
    data = [saved_bytes(fellow.assignment().order, 10) for fellow in (first, second)]
    terms = pool.leader.office.snapshots._terms
    object.__setattr__(terms, "limit_bytes", used + len(data[0]) + len(data[1]) - 1)
    told = await asyncio.gather(
        *(send(pool, key_of(f, 10), d) for f, d in zip((first, second), data)),
        return_exceptions=True,
    )
    (refusal,) = [one for one in told if isinstance(one, SwarmError)]
    assert refusal.code == "storage-full"


async def test_a_restart_forgets_what_a_crash_left_half_done(pool: Pool) -> None:
    job_id, first, second = await started(pool)
    for step in (10, 20):
        await save(pool, first, step)
        await save(pool, second, step)
    keeper = pool.leader.office.snapshots
    keeper.path(job_id, (1, 20), 1).unlink()
    orphan = keeper.path(job_id, (1, 30), 0)
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"written before its row")
    await pool.reopen()
    view = await pool.ask("jobs_get", job_id=job_id)
    assert (view.state, view.saved_step) == ("running", 10)
    assert on_disk(pool) == ["attempt-1/step-10/stage-0.safetensors",
                             "attempt-1/step-10/stage-1.safetensors"]  # fmt: skip


async def test_a_step_whose_file_was_damaged_on_the_disk_gives_way_to_the_one_before(
    pool: Pool,
) -> None:
    job_id, first, second = await started(pool)
    for step in (10, 20):
        await save(pool, first, step)
        await save(pool, second, step)
    path = pool.leader.office.snapshots.path(job_id, (1, 20), 1)
    path.write_bytes(damaged(path.read_bytes()))
    files = await pool.leader.office.snapshots.newest_whole(job_id)
    assert {file.step for file in files} == {10}
    assert (await pool.ask("jobs_get", job_id=job_id)).saved_step == 10


async def test_the_newest_step_outlives_its_job_by_seven_days(pool: Pool) -> None:
    job_id, first, second = await started(pool)
    for step in (10, 20):
        await save(pool, first, step)
        await save(pool, second, step)
    late = key_of(first, 30)
    data = saved_bytes(first.assignment().order, 30)
    await pool.ask("jobs_cancel", job_id=job_id)
    assert (await refused(pool, late, data)).code == "conflict"
    await pool.leader._keep_house()
    assert {name.split("/")[1] for name in on_disk(pool)} == {"step-20"}
    await pool.clock.advance(6.9 * 86_400)
    await pool.leader._keep_house()
    assert (await pool.ask("jobs_snapshots", job_id=job_id)).steps[0].step == 20
    await pool.clock.advance(0.2 * 86_400)
    await pool.leader._keep_house()
    assert on_disk(pool) == []
    assert (await pool.ask("jobs_get", job_id=job_id)).saved_step is None
