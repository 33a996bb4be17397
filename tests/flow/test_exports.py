"""Whole checkpoints at the leader: who makes one, what is taken of it, and what goes wrong."""

import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from control.jobs.exports import KEEP_S, Piece
from control.store.files import sha256_of
from tests.leader_twins import Fellow, Pool, job_config, one_chunk, open_pool, write_model
from transport.errors import SwarmError
from transport.orders import ExportOrder
from transport.reports import ExportFailed


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    """A leader with two fellows and one finished job."""
    async with open_pool(tmp_path) as made:
        await made.add_fellow()
        await made.add_fellow()
        await made.add_model(write_model(tmp_path / "tiny"))
        await made.add_text()
        yield made


async def finished(pool: Pool) -> str:
    """Train one job to its end; its id."""
    job = await pool.ask("jobs_submit", pool="ada/lab", config=job_config(), unpinned=True)
    for fellow in pool.fellows:
        await fellow.bind()
    for fellow in pool.fellows:
        await fellow.load()
    last = next(one for one in pool.fellows if one.assignment().order.is_last)
    for number in range(1, 4):
        for fellow in pool.fellows:
            await fellow.report(fellow.step(number, 2.0))
    await last.evaluate("base", 0, 3.5)
    await last.evaluate("trained", 3, 1.5)
    for fellow in pool.fellows:
        await fellow.finish()
    ended = await pool.ask("jobs_wait", job_id=job.job_id, timeout_s=5)
    assert ended.state == "completed", ended
    for fellow in pool.fellows:
        fellow.beat()
    return str(job.job_id)


def order_of(fellow: Fellow) -> ExportOrder | None:
    return fellow.pool.leader.office.registry.desired(fellow.fellow_id).export


def holder(pool: Pool) -> tuple[Fellow, ExportOrder]:
    """The one fellow that has an export to make."""
    ((fellow, order),) = [(f, o) for f in pool.fellows if (o := order_of(f)) is not None]
    return fellow, order


async def send(fellow: Fellow, order: ExportOrder, name: str, data: bytes, **odd: Any) -> None:
    """One whole file, or what `odd` says of a piece."""
    told: dict[str, Any] = {
        "name": name,
        "sha256": hashlib.sha256(data).hexdigest(),
        "start": 0,
        "end": len(data),
        "size_bytes": len(data),
        **odd,
    }
    exports = fellow.pool.leader.office.exports
    piece = data[told["start"] : told["end"]]
    await exports.take(fellow.fellow_id, order.export_id, Piece(**told), one_chunk(piece))


async def test_a_fellow_is_told_and_what_it_brings_becomes_a_checkpoint_with_a_card(
    pool: Pool,
) -> None:
    job_id = await finished(pool)
    asked = await pool.ask("models_merge", job_id=job_id, dtype="bfloat16")
    assert asked.merged.state == "running"
    fellow, order = holder(pool)
    assert (order.kind, order.scale, order.dtype) == ("adapter", 2.0, "bfloat16")
    exports = pool.leader.office.exports
    trained = await exports.trained(fellow.fellow_id, order.export_id)
    assert (trained.sha256, trained.size_bytes) == (order.trained_sha256, order.trained_bytes)
    assert sha256_of(trained.path) == order.trained_sha256

    data = bytes(range(256)) * 10
    await send(fellow, order, "model.safetensors", data, end=1000)
    with pytest.raises(SwarmError) as early:
        await send(fellow, order, "model.safetensors", data)
    assert early.value.facts == {"have_bytes": 1000}
    await send(fellow, order, "model.safetensors", data, start=1000)
    told = (len(data), hashlib.sha256(data).hexdigest())
    await exports.finish(fellow.fellow_id, order.export_id, {"model.safetensors": told}, "mit")

    export = await pool.ask("models_export", job_id=job_id)
    assert export.merged.state == "done"
    assert [one.name for one in export.merged_files] == ["README.md", "model.safetensors"]
    assert order_of(fellow) is None
    card = await exports.file(job_id, "README.md")
    assert card is not None
    text = card.path.read_text()
    assert "license: mit" in text
    assert "held-out loss before: 3.5000" in text
    assert "held-out loss after: 1.5000" in text
    assert "bucket `text`" in text
    assert "in bfloat16" in text
    again = await pool.ask("models_merge", job_id=job_id, dtype="bfloat16")
    assert again.merged.state == "done"


