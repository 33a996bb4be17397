"""What memory large data takes: the leader's and that of its children, while rows are read.

    python -m tests.bench.data_memory [--megabytes 500] [--kind chat]

A real leader process. A JSONL file of so many MB is sent, checked, tokenized, measured and
planned, then a row of 200 MB is sent and refused. Memory is resident memory without mapped files,
sampled every 20 ms. Exit code 1 when the leader's own grows past 150 MB, or the refused row leaves
anything behind.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import psutil

from tests.acceptance.durable_load import rest
from tests.bench.awake import POOL, SENTENCE, Leader, watched_leader
from tests.flow.open_leader import OpenLeader, write_tiny_model

MB = 10**6
GROWTH = 150 * MB
ROW_MEGABYTES = 200
WAIT_S = 1800.0
CONFIG: dict[str, Any] = {
    "model": {"id": "local:tiny"},
    "data": {"bucket": "large"},
    "train": {"steps": 3, "seq_len": 128, "batch_size": 2},
}
CHATML = (
    "{% for m in messages %}<|{{ m.role }}|> {{ m.content }} <eos> {% endfor %}"
    "{% if add_generation_prompt %}<|assistant|> {% endif %}"
)


def own_bytes(process: psutil.Process) -> int:
    """Resident memory that is not a mapped file."""
    told = process.memory_info()
    return int(told.rss - told.shared)


@dataclass
class Meter:
    """The most memory that a leader and its children had."""

    leader: psutil.Process
    most: int = 0
    children: dict[str, int] = field(default_factory=dict)

    async def watch(self) -> None:
        """Sample for ever."""
        while True:
            self.most = max(self.most, own_bytes(self.leader))
            for child in self.leader.children():
                try:
                    name = child.cmdline()[2].rpartition(".")[2]
                    self.children[name] = max(self.children.get(name, 0), own_bytes(child))
                except (psutil.Error, IndexError):
                    continue
            await rest(0.02)


async def measured(leader: Leader, what: str, work: Awaitable[Any]) -> tuple[Any, int]:
    """Do some work and print what memory it took: its result, and the leader's growth."""
    process = psutil.Process(leader.child.pid)
    before, meter = own_bytes(process), Meter(process)
    task = asyncio.create_task(meter.watch())
    began = time.monotonic()
    result = await work
    took = time.monotonic() - began
    task.cancel()
    grown = meter.most - before
    children = ", ".join(f"{name} {size / MB:.0f} MB" for name, size in meter.children.items())
    print(
        f"{what}: {took:.1f} s; leader +{grown / MB:.0f} MB; {children or 'no child'}", flush=True
    )
    return result, grown


async def send(leader: Leader, file: Path) -> httpx2.Response:
    """Stream a file into the bucket."""

    async def pieces() -> AsyncIterator[bytes]:
        with file.open("rb") as handle:
            while piece := handle.read(MB):
                yield piece

    headers = {
        "authorization": f"Bearer {leader.token}",
        "content-type": "application/octet-stream",
    }
    path = f"/api/v1/buckets/large/files?pool={POOL}&name={file.name}"
    async with httpx2.AsyncClient(base_url=leader.url, headers=headers, timeout=600) as client:
        return await client.post(path, content=pieces())


async def plan(world: OpenLeader) -> dict[str, Any]:
    """Ask for plans until all data is checked."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        told = await world.post("/jobs/plan", pool=POOL, config=CONFIG)
        if told["data"]["checked_share"] == 1.0:
            return told
    raise TimeoutError("the data is not tokenized in time")


def write_rows(file: Path, megabytes: int, kind: str) -> None:
    """Rows that differ, each of about 1 kB."""
    with file.open("w") as out:
        size = number = 0
        while size < megabytes * MB:
            number += 1
            text = f"{SENTENCE * 7} {number}"
            turns = [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
            row = {"messages": turns} if kind == "chat" else {"text": f"{text} {text}"}
            size += out.write(json.dumps(row) + "\n")


async def run(megabytes: int, kind: str, folder: Path) -> bool:
    """All of it; whether every bound was kept."""
    write_tiny_model(folder / "tiny")
    (folder / "tiny" / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<eos>", "chat_template": CHATML})
    )
    write_rows(folder / "rows.jsonl", megabytes, kind)
    row = folder / "one.jsonl"
    row.write_bytes(b'{"text": "' + b"x" * (ROW_MEGABYTES * MB) + b'"}\n')
    async with watched_leader(folder) as leader:
        world = OpenLeader(None, leader.url, leader.token, folder)
        await world.post("/pools", pool=POOL)
        await world.post("/buckets", pool=POOL, bucket="large")
        await world.add_model("tiny")
        sent, first = await measured(
            leader, f"{megabytes} MB sent", send(leader, folder / "rows.jsonl")
        )
        assert sent.status_code == 200, sent.text
        told, second = await measured(leader, "tokenized and planned", plan(world))
        print(f"  {told['data']['tokens']:,} tokens of {told['data']['rows']:,} rows")
        refused, third = await measured(
            leader, f"a row of {ROW_MEGABYTES} MB refused", send(leader, row)
        )
        print(f"  {refused.json()['code']}: {refused.json()['detail']}")
        left = len(list((folder / "data" / "buckets").iterdir()))
    return max(first, second, third) < GROWTH and refused.status_code == 422 and left == 1


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure what memory large data takes.")
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--kind", choices=("text", "chat"), default="text")
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return 0 if asyncio.run(run(told.megabytes, told.kind, Path(folder))) else 1


if __name__ == "__main__":
    raise SystemExit(main())
