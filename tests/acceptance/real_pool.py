"""A real leader and real fellows as processes on loopback, each with a home of its own.

The same `Household` that runs the demo. Every wait is bounded and notices a process that died.
"""

import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from agents.client import Client
from agents.demo.processes import Child, Household, wait_until
from agents.demo.story import ready_url
from agents.folders import add_model
from transport.api.buckets import BUCKETS_ADD, BUCKETS_CREATE, BucketsAdd, BucketsCreate
from transport.api.fellows import FELLOWS_LIST, FellowRow, FellowsList
from transport.api.jobs import (
    ENDED,
    JOBS_GET,
    JOBS_PLAN,
    JOBS_SUBMIT,
    JOBS_WAIT,
    JobsGet,
    JobsPlan,
    JobsSubmit,
    JobsWait,
    JobView,
)
from transport.api.plans import PlanView
from transport.api.pools import INVITES_CREATE, POOLS_CREATE, InvitesCreate, PoolsCreate

POOL = "test/home"
START_S, JOB_S = 60.0, 60.0


class RealPool:
    """Leader, fellows, and a client with the owner's token."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.household = Household(folder)
        self.data = folder / "leader" / "data"
        self.leader = self._start_leader(0)
        self.url: str = wait_until("the leader", self.leader_url, START_S, self.household)
        self.token = (self.data / "owner.token").read_text("utf-8").strip()
        self.client = Client(self.url, token=self.token)
        self.client.call(POOLS_CREATE, PoolsCreate(pool=POOL))

    def _start_leader(self, port: int) -> Child:
        arguments = ["-m", "mcp_server.main", "--port", str(port), "--data", str(self.data)]
        return self.household.start("leader", arguments)

    def leader_url(self) -> str | None:
        """Where the leader listens, once it says so."""
        return ready_url(self.leader)

    def restart_leader(self, *, kill: bool) -> None:
        """End the leader (SIGKILL or SIGTERM), and start it again on the same port and data without
        waiting for it.
        """
        port = int(self.url.rsplit(":", 1)[1])
        self.household.children.remove(self.leader)
        (self.leader.process.kill if kill else self.leader.process.terminate)()
        self.leader.process.wait(15)
        self.leader.log.rename(self.leader.log.with_suffix(f".{secrets.token_hex(2)}.log"))
        self.leader = self._start_leader(port)

    def wait_leader(self) -> None:
        """Wait until the restarted leader answers."""
        wait_until("the leader's return", self.leader_url, START_S, self.household)

    def join(self, cards: Sequence[str]) -> None:
        """Join one fellow for each card and wait until all are ready."""
        for card in cards:
            invite = self.client.call(INVITES_CREATE, InvitesCreate(pool=POOL))
            number = len(self.household.children)
            self.household.start(
                f"fellow-{number}",
                ["-m", "agents.cli.main", "join", self.url, "--card", card],
                {"SWARM_INVITE": invite.secret},
            )
        wait_until("the fellows' readiness", self.all_ready, START_S, self.household)

    @property
    def fellow_daemons(self) -> list[Child]:
        """The fellow daemons, in the order in which they joined."""
        return [child for child in self.household.children if child.name.startswith("fellow")]

    def fellows(self) -> list[FellowRow]:
        """The fellows as the leader sees them."""
        return self.client.call(FELLOWS_LIST, FellowsList(pool=POOL)).fellows

    def all_ready(self) -> bool:
        """Whether every daemon that was started is ready for work."""
        ready = [row for row in self.fellows() if row.status == "ready"]
        return len(ready) == len(self.fellow_daemons)

    def wait_ready(self) -> None:
        """Wait until the pool takes the next job."""
        wait_until("readiness", self.all_ready, 30, self.household)

    def add_model(self, folder: Path, name: str) -> None:
        """Put a checkpoint folder into the leader's store."""
        add_model(self.client, folder, name)

    def add_rows(self, bucket: str, rows: list[dict[str, Any]]) -> None:
        """Make a bucket of JSONL rows."""
        self.client.call(BUCKETS_CREATE, BucketsCreate(pool=POOL, bucket=bucket))
        file = self.folder / f"{bucket}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        ask = BucketsAdd(pool=POOL, bucket=bucket, name="rows.jsonl")
        self.client.upload(BUCKETS_ADD, ask, file)

    def plan(self, config: dict[str, Any]) -> PlanView:
        """Ask for a plan of a job file."""
        raw = json.dumps({"pool": POOL, "config": config})
        return self.client.call(JOBS_PLAN, JobsPlan.model_validate_json(raw))

    def submit(self, plan: PlanView) -> JobView:
        """Start exactly a plan."""
        ask = JobsSubmit(
            pool=POOL, config=plan.config, plan_id=plan.plan_id, request_id=secrets.token_hex(8)
        )
        return self.client.call(JOBS_SUBMIT, ask)

    def job(self, job_id: str) -> JobView:
        """A job as it is now."""
        return self.client.call(JOBS_GET, JobsGet(job_id=job_id))

    def wait_step(self, job_id: str, step: int) -> JobView:
        """Wait until a job has done a step or has ended."""

        def ask() -> JobView | None:
            wait = JobsWait(job_id=job_id, until_step=step, timeout_s=1.0)
            job = self.client.call(JOBS_WAIT, wait)
            return job if job.step >= step or job.state in ENDED else None

        answer: JobView = wait_until(f"step {step}", ask, JOB_S, self.household)
        return answer

    def wait_end(self, job_id: str) -> JobView:
        """Wait until a job has ended."""

        def ask() -> JobView | None:
            job = self.client.call(JOBS_WAIT, JobsWait(job_id=job_id, timeout_s=1.0))
            return job if job.state in ENDED else None

        answer: JobView = wait_until("the job's end", ask, JOB_S, self.household)
        return answer

    def workers(self) -> list[psutil.Process]:
        """The stage worker processes: children of a daemon's warm forkserver."""
        found: list[psutil.Process] = []
        for daemon in self.fellow_daemons:
            for child in psutil.Process(daemon.process.pid).children():
                if "stage_runtime.forkserver" in " ".join(child.cmdline()):
                    found += child.children()
        return found

    def close(self) -> list[int]:
        """End everything; returns the process ids that had to be killed."""
        self.client.close()
        return self.household.stop()
