"""Reports of fellows, counted once each, in one transaction: what they change in jobs and stages.

A report of an older attempt, of another fellow's stage or of an unknown job is refused for good
and counted. A late one fills in its place and never moves a job back. Runs in the database's
thread.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from control.fellows.clean_text import clean, clean_code
from control.job_states import ACTIVE, may_move
from control.jobs.losing import Loss, lose
from control.records.job_files import JobFiles, Line
from control.records.smoothing import REACH, extend
from control.store import fellows, jobs, link_figures, records, stages
from control.store.database import Tx
from control.store.jobs import Job
from control.store.link_figures import LinkFigure
from control.store.records import Span
from control.store.stages import Peak, Stage
from transport.reports import (
    AdapterSaved,
    Evaluated,
    ExportFailed,
    FromStage,
    LinkMeasured,
    LogLine,
    Measured,
    MemoryMeasured,
    ReferenceFailed,
    ReferenceTrained,
    Report,
    ReportBatch,
    StageBound,
    StageDone,
    StageFailed,
    StageLoaded,
    StepDone,
)

MAX_ENDPOINT = 200


@dataclass
class Taken:
    """What a batch came to."""

    committed: int = 0
    may_recover: bool = True
    refused: list[int] = field(default_factory=list)
    touched: dict[str, str] = field(default_factory=dict)
    """job_id -> pool, of jobs whose orders or state may have changed."""
    progress: list[tuple[str, str, StepDone]] = field(default_factory=list)
    """(pool, job_id, step) of new steps."""
    logged: dict[str, str] = field(default_factory=dict)
    """job_id -> pool, of jobs with new log lines."""
    measured: list[Measured] = field(default_factory=list)
    link_figures: list[LinkFigure] = field(default_factory=list)
    tested: list[LinkMeasured] = field(default_factory=list)
    lines: dict[str, list[Line]] = field(default_factory=dict)


def take_batch(
    tx: Tx, batch: ReportBatch, files: JobFiles, now: float, *, may_recover: bool = True
) -> Taken:
    """Apply every report of a batch that is not stored yet.

    may_recover: jobs that lose a stage go on by themselves.
    """
    fellow = fellows.find(tx, batch.fellow_id)
    assert fellow is not None  # it was authenticated
    taken = Taken(committed=fellow.reports_committed, may_recover=may_recover)
    for numbered in batch.reports:
        if numbered.sequence <= taken.committed:
            continue
        if not _Intake(tx, fellow.fellow_id, taken, numbered.sequence, now).take(numbered.report):
            taken.refused.append(numbered.sequence)
        taken.committed = numbered.sequence
    # Lines go to their file before the commit: sent again after a crash, they are known by number.
    for job_id, lines in taken.lines.items():
        files.append_lines(job_id, lines)
    if taken.committed != fellow.reports_committed:
        fellows.set_committed(tx, fellow.fellow_id, taken.committed)
    return taken


def fail(tx: Tx, job: Job, reason: str, now: float, error: str | None = None) -> None:
    """End a job as failed."""
    jobs.update(tx, job.job_id, state="failed", reason=reason, error=error, ended_at=now)


class _Intake:
    """One report of one fellow."""

    def __init__(self, tx: Tx, fellow_id: str, taken: Taken, sequence: int, now: float) -> None:
        self.tx = tx
        self.fellow_id = fellow_id
        self.taken = taken
        self.sequence = sequence
        self.now = now

    def take(self, report: Report) -> bool:
        """Apply it. False when it is refused for good."""
        if isinstance(report, ExportFailed | ReferenceTrained | ReferenceFailed):
            return True  # control.jobs.exports or control.jobs.verifying has taken it
        if isinstance(report, Measured):
            fellows.put_speeds(self.tx, self.fellow_id, report.card_index, report.speeds)
            self.taken.measured.append(report)
            return True
        if isinstance(report, LinkMeasured):
            self._tested(report)
            return True
        job = jobs.find(self.tx, report.job_id)
        if job is None:
            return False
        stage = stages.find(self.tx, report.job_id, report.attempt, report.stage)
        is_own = stage is not None and stage.fellow_id == self.fellow_id
        if stage is not None and is_own and _is_history(job, report):
            return self._late(job, stage, report)
        if report.attempt != job.attempt or stage is None or not is_own:
            jobs.count(self.tx, job, refused_reports=1)
            return False
        apply: dict[type[Any], Callable[[Job, Stage, Any], None]] = {
            StageBound: self._bound,
            StageLoaded: self._loaded,
            StepDone: self._step,
            Evaluated: self._evaluated,
            MemoryMeasured: self._memory,
            AdapterSaved: self._saved,
            StageDone: self._done,
            StageFailed: self._failed,
            LogLine: self._log,
        }
        if not _is_sound(job, stage, report):
            jobs.count(self.tx, job, refused_reports=1)
            return False
        apply[type(report)](job, stage, report)
        return True

    def _late(self, job: Job, stage: Stage, told: FromStage) -> bool:
        """What an earlier attempt did before the step from which the job went on is part of the
        run: it fills in its place, and moves nothing.
        """
        if isinstance(told, StepDone) and records.put_step(self.tx, told):
            self.taken.progress.append((job.pool, job.job_id, told))
            if stage.work.is_last:
                jobs.update(self.tx, job.job_id, **self._mean_anew(job, told))
        if isinstance(told, Evaluated):
            self._evaluated(job, stage, told)
        return True

    def _tested(self, told: LinkMeasured) -> None:
        found = [
            LinkFigure(sender, taker, speed, told.latency_s, told.path, self.now)
            for sender, taker, speed in (
                (self.fellow_id, told.peer, told.up_bytes_s),
                (told.peer, self.fellow_id, told.down_bytes_s),
            )
            if speed is not None and told.latency_s is not None
        ]
        link_figures.put(self.tx, found)
        self.taken.link_figures += found
        self.taken.tested.append(told)

    def _bound(self, job: Job, stage: Stage, told: StageBound) -> None:
        if stage.public_key is not None or job.state not in ACTIVE:
            return
        endpoints = [clean(one, MAX_ENDPOINT) for one in told.endpoints]
        stages.update(
            self.tx, stage, public_key=told.public_key, endpoints=endpoints, phase="loading"
        )
        self.taken.touched[job.job_id] = job.pool

    def _loaded(self, job: Job, stage: Stage, told: StageLoaded) -> None:
        stages.update(self.tx, stage, phase="ready", weight_bytes=told.weight_bytes)
        every = stages.of_job(self.tx, job.job_id, job.attempt)
        if job.state == "starting" and all(s.weight_bytes is not None for s in every):
            jobs.update(self.tx, job.job_id, state="running", reason="")
        self.taken.touched[job.job_id] = job.pool

    def _step(self, job: Job, stage: Stage, told: StepDone) -> None:
        if not records.put_step(self.tx, told):
            return
        if stage.step is None or told.step > stage.step:
            phase = stage.phase if stage.phase in ("done", "failed") else "training"
            stages.update(self.tx, stage, step=told.step, loss=told.loss, phase=phase)
        self.taken.progress.append((job.pool, job.job_id, told))
        if stage.work.is_last:
            self._last_stage_step(job, told)

    def _last_stage_step(self, job: Job, told: StepDone) -> None:
        changes: dict[str, Any] = {}
        if told.step > job.step:
            changes |= {"step": told.step, "loss": told.loss}
        if told.step == job.step + 1 == job.mean_steps + 1:
            changes |= {"mean": extend(job.mean, told.loss), "mean_steps": job.mean_steps + 1}
        else:
            changes |= self._mean_anew(job, told)
        if job.state in ("starting", "recovering") and job.loss_of is None:
            changes |= {"state": "running", "reason": ""}
            self.taken.touched[job.job_id] = job.pool
        jobs.update(self.tx, job.job_id, **changes)
        more = {"skipped_updates": int(told.skipped)}
        jobs.count(self.tx, job, **more, empty_micro_batches=told.empty_micro_batches)

    def _mean_anew(self, job: Job, told: StepDone) -> dict[str, Any]:
        """A late point changes every mean after it: taken again from the stored losses."""
        mean, last = 0.0, max(job.step, told.step)
        for loss in records.losses(self.tx, job.job_id, None, (last - REACH, last)):
            mean = extend(mean, loss)
        every = Span(job.job_id, None, 1, 0)
        return {"mean": mean, "mean_steps": records.count_steps(self.tx, every)}

    def _evaluated(self, job: Job, stage: Stage, told: Evaluated) -> None:
        if stage.work.is_last:
            records.put_evaluation(self.tx, told)
            self.taken.touched[job.job_id] = job.pool

    def _memory(self, job: Job, stage: Stage, told: MemoryMeasured) -> None:
        peak = Peak(told.stage, told.card_index, told.peak_bytes, told.planned_bytes, told.how)
        stages.put_peak(self.tx, stage, peak)
        self.taken.touched[job.job_id] = job.pool

    def _saved(self, job: Job, stage: Stage, told: AdapterSaved) -> None:
        if job.state in ACTIVE and stage.adapter_sha256 != told.digest:
            fail(
                self.tx,
                job,
                f"stage {stage.stage} on {self.fellow_id} says that it has sent its adapter, "
                "but the leader does not have this file",
                self.now,
            )
        elif stage.phase != "done":
            stages.update(self.tx, stage, phase="saving")
        self.taken.touched[job.job_id] = job.pool

    def _done(self, job: Job, stage: Stage, told: StageDone) -> None:
        stages.update(
            self.tx,
            stage,
            phase="done",
            sent_bytes=told.sent_bytes,
            received_bytes=told.received_bytes,
        )
        self.taken.touched[job.job_id] = job.pool

    def _failed(self, job: Job, stage: Stage, told: StageFailed) -> None:
        stages.update(self.tx, stage, phase="failed")
        if (told.lost or told.echo) and job.state in ACTIVE:
            self._lost(job, stage, told)
            return
        replaces_echo = job.state == "failed" and job.error_is_echo and not told.echo
        if not may_move(job.state, "failed") and not replaces_echo:
            return
        at = f" at step {job.step}" if job.step else ""
        code = clean_code(told.code)
        words = f"stage {stage.stage} of {stage.work.num_stages} on {self.fellow_id} failed{at}"
        if told.exit_code is not None:
            words += f" (its process ended with {told.exit_code})"
        message = clean(_sentences(told.message, told.hint), 2000)
        jobs.update(
            self.tx,
            job.job_id,
            state="failed",
            reason=f"{words}: {code}",
            error=f"{self.fellow_id}: {message}",
            error_is_echo=told.echo,
            ended_at=job.ended_at or self.now,
            loss_of=None,
        )
        self.taken.touched[job.job_id] = job.pool

    def _lost(self, job: Job, stage: Stage, told: StageFailed) -> None:
        """A stage's process is gone, or its neighbour is: no fault of the job."""
        at = f" at step {job.step}" if job.step else " before its first step"
        how = "lost its neighbour" if told.echo else "was lost"
        words = f"stage {stage.stage} of {stage.work.num_stages} on {self.fellow_id} {how}{at}"
        if told.exit_code is not None:
            words += f" (its process ended with {told.exit_code})"
        known = Loss.of(job)
        is_first = known is None or (known.is_echo and not told.echo)
        lose(self.tx, job, Loss(self.now, words, told.echo), may_recover=self.taken.may_recover)
        if is_first:
            message = clean(_sentences(told.message, told.hint), 2000)
            error = f"{self.fellow_id}: {message}"
            jobs.update(self.tx, job.job_id, error=error, error_is_echo=told.echo)
        self.taken.touched[job.job_id] = job.pool

    def _log(self, job: Job, stage: Stage, told: LogLine) -> None:
        line = Line(
            at=told.at,
            stage=told.stage,
            fellow_id=self.fellow_id,
            level=told.level,
            text=clean(told.text),
            attempt=told.attempt,
            sequence=self.sequence,
        )
        self.taken.lines.setdefault(job.job_id, []).append(line)
        self.taken.logged[job.job_id] = job.pool


def _is_history(job: Job, report: FromStage) -> bool:
    """Whether an older attempt tells of a step that later attempts went on from, not did again."""
    if report.attempt >= job.attempt or not isinstance(report, StepDone | Evaluated):
        return False
    later = [int(one["step"]) for one in job.resumes if int(one["attempt"]) > report.attempt]
    return bool(later) and report.step <= min(later)


def _sentences(*parts: str) -> str:
    """Parts that a fellow told, each as a sentence of its own."""
    said = [part.strip() for part in parts if part.strip()]
    ended = [one if one.endswith((".", "!", "?", ":")) else f"{one}." for one in said[:-1]]
    return " ".join([*ended, *(one[:1].upper() + one[1:] for one in said[-1:])] if ended else said)


def _is_sound(job: Job, stage: Stage, report: FromStage) -> bool:
    """Whether a report speaks of a step that this attempt was asked for."""
    if isinstance(report, StepDone) and stage.work.resume is not None:
        return stage.work.resume.step < report.step <= job.steps
    return int(getattr(report, "step", 0)) <= job.steps
