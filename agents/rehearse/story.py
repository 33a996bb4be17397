"""Plays a rehearsal script: the town, the job, its troubles, and what came out against what should.

Asks over REST like anybody. Every wait is bounded.
"""

import secrets
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agents.demo.processes import wait_until
from agents.folders import add_model, export_adapter
from agents.rehearse.sample_model import write_model, write_rows
from agents.rehearse.script import Script
from agents.rehearse.town import POOL, Town
from agents.rehearse.troubles import Say, Troubles
from transport.api.buckets import BUCKETS_ADD, BUCKETS_CREATE, BucketsAdd, BucketsCreate
from transport.api.jobs import (
    ENDED,
    JOBS_GET,
    JOBS_RECORDS,
    JOBS_SUBMIT,
    JobsGet,
    JobsRecords,
    JobsSubmit,
    JobView,
)
from transport.errors import SwarmError
from transport.schema import parse

MODEL, BUCKET = "rehearsal", "rehearsal"
TURN_S = 0.1
ADAPTER = "adapter_model.safetensors"


@dataclass(frozen=True)
class Run:
    """One run of the job, with or without troubles."""

    job: JobView
    seconds: float
    losses: list[float]
    adapter_sha256: str | None


@dataclass
class Outcome:
    """What came out, and each expectation that does not hold, in words."""

    run: Run
    undisturbed: Run | None
    missed: list[str] = field(default_factory=list)


class Rehearsal:
    """One script, played in one folder."""

    def __init__(self, script: Script, folder: Path, say: Say) -> None:
        self.script = script
        self.folder = folder
        self.say = say
        self.town = Town(folder)

    def play(self) -> Outcome:
        """All of it.

        Raises:
            SwarmError: the town could not be built, or a process of it died by itself.
        """
        self.say(f"a leader and {len(self.script.fellows)} fellows start")
        self.town.open(self.script.fellows)
        self._bring_in()
        undisturbed = None
        if self.script.expect.same_as_undisturbed:
            self.say("the job, undisturbed")
            undisturbed = self._run(Troubles(self.town, [], self.say))
        self.say("the job, with its troubles")
        run = self._run(Troubles(self.town, list(self.script.troubles), self.say))
        return Outcome(run, undisturbed, list(self._missed(run, undisturbed)))

    def close(self) -> list[int]:
        """End every process; returns the ids that had to be killed."""
        killed = self.town.close()
        for fellow in self.script.fellows:
            shutil.rmtree(self.folder / fellow.name, ignore_errors=True)
        return killed

    def _bring_in(self) -> None:
        model = self.folder / "model"
        write_model(self.script.model, model)
        add_model(self.town.client, model, MODEL)
        rows = self.folder / "rows.jsonl"
        write_rows(self.script.rows, rows)
        self.town.client.call(BUCKETS_CREATE, BucketsCreate(pool=POOL, bucket=BUCKET))
        self.town.client.upload(
            BUCKETS_ADD, BucketsAdd(pool=POOL, bucket=BUCKET, name=rows.name), rows
        )

    def _run(self, troubles: Troubles) -> Run:
        wait_until("readiness", self.town.all_ready, 60, self.town.household)
        job = self._submit()
        began = time.monotonic()
        try:
            job = self._follow(job, troubles, began)
        finally:
            troubles.end()
        seconds = time.monotonic() - began
        return Run(job, seconds, self._losses(job), self._adapter(job))

    def _submit(self) -> JobView:
        told = self.script.job
        config = {**told, "model": {"id": f"local:{MODEL}"}, "data": {"bucket": BUCKET}}
        ask = {"pool": POOL, "config": config, "unpinned": True, "request_id": secrets.token_hex(8)}
        return self.town.client.call(JOBS_SUBMIT, parse(JobsSubmit, ask))

    def _follow(self, job: JobView, troubles: Troubles, began: float) -> JobView:
        """Until the job has ended and the last trouble is over."""
        limit_s, told = self.script.expect.within_s, ""
        while True:
            at_s = time.monotonic() - began
            troubles.turn(at_s, job.step)
            self.town.household.require_alive()
            job = self._asked(job)
            words = f"{job.state} at step {job.step} of {job.steps}, attempt {job.attempt}"
            if job.state != told:
                self.say(words + (f": {job.reason}" if job.reason else ""))
                told = job.state
            # A trouble that never came because the job was over must not hold the end.
            if (job.state in ENDED and not troubles.undo) or at_s > limit_s:
                return job
            time.sleep(TURN_S)

    def _asked(self, job: JobView) -> JobView:
        """The job now, or as it was known while the leader is away."""
        try:
            return self.town.client.call(JOBS_GET, JobsGet(job_id=job.job_id))
        except SwarmError as error:
            if error.code not in ("unreachable", "unavailable", "rate-limited"):
                raise
            return job

    def _losses(self, job: JobView) -> list[float]:
        rows: list[Any] = []
        while True:
            ask = JobsRecords(job_id=job.job_id, from_step=len(rows) + 1, limit=5000)
            told = self.town.client.call(JOBS_RECORDS, ask)
            rows += told.steps
            if not told.omitted or not told.steps:
                return [row.loss for row in rows]

    def _adapter(self, job: JobView) -> str | None:
        if not job.adapter_ready:
            return None
        files = export_adapter(self.town.client, job.job_id, self.folder / job.job_id).files
        return next((one.sha256 for one in files if one.name == ADAPTER), None)

    def _missed(self, run: Run, undisturbed: Run | None) -> "list[str]":
        expect, job = self.script.expect, run.job
        missed = []
        if job.state != expect.state:
            why = job.untrusted_error or job.reason or "no reason was told"
            missed.append(f"the job is {job.state}, not {expect.state}: {why}")
        if run.seconds > expect.within_s:
            missed.append(f"it took more than {expect.within_s:.0f} s")
        if expect.attempts_at_most is not None and job.attempt > expect.attempts_at_most:
            missed.append(f"it took {job.attempt} attempts, not {expect.attempts_at_most}")
        if undisturbed is not None:
            missed += _differences(run, undisturbed)
        return missed


def _differences(run: Run, undisturbed: Run) -> list[str]:
    if undisturbed.adapter_sha256 is None:
        return ["the undisturbed run left no adapter to compare with"]
    told = []
    if run.losses != undisturbed.losses:
        pairs = zip(run.losses, undisturbed.losses)
        first = next((n for n, (a, b) in enumerate(pairs, 1) if a != b), len(run.losses) + 1)
        told.append(f"its losses differ from the undisturbed run's from step {first} on")
    if run.adapter_sha256 != undisturbed.adapter_sha256:
        told.append("its adapter differs from the undisturbed run's")
    return told
