"""A job held against one process: the probe on its own stages, the order, the verdict, refusals."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from control.jobs.verdict import EQUAL, STEPS
from control.jobs.verifying import KEEP_S, LONGEST_S
from tests.leader_twins import POOL, Fellow, Pool, job_config, open_pool, write_model
from transport.api.jobs import JobView
from transport.errors import SwarmError
from transport.orders import ReferenceOrder
from transport.reports import ReferenceFailed, ReferenceTrained, StageFailed


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    """A leader with two fellows and a model."""
    async with open_pool(tmp_path) as made:
        await made.add_fellow()
        await made.add_fellow()
        await made.add_model(write_model(tmp_path / "tiny"))
        await made.add_text()
        yield made


LOSSES = [2.0, 1.75, 1.5, 1.25]


async def run_to_end(pool: Pool, losses: list[float]) -> None:
    """Let the fellows carry out the job that they are told of."""
    for fellow in pool.fellows:
        await fellow.bind()
    for fellow in pool.fellows:
        await fellow.load()
    last = next(one for one in pool.fellows if one.assignment().order.is_last)
    for number, loss in enumerate(losses, 1):
        for fellow in pool.fellows:
            await fellow.report(fellow.step(number, loss))
    await last.evaluate("base", 0, 3.5)
    await last.evaluate("trained", len(losses), 1.5)
    job_id = last.assignment().order.job_id
    for fellow in pool.fellows:
        await fellow.finish()
    ended = await pool.ask("jobs_wait", job_id=job_id, timeout_s=5)
    assert ended.state == "completed", ended
    for fellow in pool.fellows:
        fellow.beat()


async def finished(pool: Pool) -> JobView:
    """A job that has completed."""
    config = job_config()
    job: JobView = await pool.ask("jobs_submit", pool=POOL, config=config, unpinned=True)
    await run_to_end(pool, [2.0] * 3)
    return job


def order_of(fellow: Fellow) -> ReferenceOrder | None:
    return fellow.pool.leader.office.registry.desired(fellow.fellow_id).reference


def holder(pool: Pool) -> tuple[Fellow, ReferenceOrder]:
    """The one fellow that has a probe to train alone."""
    ((fellow, order),) = [(f, o) for f in pool.fellows if (o := order_of(f)) is not None]
    return fellow, order


def trained(order: ReferenceOrder, losses: list[float], **values: Any) -> ReferenceTrained:
    held_out = values.pop("held_out", [3.5, 1.5])
    return ReferenceTrained(
        verify_id=order.verify_id, at=1.0, losses=losses, held_out=held_out, seconds=2.0, **values
    )


async def probed(pool: Pool) -> tuple[str, Fellow, ReferenceOrder]:
    """A job whose probe the stages have trained; who trains it alone, and the order."""
    job = await finished(pool)
    await pool.ask("jobs_verify", job_id=job.job_id)
    await run_to_end(pool, LOSSES)
    await pool.leader.office.verifications.turn()
    return job.job_id, *holder(pool)


async def test_the_probe_is_the_jobs_own_plan_with_few_steps_and_no_warm_up(pool: Pool) -> None:
    job = await finished(pool)
    before = {one.fellow_id: (one.first_layer, one.last_layer) for one in job.stages}
    asked = await pool.ask("jobs_verify", job_id=job.job_id)
    assert asked.verification.state == "probing"
    assert asked.verification.probe_job_id != job.job_id
    for fellow in pool.fellows:
        order = fellow.assignment().order
        assert order.job_id == asked.verification.probe_job_id
        assert (order.first_layer, order.last_layer) == before[fellow.fellow_id]
        assert (order.settings.steps, order.settings.warmup_steps) == (STEPS, 0)
        assert order.settings.batch_size == order.settings.micro_batches
        assert order.evaluate_base
        assert order.settings.snapshot_every_steps == 0
    assert any("instead of" in words for words in asked.verification.differs)
    again = await pool.ask("jobs_verify", job_id=job.job_id)
    assert again.verification == asked.verification


async def test_equal_losses_are_the_verdict_in_the_jobs_record_and_its_file(pool: Pool) -> None:
    job_id, fellow, order = await probed(pool)
    assert order.card.last_layer == 3
    other = next(one for one in pool.fellows if one is not fellow)
    await other.report(trained(order, [9.0] * 4))  # not the one that was asked
    near = [loss + EQUAL / 2 for loss in LOSSES]
    await fellow.report(trained(order, near, peak_bytes=123))
    job = await pool.ask("jobs_get", job_id=job_id)
    told = job.verification
    assert (told.state, told.verdict) == ("done", "equal")
    assert told.largest_difference == pytest.approx(EQUAL / 2)
    assert told.largest_at.startswith("step")
    assert (told.split_losses, told.one_process_losses) == (LOSSES, near)
    assert (told.split_held_out, told.one_process_held_out) == ([3.5, 1.5], [3.5, 1.5])
    assert order_of(fellow) is None
    path = pool.leader.records_file(job_id)
    assert path is not None
    last = json.loads(path.read_text().splitlines()[-1])
    assert last["verification"]["verdict"] == "equal"
    view = await pool.ask("jobs_verify", job_id=job_id)
    assert "compute what one process computes" in view.summary


async def test_a_held_out_loss_that_is_off_makes_the_runs_different(pool: Pool) -> None:
    job_id, fellow, order = await probed(pool)
    await fellow.report(trained(order, LOSSES, held_out=[3.5, 1.5 + 3 * EQUAL]))
    view = await pool.ask("jobs_verify", job_id=job_id)
    assert view.verification.verdict == "different"
    assert view.verification.largest_at == "held out after"
    assert "DIFFER" in view.summary


async def test_runs_that_tell_of_different_steps_are_no_verdict(pool: Pool) -> None:
    job_id, fellow, order = await probed(pool)
    await fellow.report(trained(order, LOSSES[:3]))
    told = (await pool.ask("jobs_get", job_id=job_id)).verification
    assert (told.state, told.verdict) == ("failed", None)
    assert "different steps" in told.reason


async def test_a_probe_leaves_no_result_and_no_model(pool: Pool) -> None:
    job_id, _, order = await probed(pool)
    probe = await pool.ask("jobs_get", job_id=order.job_id)
    assert (probe.state, probe.adapter_ready) == ("completed", False)
    assert job_id in probe.summary
    listed = await pool.ask("models_list", pool=POOL)
    assert [one.model_id for one in listed.models if one.kind == "adapter"] == [job_id]
    with pytest.raises(SwarmError) as refusal:
        await pool.ask("jobs_verify", job_id=order.job_id)
    assert refusal.value.code == "conflict"


async def test_a_failed_run_in_one_process_tells_why_and_asking_again_begins_anew(
    pool: Pool,
) -> None:
    job_id, fellow, order = await probed(pool)
    words = "too \x1b[31mbig"
    failed = ReferenceFailed(verify_id=order.verify_id, at=1.0, code="cannot-fit", message=words)
    await fellow.report(failed)
    told = (await pool.ask("jobs_get", job_id=job_id)).verification
    assert (told.state, told.untrusted_error) == ("failed", f"{fellow.fellow_id}: too big")
    assert "cannot-fit" in told.reason
    again = await pool.ask("jobs_verify", job_id=job_id)
    assert again.verification.state == "probing"
    assert again.verification.probe_job_id != told.probe_job_id


async def test_a_probe_that_fails_on_a_stage_ends_the_verification_with_its_reason(
    pool: Pool,
) -> None:
    job = await finished(pool)
    await pool.ask("jobs_verify", job_id=job.job_id)
    fellow = pool.fellows[0]
    await fellow.report(StageFailed(**fellow.of(code="cannot-fit", message="no room")))
    await pool.leader.office.verifications.turn()
    told = (await pool.ask("jobs_get", job_id=job.job_id)).verification
    assert told.state == "failed"
    assert "probe" in told.reason
    assert "no room" in told.untrusted_error


async def test_a_lost_fellow_ends_a_probe_instead_of_moving_it(pool: Pool) -> None:
    job = await finished(pool)
    await pool.ask("jobs_verify", job_id=job.job_id)
    await pool.leader.office.jobs.lose_fellow(pool.fellows[1].fellow_id, "went offline")
    await pool.leader.office.verifications.turn()
    told = (await pool.ask("jobs_get", job_id=job.job_id)).verification
    assert told.state == "failed"
    assert "verify again" in told.reason


async def test_the_order_survives_a_restart_and_goes_to_another_when_its_fellow_stays_away(
    pool: Pool,
) -> None:
    _, fellow, order = await probed(pool)
    await pool.reopen()
    assert order_of(fellow) == order
    other = next(one for one in pool.fellows if one is not fellow)
    await pool.clock.advance(KEEP_S + 1)
    other.beat()
    await pool.leader.office.verifications.turn()
    assert holder(pool)[0] is other


async def test_a_fellow_that_trains_alone_takes_no_job_meanwhile(pool: Pool) -> None:
    _, fellow, _ = await probed(pool)
    view = await pool.ask("fellows_get", fellow_id=fellow.fellow_id)
    assert view.fellow.status == "training"
    plan = await pool.ask("jobs_plan", pool=POOL, config=job_config())
    assert [card.reason for card in plan.cards if not card.used] == ["fellow training"]


async def test_what_trains_or_never_trained_is_not_verified(pool: Pool) -> None:
    job = await pool.ask("jobs_submit", pool=POOL, config=job_config(), unpinned=True)
    with pytest.raises(SwarmError) as refusal:
        await pool.ask("jobs_verify", job_id=job.job_id)
    assert refusal.value.code == "conflict"
    assert "starting" in refusal.value.message
    waiting = await pool.ask("jobs_submit", pool=POOL, config=job_config(), unpinned=True)
    with pytest.raises(SwarmError, match="never started"):
        await pool.ask("jobs_verify", job_id=waiting.job_id)


async def test_a_job_whose_fellows_train_another_is_refused_by_its_name(pool: Pool) -> None:
    done = await finished(pool)
    other = await pool.ask("jobs_submit", pool=POOL, config=job_config(), unpinned=True)
    with pytest.raises(SwarmError) as refusal:
        await pool.ask("jobs_verify", job_id=done.job_id)
    assert refusal.value.code == "conflict"
    assert refusal.value.facts["job_id"] == other.job_id


async def test_a_model_that_no_card_holds_whole_is_refused_with_both_numbers(pool: Pool) -> None:
    job = await finished(pool)
    for fellow in pool.fellows:
        fellow.free_bytes = 5_000_000
        fellow.beat()
    with pytest.raises(SwarmError) as refusal:
        await pool.ask("jobs_verify", job_id=job.job_id)
    assert refusal.value.code == "cannot-fit"
    assert refusal.value.facts["needed_bytes"] > refusal.value.facts["free_bytes"] == 5_000_000


async def test_a_job_whose_tokens_are_gone_or_whose_fellow_is_away_is_refused(pool: Pool) -> None:
    job = await finished(pool)
    await pool.ask("buckets_remove", pool=POOL, bucket="text")
    with pytest.raises(SwarmError) as refusal:
        await pool.ask("jobs_verify", job_id=job.job_id)
    assert refusal.value.code == "not-found"


async def test_a_run_in_one_process_that_hangs_gives_its_fellow_back(pool: Pool) -> None:
    job_id, fellow, _ = await probed(pool)
    await pool.clock.advance(LONGEST_S + 1)
    fellow.beat()
    await pool.leader.office.verifications.turn()
    told = (await pool.ask("jobs_get", job_id=job_id)).verification
    assert (told.state, told.reason) == ("failed", "it took more than 6 h")
    assert order_of(fellow) is None


async def test_a_comparison_that_runs_is_begun_anew_when_asked_and_its_order_taken_back(
    pool: Pool,
) -> None:
    job_id, fellow, order = await probed(pool)
    view = await pool.ask("jobs_verify", job_id=job_id)
    assert view.verification.probe_job_id == order.job_id
    view = await pool.ask("jobs_verify", job_id=job_id, again=True)
    assert view.verification.state == "probing"
    assert view.verification.probe_job_id != order.job_id
    assert order_of(fellow) is None
    await fellow.report(trained(order, LOSSES))  # of the one before
    told = (await pool.ask("jobs_get", job_id=job_id)).verification
    assert (told.state, told.verdict) == ("probing", None)


async def test_a_model_that_was_replaced_meanwhile_ends_the_comparison_or_lets_it_wait(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await finished(pool)
    await pool.ask("jobs_verify", job_id=job.job_id)
    await run_to_end(pool, LOSSES)
    for code, state in (("unavailable", "probing"), ("not-found", "failed")):

        async def facts(_: str, code: str = code) -> None:
            raise SwarmError(code, "the model is away")

        monkeypatch.setattr(pool.leader.office.planner, "facts", facts)
        await pool.leader.office.verifications.turn()
        told = (await pool.ask("jobs_get", job_id=job.job_id)).verification
        assert (told.state, told.reason) == (state, "the model is away")
