"""What a verification compares and what it allows: probe settings, tolerance, verdict.

Runs inside a transaction or is pure. Losses are means over supervised tokens, in nats.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from control.store import jobs, records, stages, verifications
from control.store.database import Tx
from control.store.verifications import Verification
from transport.api.verify import ShownVerification
from transport.orders import TrainSettings
from transport.units import count_of

STEPS = 4
HELD_OUT = 4
"""Held-out sequences of the probe, at most."""

EQUAL = 1e-5
ROUNDED = {"bfloat16": 0.02, "float16": 0.005}
"""16-bit products are rounded in another order: as far apart may two right runs be."""
CODED = {"fixed_int8": 0.05, "fixed_int4": 2.0, "learned": 0.25}
FINE_ROTATION, COARSE_ROTATION = 0.05, 0.15
FINE_BITS = 3
MEASURED_BOUNDARIES = 2
"""Codes were measured at one and two boundaries; what they lose grows with the boundaries."""


def probe_settings(settings: TrainSettings) -> tuple[TrainSettings, list[str]]:
    """A probe's settings, and what they change of the job's, in words.

    Each micro-batch is one sequence; the rate acts in full from the first step.
    """
    changes: dict[str, Any] = {
        "steps": STEPS,
        "batch_size": settings.micro_batches,
        "lr_schedule": "constant",
        "warmup_steps": 0,
        "clip": "pipeline",
        "eval_every_steps": 0,
        "eval_sequences": min(settings.eval_sequences, HELD_OUT),
        "snapshot_every_steps": 0,
    }
    told = [
        f"{name} {value} instead of {getattr(settings, name)}"
        for name, value in changes.items()
        if getattr(settings, name) != value
    ]
    if settings.lora is not None and settings.lora.dropout:
        changes["lora"] = settings.lora.model_copy(update={"dropout": 0.0})
        told.append(f"no dropout instead of {settings.lora.dropout}")
    return settings.model_copy(update=changes), told


@dataclass(frozen=True)
class Tolerance:
    """How far apart the losses may be, in nats, and why."""

    nats: float
    why: str


def tolerance_of(settings: TrainSettings, num_stages: int) -> Tolerance:
    """What number format and compression allow between two right runs."""
    rounded = ROUNDED.get(settings.dtype, EQUAL)
    kind, boundaries = settings.compression.kind, num_stages - 1
    if kind == "none" or not boundaries:
        return Tolerance(rounded, f"{settings.dtype}, nothing compressed")
    coarse = COARSE_ROTATION if settings.compression.bits < FINE_BITS else FINE_ROTATION
    coded = CODED.get(kind, coarse) * max(1.0, boundaries / MEASURED_BOUNDARIES)
    return Tolerance(rounded + coded, f"{settings.dtype}, {kind} at {boundaries} boundaries")


@dataclass(frozen=True)
class Losses:
    """One run's: of each step, and held out before and after."""

    steps: list[float]
    held_out: list[float]

    def places(self) -> list[tuple[str, float]]:
        """Each loss with its place in words."""
        steps = [(f"step {number}", loss) for number, loss in enumerate(self.steps, 1)]
        return [*steps, *zip(("held out before", "held out after"), self.held_out)]


def largest_difference(split: Losses, alone: Losses) -> tuple[float, str] | None:
    """(nats, where); None when they do not tell of the same places."""
    ours, theirs = split.places(), alone.places()
    if not ours or [place for place, _ in ours] != [place for place, _ in theirs]:
        return None
    return max((abs(a - b), place) for (place, a), (_, b) in zip(ours, theirs))


def split_losses(tx: Tx, probe_job_id: str, num_stages: int) -> Losses:
    """What the stages of a probe have told so far."""
    steps = list(records.losses(tx, probe_job_id, num_stages - 1, (1, STEPS)))
    told = {one.moment: one.loss for one in records.evaluations(tx, probe_job_id)}
    return Losses(steps, [told[name] for name in ("base", "trained") if name in told])


def are_comparable(tx: Tx, one: Verification, alone: Losses) -> bool:
    """Whether the one process and the stages tell of the same steps and evaluations."""
    num_stages = len(stages.of_job(tx, one.probe_job_id, 1))
    split = split_losses(tx, one.probe_job_id, num_stages)
    return largest_difference(split, alone) is not None


def shown(tx: Tx, one: Verification) -> ShownVerification:
    """A verification as it is shown."""
    probe = jobs.find(tx, one.probe_job_id)
    verified = jobs.find(tx, one.job_id)
    assert probe is not None
    assert verified is not None
    rows = stages.of_job(tx, one.probe_job_id, 1)
    settings, num_stages = rows[0].work.settings, len(rows)
    tolerance = tolerance_of(settings, num_stages)
    split = split_losses(tx, one.probe_job_id, num_stages)
    alone = Losses(list(one.told.get("losses", [])), list(one.told.get("held_out", [])))
    found = largest_difference(split, alone) if one.state == "done" else None
    return ShownVerification(
        state=one.state,
        verdict=_verdict(found, tolerance),
        largest_difference=found[0] if found else None,
        largest_at=found[1] if found else "",
        tolerance=tolerance.nats,
        tolerance_why=tolerance.why,
        probe_job_id=one.probe_job_id,
        fellow_id=one.fellow_id,
        stages=num_stages,
        steps=settings.steps,
        split_losses=split.steps,
        one_process_losses=alone.steps,
        split_held_out=split.held_out,
        one_process_held_out=alone.held_out,
        differs=one.differs,
        reason=one.reason,
        untrusted_error=one.error,
        asked_at=one.asked_at,
        ended_at=one.ended_at,
    )


def _verdict(found: tuple[float, str] | None, tolerance: Tolerance) -> Any:
    if found is None:
        return None
    return "equal" if found[0] <= tolerance.nats else "different"


def shown_of_job(tx: Tx, job_id: str) -> ShownVerification | None:
    """The newest verification of a job."""
    one = verifications.of_job(tx, job_id)
    return None if one is None else shown(tx, one)


def record_of(tx: Tx, job_id: str) -> Sequence[dict[str, Any]]:
    """The line that a job's file of records has of its verification; none before the verdict."""
    one = shown_of_job(tx, job_id)
    return [{"verification": one.model_dump()}] if one is not None and one.verdict else []


def summary_of(job_id: str, one: ShownVerification) -> str:
    """One or two sentences; numbers and ids only."""
    over = count_of(one.stages, "stage")
    if one.state == "probing":
        return f"Job {job_id} is verified: {over} train a probe of {one.steps} steps."
    if one.state == "waiting":
        return f"Job {job_id} is verified: the run in one process waits: {one.reason}."
    if one.state == "comparing":
        return f"Job {job_id} is verified: {one.fellow_id} trains the probe in one process."
    if one.state == "failed":
        return f"Job {job_id} was not verified: {one.reason}."
    apart = f"{one.largest_difference:.1e} nats at {one.largest_at}"
    if one.verdict == "equal":
        return (
            f"Job {job_id}: {over} compute what one process computes. Largest difference of a loss "
            f"{apart}, allowed {one.tolerance:.1e} ({one.tolerance_why})."
        )
    return (
        f"Job {job_id}: {over} and one process DIFFER by {apart}, more than the "
        f"{one.tolerance:.1e} allowed ({one.tolerance_why}). Do not trust what it trained."
    )
