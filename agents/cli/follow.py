"""Follows a job until it ends: one moving line on a terminal, one line for each event elsewhere.

Watching never touches the job: Ctrl-C ends the watching and says so.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from agents.cli.render import job_text, number
from agents.cli.session import DONE, FAILED, INTERRUPTED, Session
from agents.client import Client
from transport.api.jobs import ENDED, JOBS_WAIT, JobsWait, JobView
from transport.units import human_seconds

_HELD_S = 20.0

Tell = Callable[[JobView], None]


def follow(session: Session, client: Client, job: JobView) -> int:
    """Show a job's progress until it has ended; the exit code."""
    try:
        with _teller(session, job) as tell:
            tell(job)
            while job.state not in ENDED:
                job = client.call(JOBS_WAIT, _next_question(job))
                tell(job)
    except KeyboardInterrupt:
        session.say(f"stopped following; job {job.job_id} goes on (swarm jobs show {job.job_id})")
        return INTERRUPTED
    if not session.is_json:
        session.console().print(job_text(job))
    return exit_code(job)


def exit_code(job: JobView) -> int:
    """0 unless the job has failed or was cancelled."""
    return FAILED if job.state in ("failed", "cancelled") else DONE


def _next_question(job: JobView) -> JobsWait:
    # Held until the next step is done. Before the first step a change of state is worth seeing too.
    held_s = _HELD_S if job.step else 2.0
    return JobsWait(job_id=job.job_id, until_step=job.step + 1, timeout_s=held_s)


@contextmanager
def _teller(session: Session, job: JobView) -> Iterator[Tell]:
    if session.is_json:
        yield _changes_only(lambda one: click.echo(one.model_dump_json()))
    elif session.console().is_terminal:
        with _moving(session, job) as tell:
            yield tell
    else:
        yield _changes_only(lambda one: click.echo(line(one)))


def _changes_only(tell: Tell) -> Tell:
    seen: list[tuple[str, int, str]] = []

    def maybe(job: JobView) -> None:
        now = (job.state, job.step, job.reason)
        if not seen or seen[-1] != now:
            seen[:] = [now]
            tell(job)

    return maybe


def line(job: JobView) -> str:
    """A job's progress in one line."""
    words = f"{job.job_id}  {job.state}  step {job.step}/{job.steps}  loss {number(job.loss)}"
    if job.step_s is not None:
        left_s = job.step_s * (job.steps - job.step)
        words += f"  {human_seconds(job.step_s)}/step  {human_seconds(left_s)} left"
    return words + (f"  ({job.reason})" if job.reason else "")


@contextmanager
def _moving(session: Session, job: JobView) -> Iterator[Tell]:
    """A bar that moves, on stderr: the result is on stdout."""
    import sys  # noqa: PLC0415 - beside rich's progress, which only a terminal needs

    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=session.console(sys.stderr)) as bar:
        task = bar.add_task(job.state, total=job.steps)

        def tell(one: JobView) -> None:
            words = f"{one.job_id} {one.state} loss {number(one.loss)}"
            bar.update(task, completed=one.step, description=words)

        yield tell
