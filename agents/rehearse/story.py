"""Plays a rehearsal script: the town, the job, its troubles, and what came out against what should.

Asks over REST like anybody. Every wait is bounded.
"""

import secrets
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from agents.demo.processes import wait_until
from agents.fellow.cpu_card import parse_card
from agents.fellow.inventory import cores
from agents.folders import add_model, export_adapter
from agents.rehearse.sample_model import write_model, write_rows
from agents.rehearse.script import Script
from agents.rehearse.town import POOL, Town
from agents.rehearse.troubles import Say, Troubles, in_words
from transport.api.buckets import BUCKETS_ADD, BUCKETS_CREATE, BucketsAdd, BucketsCreate
from transport.api.jobs import (
    ENDED,
    JOBS_GET,
    JOBS_PLAN,
    JOBS_RECORDS,
    JOBS_SUBMIT,
    JobsGet,
    JobsPlan,
    JobsRecords,
    JobsSubmit,
    JobView,
)
from transport.errors import SwarmError
from transport.schema import parse
from transport.units import human_bytes

MODEL, BUCKET = "rehearsal", "rehearsal"
TURN_S = 0.1
TOLD_S = 5.0
"""Between two words of how far the job is."""
ADAPTER = "adapter_model.safetensors"


@dataclass(frozen=True)
class Run:
    """One run of the job, with or without troubles."""

    job: JobView
    seconds: float
    losses: list[float]
    adapter_sha256: str | None
    happened: list[tuple[float, str]]
    """(at which second, in words): troubles and their ends."""
    never_came: list[str]
    """Troubles that were still to come when it ended."""


@dataclass(frozen=True)
class Seat:
    """Where the plan puts a stage."""

    stage: int
    fellow: str
    card: str
    first_layer: int
    last_layer: int
    planned_bytes: int
    total_bytes: int

    def __str__(self) -> str:
        layers = f"layers {self.first_layer}-{self.last_layer}"
        memory = f"{human_bytes(self.planned_bytes)} of {human_bytes(self.total_bytes)}"
        return f"stage {self.stage}: {self.fellow}, {self.card}, {layers}, {memory}"


@dataclass
class Outcome:
    """What came out, and each expectation that does not hold, in words."""

    plan: list[Seat]
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
            SwarmError: a card is larger than this machine, the town could not be built, or a
                process of it died by itself.
        """
        for fellow in self.script.fellows:
            memory = psutil.virtual_memory().total
            parse_card(fellow.card_spec, cores=cores(), memory_bytes=memory)
        self.say(f"a leader and {len(self.script.fellows)} fellows start")
        self.town.open(self.script)
        self._bring_in()
        plan = self._plan()
        for seat in plan:
            self.say(str(seat))
        undisturbed = None
        if self.script.expect.same_as_undisturbed:
            self.say("the job, undisturbed")
            undisturbed = self._run(Troubles(self.town, [], self.say))
        self.say("the job, with its troubles")
        run = self._run(Troubles(self.town, list(self.script.troubles), self.say))
        return Outcome(plan, run, undisturbed, list(self._missed(run, undisturbed)))

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

    def _plan(self) -> list[Seat]:
        """Where the job would run now."""
        wait_until("readiness", self.town.all_ready, 60, self.town.household)
        asked = parse(JobsPlan, {"pool": POOL, "config": self._config()})
        names = {found: name for name, found in self.town.fellow_ids.items()}
        return [
            Seat(
                card.stage or 0, names[card.fellow_id], card.name, card.first_layer or 0,
                card.last_layer or 0, card.planned_bytes or 0, card.total_bytes,
            )
            for card in self.town.client.call(JOBS_PLAN, asked).cards
            if card.used
        ]  # fmt: skip

    def _config(self) -> dict[str, Any]:
        told = self.script.job
        return {**told, "model": {"id": f"local:{MODEL}"}, "data": {"bucket": BUCKET}}

    def _run(self, troubles: Troubles) -> Run:
        wait_until("readiness", self.town.all_ready, 60, self.town.household)
        job = self._submit()
        began = time.monotonic()
        try:
            job = self._follow(job, troubles, began)
        finally:
            troubles.end(time.monotonic() - began)
        seconds = time.monotonic() - began
        never = [in_words(trouble) for trouble in troubles.waiting]
        return Run(job, seconds, self._losses(job), self._adapter(job), troubles.happened, never)

    def _submit(self) -> JobView:
        ask = {
            "pool": POOL,
            "config": self._config(),
            "unpinned": True,
            "request_id": secrets.token_hex(8),
        }
        return self.town.client.call(JOBS_SUBMIT, parse(JobsSubmit, ask))

    def _follow(self, job: JobView, troubles: Troubles, began: float) -> JobView:
        """Until the job has ended, or its time is over."""
        limit_s, told, told_at = self.script.expect.within_s, "", 0.0
        while True:
            at_s = time.monotonic() - began
            troubles.turn(at_s, job.step)
            self.town.household.require_alive()
            job = self._asked(job)
            if job.state != told or at_s - told_at >= TOLD_S:
                words = f"{job.state} at step {job.step} of {job.steps}, attempt {job.attempt}"
                self.say(words + (f": {job.reason}" if job.reason else ""))
                told, told_at = job.state, at_s
            if job.state in ENDED or at_s > limit_s:
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
        missed += [f"{words} never came: the job was over" for words in run.never_came]
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
