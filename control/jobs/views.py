"""A job as it is shown: rows of the database turned into the answer, with words and next calls.

Runs inside a transaction. The summary holds ids, states and numbers only, never a fellow's text.
"""

import statistics
from collections.abc import Sequence
from itertools import pairwise

from control.fellows.link_board import LinkBoard
from control.job_states import has_ended
from control.jobs.verdict import shown_of_job
from control.planning.plan import plan_of_text
from control.records.smoothing import debias
from control.records.step_time import Marked, Run, mean_marks, where_it_went
from control.store import jobs, records, stages
from control.store.database import Tx
from control.store.jobs import Job
from control.store.stages import Peak, Stage
from transport.api.jobs import (
    JobRow,
    JobView,
    Resumed,
    ShownBoundary,
    ShownConfig,
    ShownStage,
)
from transport.api.operation import Next
from transport.api.step_time import StepTime
from transport.cards import LinkStatus
from transport.errors import not_found
from transport.ids import card_id
from transport.units import count_of, human_seconds

RECENT_STEPS = 20  # whose median is the step time


def job_view(tx: Tx, job_id: str) -> JobView:
    """One job in full.

    Raises:
        SwarmError: not-found.
    """
    job = jobs.find(tx, job_id)
    if job is None:
        raise not_found("job", job_id, hint="list them with jobs_list")
    rows = stages.of_job(tx, job_id, job.attempt)
    step_s = median_step_s(tx, job, rows)
    return JobView(
        summary=summary_of(job, len(rows), step_s),
        next=next_calls(job),
        job_id=job.job_id,
        pool=job.pool,
        name=job.name,
        model_id=job.model_id,
        revision=job.revision,
        state=job.state,
        reason=job.reason,
        attempt=job.attempt,
        plan_id=job.plan_id,
        pinned=job.pinned,
        step=job.step,
        steps=job.steps,
        loss=job.loss,
        smoothed_loss=debias(job.mean, job.mean_steps),
        step_s=step_s,
        saved_step=job.saved_step,
        saved_at=job.saved_at,
        saving_paused=job.saving_paused,
        created_at=job.created_at,
        started_at=job.started_at,
        ended_at=job.ended_at,
        stages=_shown(job, rows, stages.peaks(tx, job_id, job.attempt)),
        chosen=list(plan_of_text(job.plan).view.chosen) if job.plan else [],
        evaluations=records.evaluations(tx, job_id),
        step_time=_step_time(tx, job, rows),
        counts=dict(job.counts),
        adapter_ready=job.adapter is not None,
        verification=shown_of_job(tx, job_id),
        untrusted_error=job.error,
        config=shown_config(job),
    )


def shown_config(job: Job) -> ShownConfig:
    """What was asked for, and what the run went on from."""
    resumes = [Resumed.model_validate(one) for one in job.resumes]
    return ShownConfig.model_construct(
        job.config.model_fields_set,
        **dict(job.config),
        resume=resumes[-1] if resumes else None,
        resumes=resumes,
    )


def with_boundaries(job: JobView, links: LinkBoard) -> JobView:
    """The same job with how its stages reach each other."""
    shown = [
        _boundary(before.stage, links.of(job.job_id, job.attempt, before.stage, after.stage))
        for before, after in pairwise(job.stages)
    ]
    return job.model_copy(update={"boundaries": shown})


def _boundary(stage: int, link: LinkStatus | None) -> ShownBoundary:
    if link is None:
        return ShownBoundary(
            stage=stage,
            path=None,
            untrusted_why=None,
            forward_bytes=None,
            backward_bytes=None,
            resent_frames=None,
        )
    return ShownBoundary(
        stage=stage,
        path=link.path,
        untrusted_why=link.untrusted_why or None,
        forward_bytes=link.sent_bytes,
        backward_bytes=link.received_bytes,
        resent_frames=link.resent_frames,
    )


def job_row(tx: Tx, job: Job) -> JobRow:
    """A job as one line of a list."""
    return JobRow(
        job_id=job.job_id,
        pool=job.pool,
        name=job.name,
        model_id=job.model_id,
        state=job.state,
        reason=job.reason,
        step=job.step,
        steps=job.steps,
        loss=job.loss,
        fellows=len({s.fellow_id for s in stages.of_job(tx, job.job_id, job.attempt)}),
        created_at=job.created_at,
        started_at=job.started_at,
        ended_at=job.ended_at,
    )


def median_step_s(tx: Tx, job: Job, rows: Sequence[Stage]) -> float | None:
    """Median seconds of the newest steps, as the last stage measured them."""
    times = records.last_times(tx, job.job_id, len(rows) - 1, RECENT_STEPS) if rows else []
    return statistics.median(times) if times else None


