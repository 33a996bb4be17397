"""A pool and its runs as the leader would tell them, built of the transport models."""

import math
from typing import Any

from transport.api.fellows import FellowRow
from transport.api.job_config import DataConfig, ModelConfig, TrainConfig
from transport.api.jobs import Evaluation, JobView, LogRow, ShownConfig, ShownStage, StepRow
from transport.api.plans import Chosen
from transport.api.pools import ActiveJob, ClusterView

POOL = "ann/lab"
NOW = 1_795_968_000.0  # 2026-11-29 16:00 UTC
GB = 1_000_000_000
HOSTS = ("atlas", "borealis", "cedar")
FELLOWS = ("f-aaaaaaaa", "f-bbbbbbbb", "f-cccccccc")
JOB = "j-8fq2m4xc"
CONFIG = ShownConfig(
    model=ModelConfig(id="local:SmolLM2-135M"),
    data=DataConfig(bucket="kjv"),
    train=TrainConfig(steps=40),
)


def a_fellow(index: int, **given: Any) -> FellowRow:
    """A ready machine with one card; the keyword arguments change what it tells."""
    told: dict[str, Any] = {
        "fellow_id": FELLOWS[index],
        "pool": POOL,
        "untrusted_hostname": HOSTS[index],
        "version": "0.1.0",
        "status": "ready",
        "health": "A",
        "causes": [],
        "cards": 1,
        "card_names": [("RTX A4000", "GTX 1660 SUPER", "cpu 4 GB")[index]],
        "card_used_bytes": int((9.1, 3.4, 0.6)[index] * GB),
        "card_total_bytes": (16, 6, 4)[index] * GB,
        "card_peak_bytes": int((11.8, 4.0, 0.7)[index] * GB),
        "busy_peak": (0.93, 0.88, None)[index],
        "sent_bytes_s": (1_240_000.0, 1_180_000.0, 640.0)[index],
        "received_bytes_s": (1_180_000.0, 2_410_000.0, 512.0)[index],
        "step": None,
        "loss": None,
        "last_seen_at": NOW - 2,
    }
    return FellowRow(**(told | given))


def training(steps: tuple[int, int, int] = (17, 17, 17)) -> list[FellowRow]:
    """The three machines, each in the run."""
    return [
        a_fellow(index, status="training", step=step, loss=loss_at(step))
        for index, step in enumerate(steps)
    ]


def loss_at(step: int) -> float:
    """A curve that falls with some noise; the same at every call."""
    return 3.05 + 0.55 * math.exp(-step / 14) + 0.05 * math.sin(step * 2.3)


def smoothed_at(step: int) -> float:
    """The debiased exponential mean of the curve with weight 0.8."""
    mean = 0.0
    for one in range(1, step + 1):
        mean = 0.8 * mean + 0.2 * loss_at(one)
    return mean / (1 - 0.8**step)


def a_step(step: int, stage: int = 2, **given: Any) -> StepRow:
    """One measured step of one stage."""
    told: dict[str, Any] = {
        "step": step,
        "stage": stage,
        "loss": loss_at(step),
        "smoothed_loss": None,
        "grad_norm": 1.2,
        "learning_rate": 1e-3,
        "supervised_tokens": 1016,
        "step_s": 3.1,
        "compute_s": 1.0,
        "wait_s": 2.1,
        "skipped": False,
    }
    return StepRow(**(told | given))


def a_stage(stage: int, step: int | None = 17, **given: Any) -> ShownStage:
    """One of three stages of ten layers each."""
    told: dict[str, Any] = {
        "stage": stage,
        "fellow_id": FELLOWS[stage],
        "hostname": HOSTS[stage],
        "first_layer": stage * 10,
        "last_layer": stage * 10 + 9,
        "cards": [f"{FELLOWS[stage]}:0"],
        "phase": "training",
        "step": step,
        "loss": None if step is None else loss_at(step),
        "planned_bytes": (412, 318, 655)[stage] * 1_000_000,
        "peak_bytes": (398, 321, 640)[stage] * 1_000_000,
    }
    return ShownStage(**(told | given))


