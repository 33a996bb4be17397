"""A leader's data: previewed, removed, tokenized once, told of on the way, gone with the leader."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from control.datasets.child import run_child
from control.datasets.rows import Row, place_of
from control.datasets.tokenize import Encoder
from control.datasets.tokenize_child import row_limit
from control.datasets.tokenizer_folder import TokenizerFolder
from tests.conftest import ROOT
from tests.leader_twins import POOL, TEXT, Pool, job_config, open_pool, write_model, write_tokenizer
from transport.errors import SwarmError

PAIRS = "".join(
    json.dumps({"prompt": f"the word {n}: ", "completion": f"was {n}"}) + "\n" for n in range(40)
)


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    async with open_pool(tmp_path) as made:
        await made.add_model(write_model(tmp_path / "model"))
        write_tokenizer(tmp_path / "model", "{{ raise_exception('no tools') }}")
        await made.add_model(tmp_path / "model", "picky")
        yield made


async def add(pool: Pool, content: str, bucket: str = "text", name: str = "rows.jsonl") -> None:
    """A bucket of one file."""
    await pool.ask("buckets_create", pool=POOL, bucket=bucket)
    await pool.ask("buckets_add", pool=POOL, bucket=bucket, name=name, content=content)


def files(pool: Pool) -> dict[str, int]:
    """How many files of each sort lie in the data folder."""
    return {
        name: len(list((pool.settings.data / name).glob("*"))) for name in ("buckets", "tokens")
    }


async def test_the_plan_holds_what_was_found_and_a_sample(pool: Pool) -> None:
    await add(pool, PAIRS + PAIRS)
    await pool.add_fellow()
    plan = await pool.ask("jobs_plan", pool=POOL, config=job_config(seq_len=8))
    kinds = {finding.kind: finding for finding in plan.data.findings}
    assert (kinds["duplicates"].count, kinds["duplicates"].first) == (40, "rows.jsonl line 41")
    assert kinds["truncated"].first.startswith("rows.jsonl line ")
    assert plan.data.checked_share == 1.0
    assert "⟦was 0<|endoftext|>⟧" in plan.data.untrusted_sample
    assert len(plan.data.model_dump_json()) < 3000
    assert plan.data.findings[0].words in plan.summary


async def test_text_held_out_by_documents_is_made_for_each_length_and_rows_once(pool: Pool) -> None:
    await pool.add_fellow()
    await add(pool, "".join(f'{{"text": "{n} the word was {n}"}}\n' for n in range(60)))
    await add(pool, PAIRS, "pairs")
    split = {"by": "random", "share": 0.2, "seed": 1}
    for bucket, made in (("text", 2), ("pairs", 3)):
        for seq_len in (8, 16):
            config = {**job_config(seq_len=seq_len), "data": {"bucket": bucket, "held_out": split}}
            plan = await pool.ask("jobs_plan", pool=POOL, config=config)
            assert plan.data.held_out_sequences > 0
        assert files(pool)["tokens"] == made
    config["data"] = {"bucket": "pairs", "held_out": {"by": "group", "column": "author"}}
    with pytest.raises(SwarmError) as refusal:
        await pool.ask("jobs_plan", pool=POOL, config=config)
    assert "rows.jsonl: line 1 has no 'author' to hold out by" in refusal.value.message


async def test_the_same_bytes_in_another_pool_are_told_by_their_own_name(pool: Pool) -> None:
    chats = '{"messages": [{"role": "tool", "content": "x"}, {"role": "assistant", "content": ""}]}'
    await pool.ask("pools_create", pool="eve/lab")
    for owner, name in ((POOL, "secret.jsonl"), ("eve/lab", "plain.jsonl")):
        await pool.ask("buckets_create", pool=owner, bucket="text")
        ask: dict[str, Any] = {"pool": owner, "bucket": "text", "name": name}
        ask["content"] = PAIRS + PAIRS
        await pool.ask("buckets_add", **ask)
        plan = await pool.ask("jobs_plan", pool=owner, config=job_config())
        assert plan.data.findings[0].first.startswith(name)
        await pool.ask("buckets_create", pool=owner, bucket="bad")
        await pool.ask("buckets_add", **(ask | {"bucket": "bad", "content": chats}))
        config = {**job_config(), "model": {"id": "local:picky"}, "data": {"bucket": "bad"}}
        with pytest.raises(SwarmError) as refusal:
            await pool.ask("jobs_plan", pool=owner, config=config)
        assert refusal.value.message.startswith(f"{name} line 1: ")


async def test_a_preview_shows_rows_as_they_are_sent_and_as_they_are_learned(pool: Pool) -> None:
    await add(pool, PAIRS)
    sent = await pool.ask("buckets_preview", pool=POOL, bucket="text", limit=2)
    assert [row.place for row in sent.rows] == ["rows.jsonl line 1", "rows.jsonl line 2"]
    assert [(p.untrusted_text, p.learned) for p in sent.rows[0].parts] == [
        ("the word 0: ", False),
        ("was 0", True),
    ]
    assert sent.rows[0].tokens is None
    assert sent.omitted == 38
    told = await pool.ask("buckets_preview", pool=POOL, bucket="text", model="local:tiny")
    (first, *_) = told.rows
    assert "".join(p.untrusted_text for p in first.parts) == "the word 0: was 0<|endoftext|>"
    assert [p.untrusted_text for p in first.parts if p.learned] == ["was 0<|endoftext|>"]
    assert first.learned_tokens < first.tokens


async def test_a_removed_bucket_takes_its_files_and_tokens_but_not_those_of_others(
    pool: Pool,
) -> None:
    await add(pool, PAIRS)
    await add(pool, TEXT * 200, "other", "a.txt")
    await add(pool, PAIRS, "same")
    await pool.add_fellow()
    for bucket in ("text", "other"):
        config = {**job_config(), "data": {"bucket": bucket}}
        await pool.ask("jobs_plan", pool=POOL, config=config)
    assert files(pool) == {"buckets": 2, "tokens": 2}
    first = await pool.ask("buckets_remove", pool=POOL, bucket="text")
    assert first.freed_bytes == 0  # "same" holds these bytes too
    assert files(pool) == {"buckets": 2, "tokens": 2}
    second = await pool.ask("buckets_remove", pool=POOL, bucket="same")
    assert second.freed_bytes > len(PAIRS)
    assert files(pool) == {"buckets": 1, "tokens": 1}
    names = [row.bucket for row in (await pool.ask("buckets_list", pool=POOL)).buckets]
    assert names == ["other"]
    await pool.reopen()
    assert files(pool) == {"buckets": 1, "tokens": 1}


async def test_a_bucket_that_a_job_needs_is_not_removed(pool: Pool) -> None:
    await add(pool, PAIRS)
    job = await pool.ask("jobs_submit", pool=POOL, config=job_config(), unpinned=True)
    assert job.state == "pending"
    with pytest.raises(SwarmError) as refusal:
        await pool.ask("buckets_remove", pool=POOL, bucket="text")
    assert refusal.value.code == "conflict"
    assert job.job_id in refusal.value.message
    await pool.ask("jobs_cancel", job_id=job.job_id)
    await pool.ask("buckets_remove", pool=POOL, bucket="text")
    assert files(pool)["buckets"] == 0


async def test_an_owners_storage_is_reserved_as_bytes_come_and_counted_once_they_are_here(
    tmp_path: Path,
) -> None:
    async with open_pool(tmp_path, storage_limit_bytes=3000) as pool:
        await pool.ask("buckets_create", pool=POOL, bucket="b")
        line = b'{"text": "the word"}\n'
        await pool.send("buckets_add", line * 80, pool=POOL, bucket="b", name="a.jsonl")
        two = [
            pool.send(
                "buckets_add", line * 40 + b"\n" * n, pool=POOL, bucket="b", name=f"{n}.jsonl"
            )
            for n in (1, 2)
        ]
        told = await asyncio.gather(*two, return_exceptions=True)
        refused = [one for one in told if isinstance(one, SwarmError)]
        assert [one.code for one in refused] == ["storage-full"]
        assert "the storage of ada is full" in refused[0].message
        assert files(pool)["buckets"] == 2
        await pool.ask("buckets_remove", pool=POOL, bucket="b")
        await pool.ask("buckets_create", pool=POOL, bucket="b")
        await pool.send("buckets_add", line * 100, pool=POOL, bucket="b", name="a.jsonl")


async def test_a_crash_inside_a_removal_shows_at_the_next_start_whether_it_was_done(
    pool: Pool,
) -> None:
    await add(pool, PAIRS)
    folder = pool.settings.data / "buckets"
    (held,) = folder.iterdir()
    held.rename(held.with_suffix(".gone"))
    (folder / ("0" * 64 + ".gone")).write_text("removed")
    (folder / "upload.part").write_text("half")
    (pool.settings.data / "tokens" / "made.part").mkdir(parents=True)
    await pool.reopen()
    assert [path.name for path in folder.iterdir()] == [held.name]
    assert files(pool)["tokens"] == 0


async def test_two_jobs_at_once_share_the_work_and_wait_with_how_far_it_is(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    go_on = asyncio.Event()

    async def slow(asked: Any, limits: Any, progress: Any) -> dict[str, Any]:
        started.append(asked)
        progress({"share": 0.4})
        await go_on.wait()
        return await run_child(asked, limits, progress)

    monkeypatch.setattr("control.datasets.token_shop.run_child", slow)
    await add(pool, PAIRS)
    await pool.add_fellow()
    office = pool.leader.office
    monkeypatch.setattr(
        office.planner, "_terms", type(office.planner._terms)(plan_s=3600.0, submit_wait_s=0.05)
    )
    jobs = [
        await pool.ask("jobs_submit", pool=POOL, config=job_config(), unpinned=True)
        for _ in range(2)
    ]
    assert [job.reason for job in jobs] == ["the data is being tokenized: 40 % of 40 rows"] * 2
    plan = await pool.ask("jobs_plan", pool=POOL, config=job_config())
    assert plan.data.checked_share == 0.4
    assert any(note.startswith("data: 40 % checked") for note in plan.notes)
    (making,) = office.tokens._making.values()
    go_on.set()
    await asyncio.wait_for(asyncio.shield(making.task), 50)
    await office.jobs.schedule()
    assert (await pool.ask("jobs_get", job_id=jobs[0].job_id)).state == "starting"
    assert len(started) == 1


async def test_a_row_that_is_too_long_or_swells_is_refused_and_nothing_is_left(
    tmp_path: Path,
) -> None:
    async with open_pool(tmp_path, tokenize_memory_bytes=700_000_000) as pool:
        await pool.ask("buckets_create", pool=POOL, bucket="b")
        long = b'{"text": "' + b"x" * 9_000_000 + b'"}'
        swollen = tmp_path / "swollen.parquet"
        texts = pa.array(["x" * 7_900_000])
        column = pa.DictionaryArray.from_arrays(pa.array([0] * 300, pa.int32()), texts)
        pq.write_table(pa.table({"text": column}), swollen, compression="zstd")
        assert swollen.stat().st_size < 100_000  # and 2.4 GB when it is opened
        for name, data, said in (
            ("long.jsonl", long, "long.jsonl: line 1 is longer than 8 MB"),
            ("s.parquet", swollen.read_bytes(), "took more than 700 MB of memory"),
        ):
            with pytest.raises(SwarmError) as refusal:
                await pool.send("buckets_add", data, pool=POOL, bucket="b", name=name)
            assert refusal.value.code == "invalid-input"
            assert said in refusal.value.message
        assert list((pool.settings.data / "buckets").iterdir()) == []


def test_one_chat_that_is_rendered_without_end_is_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("control.datasets.tokenize_child.ROW_CPU_S", 0.2)
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    write_tokenizer(tmp_path, loop)
    encoder = Encoder(TokenizerFolder(tmp_path), ["a.jsonl"], row_limit)
    row = Row("messages", messages=({"role": "assistant", "content": "a"},), place=place_of(0, 7))
    with pytest.raises(SwarmError) as refusal:
        list(encoder.encode([row]))
    assert "a.jsonl line 7: this model's chat template takes more than" in refusal.value.message


KILLED = """
import asyncio, sys
from pathlib import Path
from tests.leader_twins import POOL, job_config, open_pool, write_model, write_tokenizer
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
async def main(folder):
    async with open_pool(folder) as pool:
        model = write_model(folder / "model")
        write_tokenizer(model, ENDLESS)
        await pool.add_model(model)
        await pool.ask("buckets_create", pool=POOL, bucket="text")
        row = '{"messages": [{"role": "assistant", "content": "a"}]}'
        await pool.ask("buckets_add", pool=POOL, bucket="text", content=row)
        asyncio.get_running_loop().call_later(1, lambda: print("begun", flush=True))
        await pool.ask("jobs_plan", pool=POOL, config=job_config())
asyncio.run(main(Path(sys.argv[1])))
"""


async def test_no_tokenizing_child_outlives_a_killed_leader(tmp_path: Path) -> None:
    leader = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, str(tmp_path),
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert leader.stdout is not None
    async with asyncio.timeout(30):
        assert await leader.stdout.readline() == b"begun\n"
        children = psutil.Process(leader.pid).children(recursive=True)
        (child,) = children
        assert "control.datasets.tokenize_child" in child.cmdline()
        os.kill(leader.pid, signal.SIGKILL)
        await leader.wait()
        _, alive = await asyncio.to_thread(psutil.wait_procs, children, 5)
    assert alive == []
    assert list((tmp_path / "leader" / "tokens").glob("*")) == []
