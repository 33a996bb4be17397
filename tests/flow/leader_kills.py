"""`python -m tests.flow.leader_kills FOLDER ROUNDS SEED`: kills a leader at work, again and again.

Each round a forked child opens the leader, submits jobs and reports steps, and tells what was
acknowledged; it is killed with SIGKILL at a random moment. At the end everything acknowledged must
be there. Prints one JSON object.
"""

import asyncio
import json
import os
import random
import select
import signal
import sqlite3
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from control.clock import HandClock
from control.leader import Leader
from control.settings import Settings
from tests.leader_twins import POOL, Fellow, Pool, job_config, seeded_bytes, write_model

STEPS = 1_000_000


async def prepare(folder: Path) -> dict[str, Any]:
    """A leader with one running job over two fellows. What the rounds need to know of it."""
    pool = await opened(folder, 0)
    try:
        await pool.ask("pools_create", pool=POOL)
        await pool.add_model(write_model(folder / "model"))
        await pool.add_text()
        fellows = [await pool.add_fellow() for _ in range(2)]
        job = await pool.ask(
            "jobs_submit", pool=POOL, config=job_config(steps=STEPS), unpinned=True
        )
        fellows.sort(key=lambda fellow: fellow.assignment().order.stage)
        for fellow in fellows:
            await fellow.bind()
        for fellow in fellows:
            await fellow.load()
        told = [[f.fellow_id, f.credential] for f in fellows]
        return {"job_id": job.job_id, "fellows": told}
    finally:
        await pool.leader.close()


async def opened(folder: Path, round_number: int) -> Pool:
    settings, clock = Settings(data=folder / "leader"), HandClock()
    leader = await Leader.open(settings, clock, seeded_bytes(round_number))
    return Pool(leader, clock, settings)


async def work(folder: Path, told: dict[str, Any], round_number: int, out: int) -> None:
    """Submit and report until killed; every acknowledgement is a line on `out`."""
    pool = await opened(folder, round_number)
    fellows = [Fellow(pool, name, secret, 4 * 10**9) for name, secret in told["fellows"]]

    def say(*words: object) -> None:
        os.write(out, (" ".join(map(str, words)) + "\n").encode())

    async def submit() -> None:
        waiting = {**job_config(), "min_workers": 4}
        while True:
            job = await pool.ask("jobs_submit", pool=POOL, config=waiting, unpinned=True)
            say("job", job.job_id)

    async def report(fellow: Fellow) -> None:
        fellow.sequence = fellow.beat().reports_committed
        number = fellow.sequence * 3
        while True:
            number += 3
            steps = [fellow.step(number + more, 1.0) for more in range(3)]
            taken = await fellow.report(*steps)
            assert taken.committed == fellow.sequence
            say("steps", fellow.assignment().order.stage, number, fellow.line("x").attempt)

    say("open")
    await asyncio.gather(submit(), submit(), *(report(fellow) for fellow in fellows))


def one_round(folder: Path, told: dict[str, Any], number: int, wait_s: float) -> list[list[str]]:
    """Fork, let it work so long, kill it. What it told."""
    inside, outside = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(inside)
        with suppress(BaseException):
            asyncio.run(work(folder, told, number, outside))
        os._exit(1)
    os.close(outside)
    text, until = b"", None
    while until is None or time.monotonic() < until:
        ready, _, _ = select.select([inside], [], [], 0.005 if until else 20)
        piece = os.read(inside, 65536) if ready else b""
        text += piece
        if until is None:
            until = time.monotonic() + wait_s
    os.kill(child, signal.SIGKILL)
    while piece := os.read(inside, 65536):
        text += piece
    os.close(inside)
    os.waitpid(child, 0)
    whole = text[: text.rfind(b"\n") + 1].decode().splitlines()
    return [line.split() for line in whole]


def lost(folder: Path, told: dict[str, Any], acknowledged: list[list[str]]) -> dict[str, Any]:
    """What was acknowledged and is not there, and how the database and the job are."""
    with sqlite3.connect(folder / "leader" / "leader.db") as tx:
        jobs = {row[0] for row in tx.execute("SELECT job_id FROM jobs")}
        steps = set(tx.execute("SELECT stage, step FROM steps"))
        sound = tx.execute("PRAGMA integrity_check").fetchone()[0]
        state = tx.execute(
            "SELECT state, attempt FROM jobs WHERE job_id = ?", (told["job_id"],)
        ).fetchone()
    tx.close()
    gone = [line for line in acknowledged if line[0] == "job" and line[1] not in jobs]
    for line in acknowledged:
        if line[0] == "steps":
            stage, first = int(line[1]), int(line[2])
            gone += [line for more in range(3) if (stage, first + more) not in steps]
    return {"lost": gone, "integrity": sound, "job": list(state)}


def main(folder: Path, rounds: int, seed: int) -> dict[str, Any]:
    """All rounds, and the reckoning."""
    told, dice = asyncio.run(prepare(folder)), random.Random(seed)
    acknowledged: list[list[str]] = []
    opened_rounds = 0
    for number in range(1, rounds + 1):
        lines = one_round(folder, told, number, dice.uniform(0.0, 0.12))
        opened_rounds += ["open"] in lines
        acknowledged += [line for line in lines if line != ["open"]]
    told_at_end = lost(folder, told, acknowledged)
    return {"acknowledged": len(acknowledged), "opened": opened_rounds, **told_at_end}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