def _step_time(tx: Tx, job: Job, rows: Sequence[Stage]) -> StepTime | None:
    """Where the newest steps of this attempt went."""
    told = records.last_marks(tx, job.job_id, job.attempt, RECENT_STEPS)
    means = [mean_marks(told.get(row.stage, [])) for row in rows]
    if not means or not all(means):
        return None
    settings = rows[0].work.settings
    run = Run(
        batch_size=settings.batch_size,
        micro_batches=settings.micro_batches,
        schedule=settings.schedule,
        compressed=job.config.compression.kind != "none",
    )
    marked = [
        Marked(row.work.last_layer - row.work.first_layer + 1, mean)
        for row, mean in zip(rows, means, strict=True)
    ]
    return where_it_went(marked, run, len(told[rows[0].stage]))


def _shown(job: Job, rows: Sequence[Stage], peaks: Sequence[Peak]) -> list[ShownStage]:
    return [
        ShownStage(
            stage=row.stage,
            fellow_id=row.fellow_id,
            hostname=row.hostname,
            first_layer=row.work.first_layer,
            last_layer=row.work.last_layer,
            cards=[card_id(row.fellow_id, card.index) for card in row.work.cards],
            phase=_phase(job, row),
            step=row.step,
            loss=row.loss,
            planned_bytes=sum(card.planned_bytes for card in row.work.cards),
            peak_bytes=_sum([p.peak_bytes for p in peaks if p.stage == row.stage]),
            sent_bytes=row.sent_bytes,
            received_bytes=row.received_bytes,
        )
        for row in rows
    ]


def _phase(job: Job, row: Stage) -> str | None:
    """What a stage's worker does; once the job has ended no worker runs, only its end is told."""
    return row.phase if not has_ended(job.state) or row.phase in ("done", "failed") else None


def _sum(numbers: Sequence[int]) -> int | None:
    return sum(numbers) if numbers else None


def summary_of(job: Job, num_stages: int, step_s: float | None) -> str:
    """One or two sentences on how a job is."""
    over = f"over {count_of(num_stages, 'fellow')}"
    loss = "" if job.loss is None else f", loss {job.loss:.4g}"
    if job.state == "pending":
        return f"Job {job.job_id} waits: {job.reason}."
    if job.state == "starting":
        return f"Job {job.job_id} is starting {over}."
    if job.loss_of is not None:
        return f"Job {job.job_id} looks for a place to go on: {job.reason}."
    if job.state == "recovering":
        return f"Job {job.job_id} {job.reason} {over}, as attempt {job.attempt}."
    if job.state == "running":
        left = None if step_s is None else (job.steps - job.step) * step_s
        more = "" if left is None else f", about {human_seconds(left)} left"
        return f"Job {job.job_id} trains {over}: step {job.step} of {job.steps}{loss}{more}."
    if job.state == "completed" and job.probe_of is not None:
        return f"Job {job.job_id} is complete: {job.step} steps{loss}, a probe of {job.probe_of}."
    if job.state == "completed":
        return f"Job {job.job_id} is complete: {job.step} steps{loss}. Its adapter can be fetched."
    if job.state == "failed":
        return f"Job {job.job_id} failed: {job.reason}."
    return f"Job {job.job_id} was cancelled at step {job.step} of {job.steps}."


def next_calls(job: Job) -> list[Next]:
    """Calls that make sense now."""
    me = {"job_id": job.job_id}
    if job.state == "completed" and job.probe_of is not None:
        of = {"job_id": job.probe_of}
        return [Next(operation="jobs_get", arguments=of, why="see the verdict")]
    if job.state == "completed":
        return [Next(operation="models_export", arguments=me, why="find the trained files")]
    if job.state in ("failed", "cancelled"):
        calls = [Next(operation="jobs_logs", arguments=me, why="read what the stages wrote")]
        if job.saved_step is not None:
            why = f"go on from step {job.saved_step}"
            calls.insert(0, Next(operation="jobs_resume", arguments=me, why=why))
        return calls
    if job.state == "pending" and job.pinned:
        config = job.config.model_dump(mode="json", exclude_unset=True)
        again = {"pool": job.pool, "config": config}
        return [
            Next(operation="jobs_plan", arguments=again, why="see the plan as it would be now"),
            Next(
                operation="jobs_submit",
                arguments={**again, "unpinned": True},
                why="start wherever it fits",
            ),
            Next(operation="jobs_cancel", arguments=me, why="give this one up"),
        ]
    calls = [Next(operation="jobs_wait", arguments=me, why="wait until it moves or ends")]
    if not has_ended(job.state):
        calls.append(Next(operation="jobs_cancel", arguments=me, why="stop it for good"))
    return calls
