"""How awake the leader stays while a large data file arrives and is tokenized, and fellows beat.

    python -m tests.bench.awake [--megabytes 200] [--fellows 50]

A real leader process that times its own event loop (watched_leader); fellows in plain code that
beat every 5 s, spread; /healthz asked all the time from another process. Three stretches: at rest,
while `swarm buckets add` sends the file, while a plan has it tokenized. Exit code 1 past 250 ms.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from tests.acceptance.durable_load import rest
from tests.flow.open_leader import OpenLeader, heartbeat, join_fellow, write_tiny_model

ROOT = Path(__file__).parents[2]
POOL = "ann/lab"
LIMIT_S, BEAT_S, TOKENIZE_S = 0.25, 5.0, 600.0
SENTENCE = "in the beginning was the word and the word was with all of them "
PLAN: dict[str, Any] = {
    "model": {"id": "local:tiny"},
    "data": {"bucket": "words"},
    "train": {"steps": 3, "seq_len": 128, "batch_size": 2},
}


@dataclass
class Leader:
    """A watched leader."""

    child: asyncio.subprocess.Process
    url: str
    token: str
    figures: Path

    async def stretch(self) -> dict[str, Any]:
        """The loop's figures since the last time this was asked."""
        have = self.figures.read_text() if self.figures.exists() else ""
        self.child.send_signal(signal.SIGUSR1)
        async with asyncio.timeout(10):
            while not (now := self.figures.read_text() if self.figures.exists() else "")[
                len(have) :
            ]:
                await rest(0.02)
        told: dict[str, Any] = json.loads(now.splitlines()[-1])
        return told


@asynccontextmanager
async def watched_leader(folder: Path) -> AsyncIterator[Leader]:
    """Start one; end it at the end."""
    figures = folder / "loop.jsonl"
    words = ["--port", "0", "--data", str(folder / "data"), "--log-level", "warning"]
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.watched_leader", str(figures), *words,
        cwd=ROOT, stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"SWARM_CONFIG": str(folder / "none.toml")},
    )  # fmt: skip
    try:
        assert child.stdout is not None
        url = json.loads(await asyncio.wait_for(child.stdout.readline(), 30))["url"]
        yield Leader(child, url, (folder / "data" / "owner.token").read_text(), figures)
    finally:
        child.terminate()
        await asyncio.wait_for(child.wait(), 15)


async def beat(client: httpx2.AsyncClient, fellow_id: str, credential: str, first_s: float) -> None:
    """Beat every 5 s from first_s on."""
    told = heartbeat(fellow_id)
    told["machine"]["features"] = ["stage", "lora", "full"]
    headers = {"authorization": f"Bearer {credential}"}
    await rest(first_s)
    while True:
        answer = await client.post("/fellow/v1/heartbeat", json=told, headers=headers)
        assert answer.status_code == 200, answer.text
        await rest(BEAT_S)


async def asked(client: httpx2.AsyncClient, work: Awaitable[Any]) -> tuple[Any, list[float]]:
    """Ask /healthz every 10 ms until some work is done: its result, and how long answers took."""
    task, waits = asyncio.ensure_future(work), []
    while not task.done():
        began = time.perf_counter()
        assert (await client.get("/healthz")).status_code == 200
        waits.append(time.perf_counter() - began)
        await asyncio.wait({task}, timeout=0.01)
    return task.result(), sorted(waits)


async def send(leader: Leader, file: Path) -> dict[str, Any]:
    """`swarm buckets add`, as a process of its own."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "agents.cli.main", "buckets", "add", "words", str(file),
        "--pool", POOL, "--json", cwd=ROOT, stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"SWARM_LEADER": leader.url, "SWARM_TOKEN": leader.token},
    )  # fmt: skip
    out, _ = await child.communicate()
    assert child.returncode == 0
    told: dict[str, Any] = json.loads(out)
    return told


async def tokenize(world: OpenLeader, tokens: Path) -> dict[str, Any]:
    """Ask for plans until the token file lies there."""
    deadline = time.monotonic() + TOKENIZE_S
    while True:
        plan = await world.post("/jobs/plan", pool=POOL, config=PLAN)
        if list(tokens.glob("*.safetensors")):
            return plan
        assert time.monotonic() < deadline, plan["summary"]
        await rest(1.0)


async def run(megabytes: int, num_fellows: int, folder: Path) -> bool:
    """All stretches; whether each stayed under the limit."""
    row = json.dumps({"text": SENTENCE * 14}) + "\n"
    file = folder / "rows.jsonl"
    file.write_text(row * (megabytes * 10**6 // len(row)))
    write_tiny_model(folder / "tiny")
    fine = True
    async with watched_leader(folder) as leader, httpx2.AsyncClient(base_url=leader.url) as client:
        world = OpenLeader(None, leader.url, leader.token, folder)
        await world.post("/pools", pool=POOL)
        await world.post("/buckets", pool=POOL, bucket="words")
        await world.add_model("tiny")
        who = [await join_fellow(world, POOL) for _ in range(num_fellows)]
        spread = [number * BEAT_S / num_fellows for number in range(num_fellows)]
        beats = [asyncio.create_task(beat(client, *one, at)) for one, at in zip(who, spread)]
        await leader.stretch()
        works: dict[str, Awaitable[Any]] = {
            "at rest, 10 s": rest(10),
            f"while {megabytes} MB arrive": send(leader, file),
            "while they are tokenized": tokenize(world, folder / "data" / "tokens"),
        }
        for name, work in works.items():
            began = time.monotonic()
            _, waits = await asked(client, work)
            figures = await leader.stretch()
            fine = show(name, time.monotonic() - began, figures, waits) and fine
        for one in beats:
            assert not one.done(), one
            one.cancel()
        await asyncio.gather(*beats, return_exceptions=True)
    return fine


def show(name: str, seconds: float, figures: dict[str, Any], waits: list[float]) -> bool:
    """Print one stretch; whether the loop stayed under the limit."""
    fine = bool(figures["max_s"] < LIMIT_S)
    print(
        f"{name} ({seconds:.1f} s): loop late p99 {figures['p99_s'] * 1000:.1f} ms, "
        f"max {figures['max_s'] * 1000:.0f} ms of {figures['ticks']} ticks; "
        f"/healthz p99 {waits[int(len(waits) * 0.99)] * 1000:.0f} ms, "
        f"max {waits[-1] * 1000:.0f} ms of {len(waits)} answers"
        f" - {'ok' if fine else f'OVER {LIMIT_S * 1000:.0f} ms'}"
    )
    for stand, count in figures["stands"].items():
        print(f"  over 100 ms, {count} times at {stand}")
    return fine


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure how awake the leader stays.")
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--fellows", type=int, default=50)
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return 0 if asyncio.run(run(told.megabytes, told.fellows, Path(folder))) else 1


if __name__ == "__main__":
    raise SystemExit(main())
