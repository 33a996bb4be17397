"""Handlers: training jobs."""

import asyncio

from control.jobs.lifecycle import Until
from control.jobs.views import job_row, job_view, with_boundaries
from control.operations.call import Call, handles
from control.operations.office import Office
from control.records.job_files import Wanted
from control.records.smoothing import REACH, smooth
from control.store import jobs, pools, records
from control.store.database import Tx
from control.store.jobs import Job, Page
from control.store.records import Span
from transport.api.inventory import InventoryFile
from transport.api.job_config import JobConfig
from transport.api.jobs import (
    JOBS_CANCEL,
    JOBS_GET,
    JOBS_LIST,
    JOBS_LOGS,
    JOBS_PLAN,
    JOBS_RECORDS,
    JOBS_SUBMIT,
    JOBS_WAIT,
    JobsCancel,
    JobsGet,
    JobsList,
    JobsListed,
    JobsLogged,
    JobsLogs,
    JobsPlan,
    JobsRecorded,
    JobsRecords,
    JobsSubmit,
    JobsWait,
    JobView,
    LogRow,
    StepRow,
)
from transport.api.operation import Next
from transport.api.plans import PlanView
from transport.errors import SwarmError, not_found
from transport.schema import parse


async def need_job(leader: Office, call: Call, job_id: str) -> Job:
    """A job that the caller may see.

    Raises:
        SwarmError: not-found.
    """
    job = await leader.database.read(lambda tx: jobs.find(tx, job_id))
    if job is None or not call.sees(job.pool):
        raise not_found("job", job_id, hint="list them with jobs_list")
    return job


@handles(JOBS_PLAN)
async def jobs_plan(leader: Office, call: Call, ask: JobsPlan) -> PlanView:
    """Plan, and keep the plan and its counter-offers under their ids."""
    if ask.inventory is not None:
        file = parse(InventoryFile, ask.inventory)
        plan, offered = await leader.planner.what_if(ask.config, file)
        return plan.view.model_copy(update={"offers": [one.shown for one in offered]})
    if ask.pool is None:
        raise SwarmError(
            "invalid-input",
            "/pool: is missing",
            hint="name the pool, or give an inventory of cards to plan for",
        )
    await leader.planner.warm(ask.pool, ask.config)
    plan = (await leader.planner.plan(ask.pool, ask.config)).plan
    offered = await leader.planner.offers(ask.pool, plan)
    for one in (plan, *(one.plan for one in offered)):
        await leader.planner.keep(ask.pool, one, leader.clock)
    view = plan.view.model_copy(update={"offers": [one.shown for one in offered]})
    return view.model_copy(update={"next": [*view.next, *_next_calls(ask.pool, view)][:3]})


def _next_calls(pool: str, view: PlanView) -> list[Next]:
    """Start this, or the offers; the config of a search for a length is the one it found."""
    calls = [
        Next(operation="jobs_submit", arguments=_submission(pool, view.config, view.plan_id),
             why="start exactly this plan" if view.fits else "let it wait until it can start")
    ]  # fmt: skip
    calls += [
        Next(operation="jobs_submit", arguments=_submission(pool, one.config, one.plan_id),
             why=f"instead: {one.change}")
        for one in view.offers
    ]  # fmt: skip
    return calls


def _submission(pool: str, config: JobConfig, plan_id: str | None) -> dict[str, object]:
    told: dict[str, object] = {
        "pool": pool,
        "config": config.model_dump(mode="json", exclude_unset=True),
    }
    return told | ({"unpinned": True} if plan_id is None else {"plan_id": plan_id})


@handles(JOBS_SUBMIT)
async def jobs_submit(leader: Office, call: Call, ask: JobsSubmit) -> JobView:
    """Accept a job."""
    return await leader.jobs.submit(ask, call.who, call.commit)


@handles(JOBS_LIST)
async def jobs_list(leader: Office, call: Call, ask: JobsList) -> JobsListed:
    """A page of jobs."""
    offset = _offset(ask.cursor)

    def read(tx: Tx) -> JobsListed:
        seen = [pool.pool for pool in pools.every(tx) if call.sees(pool.pool)]
        wanted = tuple([ask.pool] if ask.pool else seen)
        found, total = jobs.page(tx, Page(wanted, ask.state, ask.limit, offset))
        rows = [job_row(tx, job) for job in found]
        omitted = max(0, total - offset - len(rows))
        first = [
            Next(operation="jobs_get", arguments={"job_id": row.job_id}, why="look at this one")
            for row in rows[:1]
        ]
        return JobsListed(
            summary=_list_words(total, ask),
            next=first,
            jobs=rows,
            omitted=omitted,
            cursor=str(offset + len(rows)) if omitted else None,
        )

    return await leader.database.read(read)


