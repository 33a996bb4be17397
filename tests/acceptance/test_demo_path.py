"""The whole path on this machine: real leader, real daemons, real workers, every face.

One pool of three fellows serves all tests here; each leaves it ready for the next.
"""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from mcp import Client as McpClient
from mcp.client.streamable_http import streamable_http_client
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from agents.demo.processes import wait_until
from agents.folders import export_adapter, export_merged
from tests.acceptance.real_pool import POOL, RealPool
from tests.oracle.checkpoints import write_tiny_model
from transport.api.exports import ModelsMerge
from transport.api.jobs import (
    JOBS_CANCEL,
    JOBS_LIST,
    JOBS_RECORDS,
    JobsCancel,
    JobsList,
    JobsRecords,
    JobView,
)
from transport.errors import SwarmError

CARDS = ("cpu:300MB:1", "cpu:220MB:1", "cpu:160MB:1")
STEPS = 6


def a_config(**train: Any) -> dict[str, Any]:
    settings = {"steps": STEPS, "seq_len": 32, "batch_size": 4, "learning_rate": 1e-3}
    return {
        "model": {"id": "local:tiny", "dtype": "float32"},
        "data": {"bucket": "rows"},
        "train": {**settings, **train},
    }


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealPool]:
    folder = tmp_path_factory.mktemp("pool")
    pool = RealPool(folder)
    try:
        pool.join(CARDS)
        pool.add_model(write_tiny_model(folder / "tiny", "llama"), "tiny")
        text = "In the beginning was the word, and the word was with them. "
        pool.add_rows("rows", [{"text": f"{number} {text * 3}"} for number in range(60)])
        yield pool
    finally:
        killed = pool.close()
    assert killed == [], "a process did not end by itself"


def test_a_plan_places_every_layer_once_and_says_what_each_card_will_hold(pool: RealPool) -> None:
    plan = pool.plan(a_config())
    assert (plan.fits, plan.reason) == (True, "")
    layers = [
        layer
        for stage in plan.layout.stages
        for layer in range(stage.first_layer, stage.last_layer + 1)
    ]
    assert layers == list(range(6))
    assert len(plan.layout.stages) == 3
    for card in plan.cards:
        overflow = sum(s.bytes for s in card.segments if s.kind == "overflow")
        assert sum(s.bytes for s in card.segments) == card.total_bytes + overflow
    assert pool.plan(a_config()).plan_id == plan.plan_id


def test_what_was_planned_trains_and_its_adapter_is_a_plain_peft_folder(pool: RealPool) -> None:
    pool.wait_ready()
    job = pool.wait_end(pool.submit(pool.plan(a_config())).job_id)
    assert (job.state, job.step, job.untrusted_error) == ("completed", STEPS, None)
    told = {one.moment: one.loss for one in job.evaluations}
    assert set(told) == {"base", "trained"}
    for stage in job.stages:
        assert stage.peak_bytes is not None
        assert 0 < stage.peak_bytes <= stage.planned_bytes * 1.1

    folder = pool.folder / "adapter"
    export_adapter(pool.client, job.job_id, folder)
    base = AutoModelForCausalLM.from_pretrained(pool.folder / "tiny", dtype=torch.float32)
    ids = torch.arange(32).unsqueeze(0) + 97
    before = base(ids).logits.detach()
    model = PeftModel.from_pretrained(base, folder)
    assert not torch.equal(model(ids).logits, before)


def test_its_result_becomes_a_whole_checkpoint_that_plain_transformers_loads(
    pool: RealPool,
) -> None:
    jobs = pool.client.call(JOBS_LIST, JobsList(pool=POOL, state="completed")).jobs
    adapter = pool.folder / "adapter"  # of the oldest
    base = AutoModelForCausalLM.from_pretrained(pool.folder / "tiny", dtype=torch.float32)
    model = PeftModel.from_pretrained(base, adapter)
    ids = torch.arange(32).unsqueeze(0) + 97
    whole = pool.folder / "whole"
    said: list[str] = []
    export = export_merged(
        pool.client, ModelsMerge(job_id=jobs[-1].job_id), whole, lambda now: said.append(now.state)
    )
    assert export.merged is not None
    assert (export.merged.state, said[0]) == ("done", "running")
    merged = AutoModelForCausalLM.from_pretrained(whole, dtype=torch.float32)
    assert (merged(ids).logits - model(ids).logits).abs().max() < 2e-5
    tokenizer = AutoTokenizer.from_pretrained(whole)
    assert tokenizer.decode(tokenizer.encode("swarm", add_special_tokens=False)) == "swarm"
    assert "held-out loss after" in (whole / "README.md").read_text()


def test_every_stage_reports_the_same_loss_for_every_step(pool: RealPool) -> None:
    pool.wait_ready()
    job = pool.wait_end(pool.submit(pool.plan(a_config(eval_sequences=0))).job_id)
    tables = [
        pool.client.call(JOBS_RECORDS, JobsRecords(job_id=job.job_id, stage=stage)).steps
        for stage in range(3)
    ]
    losses = [[row.loss for row in table] for table in tables]
    assert len(losses[0]) == STEPS
    assert losses[0] == losses[1] == losses[2]


