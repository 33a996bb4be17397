"""Kills a leader at work with SIGKILL, again and again, and looks for what it had promised.

    python -m tests.acceptance.durable_run --kills 200 [--seed N] [--folder FOLDER]

A real leader process on one port and one data folder, under durable_load. After each kill the
store's file is looked at as it lies there, and the next leader is asked. Prints one JSON object;
exit code 1 when anything was lost.
"""

import argparse
import asyncio
import json
import os
import random
import secrets
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.acceptance.durable_load import JOB, STAGES, Ledger, Load, rest
from tests.flow.open_leader import POOL, TEXT, OpenLeader, join_fellow, write_tiny_model

ROOT = Path(__file__).parents[2]
READY_S, END_S = 30.0, 60.0
STEPS_A_KILL = 15
EARLY = 0.2
"""Share of the kills that come before the leader is ready, while it reads what it had stored."""


@dataclass
class LeaderProcess:
    """The one leader that is alive now, or none."""

    folder: Path
    port: int = 0
    url: str = ""
    child: asyncio.subprocess.Process | None = None
    ready_s: list[float] = field(default_factory=list)

    async def spawn(self) -> None:
        """Start one on the same data and port; not ready yet."""
        words = ["--port", str(self.port), "--data", str(self.folder / "data")]
        with (self.folder / "leader.log").open("ab") as log:
            self.child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "mcp_server.main", "--log-level", "warning", *words,
                cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=log,
                env=os.environ | {"SWARM_CONFIG": str(self.folder / "none.toml")},
            )  # fmt: skip

    async def wait_ready(self) -> None:
        """Until its line of readiness."""
        assert self.child is not None
        assert self.child.stdout is not None
        began = time.monotonic()
        line = await asyncio.wait_for(self.child.stdout.readline(), READY_S)
        assert line, f"the leader did not start; see {self.folder / 'leader.log'}"
        self.ready_s.append(time.monotonic() - began)
        self.url = str(json.loads(line)["url"])
        self.port = int(self.url.rsplit(":", 1)[1])

    async def kill(self) -> None:
        """SIGKILL."""
        if self.child is not None:
            if self.child.returncode is None:
                self.child.kill()
            await asyncio.wait_for(self.child.wait(), 10)


@dataclass
class Trial:
    """One run: its leader, its load, and what was found wrong."""

    leader: LeaderProcess
    load: Load
    folder: Path
    wrong: list[str] = field(default_factory=list)
    early_kills: int = 0

    async def rounds(self, kills: int, dice: random.Random) -> None:
        """Kill and look, so many times; at the end a leader is ready."""
        while kills:
            is_early = self.leader.child is None
            if is_early:
                await self.leader.spawn()
                is_early = dice.random() < EARLY
                await (rest(dice.uniform(0.0, 1.0)) if is_early else self.leader.wait_ready())
            await rest(0.0 if is_early else dice.uniform(0.02, 0.5))
            promised = self.load.ledger.copy()
            await self.leader.kill()
            self.leader.child = None
            self.early_kills += is_early
            self.wrong += look(self.folder, self.load.job_id, promised)
            kills -= 1
        await self.leader.spawn()
        await self.leader.wait_ready()


def look(folder: Path, job_id: str, promised: Ledger) -> list[str]:
    """What is missing or broken in the store as a killed leader left it. Looks at a copy."""
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    for file in (folder / "data").glob("leader.db*"):
        shutil.copy(file, copy)
    with closing(sqlite3.connect(copy / "leader.db")) as tx:
        return [*_unsound(tx), *_missing(tx, promised), *_unsteady(tx, job_id, promised)]


def _unsound(tx: sqlite3.Connection) -> list[str]:
    told = tx.execute("PRAGMA integrity_check").fetchall()
    foreign = tx.execute("PRAGMA foreign_key_check").fetchall()
    return [f"integrity_check: {told}"] * (told != [("ok",)]) + [str(row) for row in foreign]


def _missing(tx: sqlite3.Connection, promised: Ledger) -> list[str]:
    states = dict(tx.execute("SELECT job_id, state FROM jobs"))
    buckets = {row[0] for row in tx.execute("SELECT bucket FROM buckets")}
    committed = dict(tx.execute("SELECT fellow_id, reports_committed FROM fellows"))
    told = [f"job {one} is gone" for one in promised.submits.values() if one not in states]
    told += [
        f"job {one} is not cancelled" for one in promised.cancels if states.get(one) != "cancelled"
    ]
    told += [f"bucket {one} is gone" for one in promised.buckets - buckets]
    return told + [
        f"reports of {fellow} up to {number} were promised, {committed.get(fellow)} are there"
        for fellow, number in promised.reports.items()
        if committed.get(fellow, 0) < number
    ]