def _offset(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not cursor.isascii() or not cursor.isdecimal() or len(cursor) > 9:
        raise SwarmError(
            "expired", f"cursor {cursor!r} is not one of this list", hint="begin without a cursor"
        )
    return int(cursor)


def _list_words(total: int, ask: JobsList) -> str:
    kind = f"{ask.state} " if ask.state else ""
    return f"{total} {kind}job{'' if total == 1 else 's'}{f' in {ask.pool}' if ask.pool else ''}."


@handles(JOBS_GET)
async def jobs_get(leader: Office, call: Call, ask: JobsGet) -> JobView:
    """One job."""
    await need_job(leader, call, ask.job_id)
    view = await leader.database.read(lambda tx: job_view(tx, ask.job_id))
    return with_boundaries(view, leader.registry.links)


@handles(JOBS_WAIT)
async def jobs_wait(leader: Office, call: Call, ask: JobsWait) -> JobView:
    """One job, later."""
    await need_job(leader, call, ask.job_id)
    told = -1

    async def seen(view: JobView) -> None:
        nonlocal told
        if call.progress is not None and view.step > told:
            told = view.step
            await call.progress(float(view.step), float(view.steps), view.summary)

    view = await leader.jobs.wait(ask.job_id, Until(ask.until_step, ask.timeout_s), seen)
    return with_boundaries(view, leader.registry.links)


@handles(JOBS_LOGS)
async def jobs_logs(leader: Office, call: Call, ask: JobsLogs) -> JobsLogged:
    """Log lines of a job's stages."""
    await need_job(leader, call, ask.job_id)
    after = None if ask.cursor is None else _offset(ask.cursor)
    wanted = Wanted(ask.level, ask.stage, ask.limit, after)
    lines, omitted, last = await asyncio.to_thread(leader.files.read_lines, ask.job_id, wanted)
    return JobsLogged(
        summary=f"{len(lines)} log lines of {ask.job_id}"
        + (
            f", {omitted} {'older' if after is None else 'newer'} ones left out."
            if omitted
            else "."
        ),
        next=[
            Next(
                operation="jobs_logs",
                arguments={"job_id": ask.job_id, "cursor": str(last)},
                why="read what comes next",
            )
        ],
        lines=[
            LogRow(
                at=line.at,
                stage=line.stage,
                fellow_id=line.fellow_id,
                level=line.level,
                untrusted_text=line.text,
            )
            for line in lines
        ],
        omitted=omitted,
        cursor=str(last),
    )


@handles(JOBS_RECORDS)
async def jobs_records(leader: Office, call: Call, ask: JobsRecords) -> JobsRecorded:
    """Measured steps of one stage."""
    job = await need_job(leader, call, ask.job_id)

    def read(tx: Tx) -> tuple[list[StepRow], int]:
        span = Span(job.job_id, ask.stage, ask.from_step, ask.limit)
        return _step_rows(tx, span), records.count_steps(tx, span)

    rows, total = await leader.database.read(read)
    omitted = total - len(rows)
    more = {"job_id": job.job_id, "from_step": rows[-1].step + 1} if rows else {}
    return JobsRecorded(
        summary=f"{len(rows)} steps of {job.job_id}"
        + (f", {omitted} later ones left out." if omitted else "."),
        next=[Next(operation="jobs_records", arguments=more, why="read the next steps")]
        if omitted
        else [],
        job_id=job.job_id,
        steps=rows,
        omitted=omitted,
    )


def _step_rows(tx: Tx, span: Span) -> list[StepRow]:
    found = records.steps(tx, span)
    if not found:
        return []
    between = (span.from_step - REACH, found[-1]["step"])
    means = smooth(records.losses(tx, span.job_id, span.stage, between))
    told = zip(found, means[-len(found) :])
    return [
        StepRow(
            smoothed_loss=mean,
            skipped=bool(row["skipped"]),
            **{
                name: row[name]
                for name in StepRow.model_fields
                if name in row and name != "skipped"
            },
        )
        for row, mean in told
    ]


@handles(JOBS_CANCEL)
async def jobs_cancel(leader: Office, call: Call, ask: JobsCancel) -> JobView:
    """Stop a job for good."""
    await need_job(leader, call, ask.job_id)
    return await leader.jobs.cancel(ask.job_id, call.commit)
