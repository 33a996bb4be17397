"""How awake the leader stays while a 200 MB data file arrives and 50 fellows beat.

Run with: pytest -m bench tests/bench/test_awake.py -s
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from statistics import median, quantiles

import httpx2
import pytest

from tests.flow.open_leader import OpenLeader, heartbeat, join_fellow
from tests.flow.test_leader_process import leader

POOL = "ann/lab"
FELLOWS, MEGABYTES, LIMIT_S = 50, 200, 0.25
ROW = json.dumps({"text": "in the beginning was the word " * 30}) + "\n"


@pytest.mark.bench
@pytest.mark.timeout(300)
async def test_the_leader_answers_within_a_quarter_second_while_200_mb_arrive(
    root: Path, tmp_path: Path
) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text(ROW * (MEGABYTES * 10**6 // len(ROW)))
    async with leader(root, tmp_path, "--log-level", "warning") as one, one.http() as client:
        world = OpenLeader(None, one.url, one.token, tmp_path)
        await world.post("/pools", pool=POOL)
        await world.post("/buckets", pool=POOL, bucket="words")
        fellows = [await join_fellow(world, POOL) for _ in range(FELLOWS)]
        upload = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "agents.cli.main", "buckets", "add", "words", str(data),
            "--pool", POOL, "--json", cwd=root, stdout=asyncio.subprocess.PIPE,
            env=os.environ | {"SWARM_LEADER": one.url, "SWARM_TOKEN": one.token},
        )  # fmt: skip
        done = asyncio.create_task(upload.communicate())
        beating = [asyncio.create_task(_beat(client, *who, done)) for who in fellows]
        waits, began = [], time.monotonic()
        while not done.done():
            asked = time.monotonic()
            assert (await client.get("/healthz")).status_code == 200
            waits.append(time.monotonic() - asked)
            await asyncio.wait({done}, timeout=0.01)
        seconds = time.monotonic() - began
        beats = sum(await asyncio.gather(*beating))
    told = json.loads((await done)[0])
    late = quantiles(waits, n=100)[98]
    print(
        f"\n{MEGABYTES} MB in {seconds:.1f} s, {told['rows']} rows, {beats} heartbeats; "
        f"{len(waits)} answers: median {median(waits) * 1000:.1f} ms, "
        f"99 % {late * 1000:.0f} ms, longest {max(waits) * 1000:.0f} ms"
    )
    assert max(waits) < LIMIT_S


async def _beat(
    client: httpx2.AsyncClient, fellow_id: str, credential: str, done: "asyncio.Task[object]"
) -> int:
    """Beat every 5 s until the upload is done; how often."""
    count = 0
    headers = {"authorization": f"Bearer {credential}"}
    while not done.done():
        body = heartbeat(fellow_id)
        answer = await client.post("/fellow/v1/heartbeat", json=body, headers=headers)
        assert answer.status_code == 200
        count += 1
        await asyncio.wait({done}, timeout=5)
    return count
