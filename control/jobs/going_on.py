"""From a saved step to the orders of the next attempt: the same split, or another one.

Pure. A stage gets the files that hold its layers, whatever the split was when they were saved.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from control.planning.plan import Plan
from control.store.jobs import Job
from control.store.snapshots import Saved
from control.store.stages import Stage
from transport.api.job_config import JobConfig, QuantizationConfig
from transport.api.jobs import Resumed
from transport.errors import SwarmError
from transport.orders import ResumeFrom, SavedStage, StageOrder, TrainSettings

BITS = {"int8": 8, "nf4": 4}


@dataclass(frozen=True)
class Place:
    """Where the next attempt runs: rows that are not stored yet, and the plan that they follow."""

    rows: Sequence[Stage]
    plan: Plan | None
    """None: as before."""

    @property
    def fellows(self) -> list[str]:
        """Who takes a stage."""
        return [row.fellow_id for row in self.rows]


def same_place(rows: Sequence[Stage], saved: Sequence[Saved]) -> Place:
    """Every stage again where it was."""
    return Place([_fresh(row, row.work, saved) for row in rows], None)


def new_place(plan: Plan, rows: Sequence[Stage], saved: Sequence[Saved]) -> Place:
    """The stages of a new plan, on the data of the attempt before."""
    view, old = plan.view, rows[0].work
    assert view.settings is not None
    assert plan.plan_id is not None
    names = {one.stage: one.hostname for one in view.layout.stages}
    made = []
    for placed in plan.stages:
        order = old.model_copy(
            update={
                "stage": placed.stage,
                "num_stages": placed.num_stages,
                "first_layer": placed.first_layer,
                "last_layer": placed.last_layer,
                "settings": view.settings,
                "cards": placed.cards,
                "threads": placed.threads,
                "plan_id": plan.plan_id,
            }
        )
        row = Stage(
            old.job_id, old.attempt, placed.stage, placed.fellow_id, names[placed.stage], order
        )
        made.append(_fresh(row, order, saved))
    return Place(made, plan)


def _fresh(row: Stage, order: StageOrder, saved: Sequence[Saved]) -> Stage:
    attempt = order.attempt + 1
    resume = _resume_of(order, saved)
    # The base model is measured at a run's first start only.
    changes = {"attempt": attempt, "resume": resume, "evaluate_base": resume is None}
    work = order.model_copy(update=changes)
    return Stage(row.job_id, attempt, row.stage, row.fellow_id, row.hostname, work)


def _resume_of(order: StageOrder, saved: Sequence[Saved]) -> ResumeFrom | None:
    if not saved:
        return None
    files = [
        SavedStage(
            stage=one.stage,
            first_layer=one.first_layer,
            last_layer=one.last_layer,
            digest=one.sha256,
            size_bytes=one.size_bytes,
        )
        for one in saved
        if _is_needed(one, order)
    ]
    return ResumeFrom(attempt=saved[0].attempt, step=saved[0].step, files=files)


def _is_needed(one: Saved, order: StageOrder) -> bool:
    """Whether a file holds layers of a stage, or what goes with the ends of the pipeline."""
    overlaps = one.first_layer <= order.last_layer and order.first_layer <= one.last_layer
    at_start = order.is_first and one.stage == 0
    at_end = order.is_last and one.stage == one.num_stages - 1
    return overlaps or at_start or at_end


def may_split(config: JobConfig) -> bool:
    """Whether a run may go on under another split: a learned bottleneck belongs to its boundary."""
    return config.compression.kind != "learned" and config.method != "boundary"


def pinned(config: JobConfig, settings: TrainSettings, cuts: Sequence[int] | None) -> JobConfig:
    """The job file of a run that goes on: every number that its result depends on stays.

    cuts: the first layers of the stages, to keep the split; None = split anew.
    """
    bits = BITS.get(settings.quantization)
    told = config.model_dump()
    told["model"] |= {
        "dtype": settings.dtype,
        "quantization": QuantizationConfig(bits=bits) if bits else "none",  # type: ignore[arg-type]
    }
    told["train"] |= {
        "seq_len": settings.seq_len,
        "batch_size": settings.batch_size,
        "micro_batches": settings.micro_batches,
        "learning_rate": settings.learning_rate,
        "lr_schedule": settings.lr_schedule,
        "warmup_steps": settings.warmup_steps,
    }
    told["maximize"] = None
    if cuts is None:
        told |= {"layer_index": None, "min_workers": 1}
    else:
        told |= {
            "layer_index": list(cuts[1:]) or None,
            "min_workers": len(cuts),
            "max_workers": len(cuts),
        }
    return JobConfig.model_validate(told)


def resumed(job: Job, place: Place, how: tuple[str, str], now: float) -> Resumed:
    """The record of a job that goes on; how: (hand or itself, why)."""
    resume = place.rows[0].work.resume
    step = resume.step if resume else 0
    by, why = how
    return Resumed.model_validate(
        {
            "attempt": place.rows[0].attempt,
            "step": step,
            "lost_steps": max(0, job.step - step),
            "at": now,
            "by": by,
            "why": why,
        }
    )


def nothing_saved(job: Job) -> SwarmError:
    """The refusal to resume a job that has no saved step."""
    every = job.config.train.snapshot_every_steps
    why = f"it saves every {every} steps" if every else "train.snapshot_every_steps is 0"
    return refused(
        job, "nothing-saved", f"job {job.job_id} has no saved step yet: {why}", "start it anew"
    )


def refused(job: Job, reason: str, words: str, hint: str) -> SwarmError:
    """A refusal to resume, with its reason for programs."""
    facts = {"reason": reason, "job_id": job.job_id, "state": job.state, "attempt": job.attempt}
    return SwarmError("conflict", words, hint=hint, facts=facts)
