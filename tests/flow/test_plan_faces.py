"""Plans through a real leader: inventories without a pool, offers that can be submitted, pins."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from anyio.lowlevel import checkpoint

from control.datasets.child import run_child
from tests.leader_twins import POOL, Pool, job_config, open_pool, write_model
from transport.api.plans import PlanView
from transport.errors import SwarmError

TWO_CARDS = {
    "fellows": [
        {"name": "atlas", "cards": [{"card": "GTX 1660 SUPER", "count": 2, "free_gb": 5.3}]},
        {"name": "borealis", "cards": ["RTX A4000"]},
    ]
}


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    async with open_pool(tmp_path) as made:
        await made.add_model(write_model(tmp_path / "model"))
        await made.add_text()
        yield made


async def _code(made: Pool, operation: str, **ask: Any) -> str:
    with pytest.raises(SwarmError) as refusal:
        await made.ask(operation, **ask)
    return refusal.value.code


async def test_an_inventory_is_planned_without_a_pool_or_a_hub_and_cannot_be_submitted(
    pool: Pool,
) -> None:
    config = job_config() | {"model": {"id": "Qwen/Qwen3-14B"}}
    plan: PlanView = await pool.ask("jobs_plan", config=config, inventory=TWO_CARDS)
    assert (plan.fits, plan.what_if, plan.plan_id, plan.next) == (True, True, None, [])
    assert plan.settings is not None
    assert plan.settings.quantization == "nf4"
    assert await _code(pool, "jobs_plan", config=config) == "invalid-input"
    assert await _code(pool, "jobs_plan", config=config, inventory={"cards": []}) == "invalid-input"


async def test_an_offer_is_stored_and_can_be_submitted_as_it_is(pool: Pool) -> None:
    fellow = await pool.add_fellow(free_gb=0.0092)
    config = job_config(batch_size=128, micro_batches=1, seq_len=16)
    plan: PlanView = await pool.ask("jobs_plan", pool=POOL, config=config)
    assert not plan.fits
    offer = plan.offers[0]
    assert offer.plan_id is not None
    call = next(one for one in plan.next if "plan_id" in one.arguments)
    assert call.arguments["plan_id"] == offer.plan_id
    for one in plan.offers:
        config = one.config.model_dump(mode="json")
        job = await pool.ask("jobs_submit", pool=POOL, config=config, plan_id=one.plan_id)
        assert (job.state, job.plan_id) == ("starting", one.plan_id)
        await pool.ask("jobs_cancel", job_id=job.job_id)
        fellow.beat()  # it has stopped
        await pool.clock.advance(1)
        fellow.beat()
        await pool.leader.office.jobs.schedule()
    job = await pool.ask("jobs_submit", **call.arguments)
    assert (job.state, job.plan_id) == ("starting", offer.plan_id)


async def test_the_longest_sequence_is_planned_and_started_with_the_config_that_asked_for_it(
    pool: Pool,
) -> None:
    await pool.add_fellow()
    config = job_config(batch_size=1) | {"maximize": "seq_len"}
    plan: PlanView = await pool.ask("jobs_plan", pool=POOL, config=config)
    assert plan.fits
    assert plan.config.maximize is None
    assert plan.config.train.seq_len >= 8
    job = await pool.ask("jobs_submit", pool=POOL, config=config, plan_id=plan.plan_id)
    assert job.plan_id == plan.plan_id
    assert plan.settings is not None
    order = pool.fellows[0].assignment().order
    assert order.settings.seq_len == plan.settings.seq_len
    kept = (await pool.ask("jobs_get", job_id=job.job_id)).config
    assert (kept.maximize, kept.train.seq_len) == ("seq_len", plan.settings.seq_len)


async def test_a_plan_of_another_pool_is_not_found(pool: Pool) -> None:
    await pool.add_fellow()
    plan: PlanView = await pool.ask("jobs_plan", pool=POOL, config=job_config())
    await pool.ask("pools_create", pool="bob/other")
    ask = {"config": job_config(), "plan_id": plan.plan_id}
    assert await _code(pool, "jobs_submit", pool="bob/other", **ask) == "not-found"


async def test_a_model_is_planned_for_serving_on_the_pool_and_on_paper(pool: Pool) -> None:
    fellow = await pool.add_fellow()
    view = await pool.ask("models_plan", pool=POOL, model="local:tiny", context_tokens=16)
    assert view.fits
    assert [stage.fellow_id for stage in view.stages] == [fellow.fellow_id]
    assert view.plan_id is not None
    paper = await pool.ask("models_plan", model="Qwen/Qwen3-14B", inventory=TWO_CARDS)
    assert (paper.fits, paper.what_if, paper.plan_id) == (True, True, None)
    assert paper.context_tokens == 8192
    assert await _code(pool, "models_plan", model="local:tiny") == "invalid-input"


async def test_a_pin_that_no_longer_holds_is_refused_with_the_new_plan(pool: Pool) -> None:
    first, second = await pool.add_fellow(), await pool.add_fellow()
    plan: PlanView = await pool.ask("jobs_plan", pool=POOL, config=job_config())
    assert len(plan.layout.stages) == 2
    second.free_bytes = 1000
    second.beat()
    ask: dict[str, Any] = {"pool": POOL, "config": job_config()}
    with pytest.raises(SwarmError) as refusal:
        await pool.ask("jobs_submit", **ask, plan_id=plan.plan_id)
    facts = refusal.value.facts
    assert "1 kB free, the plan needs" in facts["changes"][0]
    assert first.fellow_id in facts["new_plan"]
    assert any(told.endswith("-> not used") for told in facts["differs"])
    job = await pool.ask("jobs_submit", **ask, plan_id=facts["new_plan_id"])
    assert [stage.fellow_id for stage in job.stages] == [first.fellow_id]


async def test_a_pinned_job_that_waits_stays_so_when_the_pool_changed_and_tells_the_ways_out(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = asyncio.Event()

    async def slow(*asked: Any) -> dict[str, Any]:
        await go_on.wait()
        return await run_child(*asked)

    monkeypatch.setattr("control.datasets.token_shop.run_child", slow)
    office = pool.leader.office
    terms = type(office.planner._terms)(plan_s=3600.0, submit_wait_s=0.05)
    monkeypatch.setattr(office.planner, "_terms", terms)
    fellow = await pool.add_fellow()
    room = fellow.free_bytes
    ask: dict[str, Any] = {"pool": POOL, "config": job_config()}
    plan: PlanView = await pool.ask("jobs_plan", **ask)
    job = await pool.ask("jobs_submit", **ask, plan_id=plan.plan_id)
    assert (job.state, "tokenized" in job.reason) == ("pending", True)

    fellow.free_bytes = 1000
    fellow.beat()
    go_on.set()
    await _until(pool, job.job_id, lambda told: "tokenized" not in told.reason)
    waits = await pool.ask("jobs_get", job_id=job.job_id)
    assert waits.state == "pending"
    said = "the cluster changed since the plan was shown: "
    assert waits.reason.startswith(f"{said}host-{fellow.fellow_id}'s CPU #0 has 1 kB free")
    calls = {one.operation: one.arguments for one in waits.next}
    assert set(calls) == {"jobs_plan", "jobs_submit", "jobs_cancel"}
    assert calls["jobs_submit"]["unpinned"] is True

    fellow.free_bytes = room
    fellow.beat()
    await _until(pool, job.job_id, lambda told: told.state == "starting")
    assert (await pool.ask("jobs_get", job_id=job.job_id)).plan_id == plan.plan_id


async def _until(pool: Pool, job_id: str, wanted: Callable[[Any], bool]) -> None:
    async with asyncio.timeout(20):
        while not wanted(await pool.ask("jobs_get", job_id=job_id)):
            await pool.leader.office.jobs.schedule()
            await checkpoint()