CHOSEN = [
    Chosen(setting="train.batch_size", value=8, reason="the largest that fits every placed card"),
    Chosen(setting="train.micro_batches", value=4, reason="the largest divisor up to 6"),
    Chosen(setting="model.dtype", value="float32", reason="one card has no 16-bit format"),
    Chosen(setting="layers", value="10 + 10 + 10", reason="by free memory: cedar has no speed yet"),
]
BASE = Evaluation(moment="base", step=0, loss=3.4912, accuracy=0.381, tokens=8128, sequences=64)
TRAINED = Evaluation(
    moment="trained", step=40, loss=3.0934, accuracy=0.432, tokens=8128, sequences=64
)


def a_job(job_id: str = JOB, **given: Any) -> JobView:
    """A run at step 17 of 40 over three fellows."""
    step = given.get("step", 17)
    told: dict[str, Any] = {
        "summary": f"{job_id} runs",
        "job_id": job_id,
        "pool": POOL,
        "name": "King James style",
        "model_id": "local:SmolLM2-135M",
        "revision": "9a1f" * 10,
        "state": "running",
        "reason": "",
        "attempt": 1,
        "plan_id": "3f9c2a1b0d4e5f67",
        "pinned": True,
        "step": step,
        "steps": 40,
        "loss": loss_at(step) if step else None,
        "smoothed_loss": smoothed_at(step) if step else None,
        "step_s": 3.1 if step else None,
        "created_at": NOW - 75,
        "started_at": NOW - 70,
        "ended_at": None,
        "stages": [a_stage(stage, step or None) for stage in range(3)],
        "chosen": CHOSEN,
        "evaluations": [BASE],
        "config": CONFIG,
    }
    return JobView(**(told | given))


def a_line(number: int, level: str = "info", text: str = "", stage: int = 2) -> LogRow:
    """One line of a stage's log."""
    told = text or f"step {number}: loss {loss_at(number):.4f}, 3.1 s"
    return LogRow(
        at=NOW - 60 + number,
        stage=stage,
        fellow_id=FELLOWS[stage],
        level=level,
        untrusted_text=told,
    )


def cluster_of(fellows: list[FellowRow], jobs: list[JobView]) -> ClusterView:
    """The pool seen as a whole, with the header's words for it."""
    online = [row for row in fellows if row.status != "offline"]
    trains = sum(row.status == "training" for row in fellows)
    ready = sum(row.status == "ready" for row in fellows)
    active = [job for job in jobs if job.state in ("starting", "running", "recovering")]
    losses = [job.loss for job in active if job.loss is not None]
    used = [row.card_used_bytes for row in online if row.card_used_bytes is not None]
    return ClusterView(
        summary="",
        words=words_of(len(fellows), len(online), trains),
        fellows=len(fellows),
        ready=ready,
        training=trains,
        offline=len(fellows) - len(online),
        cards=sum(row.cards for row in online),
        cores=16 * len(online),
        memory_bytes=64 * GB * len(online),
        card_used_bytes=sum(used) if used else None,
        card_total_bytes=sum(row.card_total_bytes or 0 for row in online) if used else None,
        step=max((job.step for job in active), default=None),
        step_s=active[0].step_s if active else None,
        mean_loss=sum(losses) / len(losses) if losses else None,
        jobs=[active_row(job) for job in active],
    )


def active_row(job: JobView) -> ActiveJob:
    """What the pool's view says of a run."""
    return ActiveJob(
        job_id=job.job_id,
        pool=job.pool,
        model_id=job.model_id,
        state=job.state,
        step=job.step,
        steps=job.steps,
        loss=job.loss,
        step_s=job.step_s,
    )


def words_of(fellows: int, online: int, trains: int) -> str:
    """The four status sentences of the header."""
    if not fellows:
        return "No fellows connected"
    if online < fellows:
        return f"{online} of {fellows} fellows online"
    if trains:
        return f"Training on {trains} fellow{'s' * (trains != 1)}"
    return f"{fellows} fellow{'s' * (fellows != 1)} ready"


def a_run(leader_twin: Any, step: int = 17, behind: int = 0, **given: Any) -> None:
    """Put a run at this step over three machines into the twin; stage 0 may be steps behind."""
    job = a_job(step=step, **given)
    leader_twin.fellows = training((step - behind, step, step))
    leader_twin.jobs = {job.job_id: job}
    ends = {0: step - behind, 1: step, 2: step}
    leader_twin.steps = {
        job.job_id: [a_step(one, stage) for stage in range(3) for one in range(1, ends[stage] + 1)]
    }
    leader_twin.lines = {job.job_id: [a_line(number) for number in range(40)]}