async def test_the_adapters_own_card_says_what_was_measured_and_that_the_licence_is_unknown(
    pool: Pool,
) -> None:
    job_id = await finished(pool)
    card = await pool.leader.adapter_file(job_id, "README.md")
    assert card is not None
    text = card.path.read_text()
    assert "held-out loss before: 3.5000 (50.0% of next tokens right" in text
    assert "licence of the base: unknown here" in text
    assert "base: `local:tiny`, revision `" in text


async def test_a_failed_export_tells_why_and_asking_again_begins_again(pool: Pool) -> None:
    job_id = await finished(pool)
    await pool.ask("models_merge", job_id=job_id)
    fellow, order = holder(pool)
    other = next(one for one in pool.fellows if one is not fellow)
    words = "not enough \x1b[31mdisk"
    failed = ExportFailed(export_id=order.export_id, at=1.0, code="not-enough-disk", message=words)
    await other.report(failed)
    assert order_of(fellow) == order
    await fellow.report(failed)
    export = (await pool.ask("models_export", job_id=job_id)).merged
    assert (export.state, order_of(fellow)) == ("failed", None)
    assert export.untrusted_error == f"{fellow.fellow_id}: not enough disk"
    assert "not-enough-disk" in export.reason
    again = await pool.ask("models_merge", job_id=job_id)
    assert again.merged.state == "running"
    assert holder(pool)[1].export_id != order.export_id


async def test_pieces_of_anothers_export_and_of_wrong_names_are_refused(pool: Pool) -> None:
    job_id = await finished(pool)
    await pool.ask("models_merge", job_id=job_id)
    fellow, order = holder(pool)
    other = next(one for one in pool.fellows if one is not fellow)
    with pytest.raises(SwarmError, match="export"):
        await send(other, order, "model.safetensors", b"x")
    for name in ("../up", "README.md", ".hidden", "a/b"):
        with pytest.raises(SwarmError) as refusal:
            await send(fellow, order, name, b"x")
        assert refusal.value.code == "invalid-input"
    with pytest.raises(SwarmError, match="arrived damaged") as damaged:
        await send(fellow, order, "config.json", b"xy", sha256="0" * 64)
    assert damaged.value.facts == {"have_bytes": 0}
    exports = pool.leader.office.exports
    with pytest.raises(SwarmError, match="is not here"):
        await exports.finish(fellow.fellow_id, order.export_id, {"gone": (1, "0" * 64)}, None)


async def test_an_export_goes_to_another_fellow_when_its_own_stays_away_and_survives_a_restart(
    pool: Pool,
) -> None:
    job_id = await finished(pool)
    await pool.ask("models_merge", job_id=job_id)
    fellow, order = holder(pool)
    await pool.reopen()
    assert order_of(fellow) == order
    other = next(one for one in pool.fellows if one is not fellow)
    await pool.clock.advance(KEEP_S + 1)
    other.beat()
    await pool.leader.office.exports.turn()
    assert holder(pool)[0] is other
    assert (await pool.ask("models_export", job_id=job_id)).merged.fellow_id == other.fellow_id


async def test_without_a_ready_fellow_it_waits_with_the_reason_and_without_a_result_it_is_refused(
    pool: Pool,
) -> None:
    job_id = await finished(pool)
    for _ in range(20):
        await pool.clock.advance(pool.settings.heartbeat_s)
        pool.leader.office.registry.sweep()
    asked = await pool.ask("models_merge", job_id=job_id)
    assert (asked.merged.state, asked.merged.reason) == (
        "waiting",
        "no fellow of its pool is ready",
    )
    for fellow in pool.fellows:
        fellow.beat()
    job = await pool.ask("jobs_submit", pool="ada/lab", config=job_config(), unpinned=True)
    with pytest.raises(SwarmError) as refusal:
        await pool.ask("models_merge", job_id=job.job_id)
    assert refusal.value.code == "conflict"


def test_an_order_carries_everything_as_json_there_and_back() -> None:
    order = ExportOrder(
        export_id="x-aaaaaaaa",
        job_id="j-aaaaaaaa",
        model={"model_id": "a/b", "repository": "a/b", "revision": "0" * 40, "from_leader": False},  # type: ignore[arg-type]
        kind="weights",
        trained_sha256="0" * 64,
        trained_bytes=1,
        scale=1.0,
        transposed=False,
        dtype=None,
    )
    assert ExportOrder.model_validate_json(json.dumps(order.model_dump(mode="json"))) == order