def _unsteady(tx: sqlite3.Connection, job_id: str, promised: Ledger) -> list[str]:
    """What is wrong with the running job."""
    told = []
    state, attempt = tx.execute(
        "SELECT state, attempt FROM jobs WHERE job_id = ?", (job_id,)
    ).fetchone()
    if (state, attempt) not in (("starting", 1), ("running", 1)):
        told.append(f"the running job is {state} at attempt {attempt}")
    for stage in range(STAGES):
        query = "SELECT step FROM steps WHERE job_id = ? AND stage = ? ORDER BY step"
        steps = [row[0] for row in tx.execute(query, (job_id, stage))]
        least = max(promised.steps.get(stage, 0), promised.seen_step if stage == STAGES - 1 else 0)
        if steps != list(range(1, len(steps) + 1)) or len(steps) < least:
            told.append(f"stage {stage} has {len(steps)} steps, of which {least} were promised")
    return told


async def prepare(folder: Path, leader: LeaderProcess, steps: int) -> Load:
    """A pool with a model, data, two fellows, and the one job that must survive it all."""
    await leader.spawn()
    await leader.wait_ready()
    token = (folder / "data" / "owner.token").read_text()
    world = OpenLeader(None, leader.url, token, folder)
    write_tiny_model(folder / "tiny")
    await world.post("/pools", pool=POOL)
    await world.post("/buckets", pool=POOL, bucket="words")
    await world.post("/buckets/words/files", pool=POOL, name="a.txt", content=TEXT)
    await world.add_model("tiny")
    who = [await join_fellow(world, POOL) for _ in range(STAGES)]
    config = {**JOB, "train": {**JOB["train"], "steps": steps}, "min_workers": STAGES}
    job = await world.post("/jobs", pool=POOL, config=config, unpinned=True)
    return Load(leader.url, token, str(job["job_id"]), steps, who)


async def run(kills: int, seed: int, folder: Path) -> dict[str, Any]:
    """All of it; what was found."""
    began, leader, steps = time.monotonic(), LeaderProcess(folder), kills * STEPS_A_KILL
    try:
        load = await prepare(folder, leader, steps)
        trial = Trial(leader, load, folder)
        async with load.at_work():
            await asyncio.wait_for(load.until_running(), END_S)
            await trial.rounds(kills, random.Random(seed))
            job = await load.finish(END_S)
        trial.wrong += look_at_end(load, job, steps)
    finally:
        await leader.kill()
    ledger = load.ledger
    return {
        "kills": kills,
        "seed": seed,
        "before_ready": trial.early_kills,
        "lost_or_wrong": trial.wrong + ledger.faults,
        "acknowledged": ledger.acknowledged,
        "submits": len(ledger.submits),
        "cancels": len(ledger.cancels),
        "buckets": len(ledger.buckets),
        "reads": ledger.reads,
        "asked_again": ledger.asked_again,
        "job_id": load.job_id,
        "job": [job["state"], job["step"], job["attempt"]],
        "median_ready_s": round(sorted(leader.ready_s)[len(leader.ready_s) // 2], 2),
        "seconds": round(time.monotonic() - began, 1),
    }


def look_at_end(load: Load, job: dict[str, Any], steps: int) -> list[str]:
    """The job has completed, every step is there once, and nothing was done twice."""
    told = []
    if (job["state"], job["step"], job["attempt"]) != ("completed", steps, 1):
        told.append(f"the job is {job['state']} at step {job['step']}, attempt {job['attempt']}")
    if load.final_steps != [list(range(1, steps + 1))] * STAGES:
        told.append(f"its records hold {[len(one) for one in load.final_steps]} of {steps} steps")
    if load.final_jobs != len(load.ledger.submits) + 1:
        told.append(f"{load.final_jobs} jobs for {len(load.ledger.submits) + 1} requests")
    return told


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Kill a leader at work and look for losses.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--folder", type=Path, help="kept; a temporary one otherwise")
    told = parser.parse_args(argv)
    print(f"seed {told.seed}", file=sys.stderr, flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no leader is left
    with tempfile.TemporaryDirectory() as temporary:
        folder = told.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = asyncio.run(run(told.kills, told.seed, folder))
    print(json.dumps(found, indent=2))
    return 1 if found["lost_or_wrong"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