def test_the_command_line_trains_from_a_file_and_follows_to_the_end(
    pool: RealPool, tmp_path: Path
) -> None:
    pool.wait_ready()
    rows = tmp_path / "own.jsonl"
    rows.write_text("".join(json.dumps({"text": f"row {n} " * 9}) + "\n" for n in range(60)))
    config = {**a_config(steps=2, eval_sequences=0), "data": {"files": [str(rows)]}}
    (tmp_path / "job.json").write_text(json.dumps(config))
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "SWARM_LEADER": pool.url,
        "SWARM_TOKEN": pool.token,
        "SWARM_POOL": POOL,
    }
    words = ["train", "--config", "job.json", "--follow"]
    done = subprocess.run(
        [sys.executable, "-m", "agents.cli.main", *words],
        env=environment | {"PYTHONPATH": str(Path(__file__).parents[2])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "completed" in done.stdout


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_an_agent_plans_submits_and_waits_over_mcp(pool: RealPool, mode: Any) -> None:
    pool.wait_ready()
    async with mcp_client(pool, mode) as client:
        arguments = {"pool": POOL, "config": a_config(steps=2, eval_sequences=0)}
        plan = (await client.call_tool("jobs_plan", arguments)).structured_content
        assert plan is not None
        submit = {**arguments, "plan_id": plan["plan_id"]}
        job = (await client.call_tool("jobs_submit", submit)).structured_content
        assert job is not None
        wait = {"job_id": job["job_id"], "timeout_s": 40}
        ended = (await client.call_tool("jobs_wait", wait)).structured_content
        assert ended is not None
        assert ended["state"] == "completed"


def test_a_job_whose_worker_is_killed_goes_on_by_itself_and_can_be_cancelled(
    pool: RealPool,
) -> None:
    pool.wait_ready()
    job = pool.submit(pool.plan(a_config(steps=5000, eval_sequences=0)))
    pool.wait_step(job.job_id, 2)
    victim = pool.workers()[1]
    victim.kill()

    def goes_on() -> JobView | None:
        now = pool.job(job.job_id)
        return now if (now.state, now.attempt) == ("running", 2) else None

    again: JobView = wait_until("the next attempt", goes_on, 30, pool.household)
    assert again.counts["recoveries"] == 1
    why = again.config.resumes[0].why
    assert any(stage.fellow_id in why for stage in again.stages)
    pool.client.call(JOBS_CANCEL, JobsCancel(job_id=job.job_id))
    pool.wait_ready()
    assert pool.workers() == []


def test_a_cancelled_job_leaves_no_worker_and_the_pool_ready(pool: RealPool) -> None:
    pool.wait_ready()
    job = pool.submit(pool.plan(a_config(steps=5000, eval_sequences=0)))
    pool.wait_step(job.job_id, 1)
    pool.client.call(JOBS_CANCEL, JobsCancel(job_id=job.job_id))
    assert pool.wait_end(job.job_id).state == "cancelled"
    pool.wait_ready()
    assert pool.workers() == []


def test_the_leader_is_killed_under_a_running_job_and_nothing_is_lost(pool: RealPool) -> None:
    pool.wait_ready()
    steps = 60
    job = pool.submit(pool.plan(a_config(steps=steps, eval_sequences=0)))
    before = pool.wait_step(job.job_id, 3)
    pool.restart_leader(kill=True)
    pool.wait_leader()
    assert pool.job(job.job_id).step >= before.step
    ended = pool.wait_end(job.job_id)
    assert (ended.state, ended.step, ended.attempt) == ("completed", steps, 1)
    table = pool.client.call(JOBS_RECORDS, JobsRecords(job_id=job.job_id, limit=5000)).steps
    assert [row.step for row in table] == list(range(1, steps + 1))


def test_a_plan_of_cards_that_have_filled_up_since_is_refused(pool: RealPool) -> None:
    pool.wait_ready()
    plan = pool.plan(a_config(steps=5000, eval_sequences=0))
    running = pool.submit(plan)
    pool.wait_step(running.job_id, 1)
    with pytest.raises(SwarmError) as refusal:
        pool.submit(plan)
    assert refusal.value.code == "plan-changed"
    pool.client.call(JOBS_CANCEL, JobsCancel(job_id=running.job_id))
    pool.wait_end(running.job_id)


@asynccontextmanager
async def mcp_client(pool: RealPool, mode: Any) -> AsyncIterator[McpClient]:
    """An MCP client with the owner's token, in one era of the protocol."""
    headers = {"Authorization": f"Bearer {pool.token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        transport = streamable_http_client(f"{pool.url}/mcp", http_client=http)
        async with McpClient(transport, mode=mode) as client:
            yield client
