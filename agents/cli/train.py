"""`swarm train` and `swarm plan`: from a job file to a plan, and from a plan to a running job.

What starts is what was shown: the plan that was printed is the one that is submitted.
"""

from typing import Any

import click

from agents.cli.follow import follow
from agents.cli.jobfile import JobFile, change, read_inventory_file, read_job_file
from agents.cli.operation_commands import only_pool
from agents.cli.render import job_text
from agents.cli.render_plan import plan_text
from agents.cli.session import DONE, WAITING, Session, current, shared_options
from agents.cli.uploads import upload_files
from agents.client import Client
from transport.api.job_config import JobConfig
from transport.api.jobs import JOBS_PLAN, JOBS_SUBMIT, JobsPlan, JobsSubmit, JobView
from transport.api.plans import PlanView
from transport.schema import parse


def _job_options(command: click.Command) -> click.Command:
    options: list[click.Parameter] = [
        click.Option(
            ["--config", "config"],
            required=True,
            metavar="FILE|-",
            help="The job file, YAML or JSON.",
        ),
        click.Option(
            ["--set", "changes"],
            multiple=True,
            metavar="KEY=VALUE",
            help="Change one setting, like train.steps=100. May be repeated.",
        ),
        click.Option(["--lora"], is_flag=True, help="Train adapters (method: lora)."),
        click.Option(
            ["--maximize-seq-len"], is_flag=True, help="The longest sequence that fits now."
        ),
        click.Option(
            ["--exclude-card", "excluded"],
            multiple=True,
            metavar="FELLOW:INDEX",
            help="Leave a card out. May be repeated.",
        ),
    ]
    command.params = [*options, *command.params, *shared_options()]
    return command


@click.command(short_help="Plan a training job from a file, and start it.")
@click.option("--plan", "only_plan", is_flag=True, help="Show the plan; start nothing.")
@click.option(
    "--plan-id", metavar="ID", help="Start exactly this plan, or refuse with what changed."
)
@click.option("--follow", "is_followed", is_flag=True, help="Show the progress until the end.")
@click.option("--request-id", metavar="ID", help="The same id again is the same job.")
def train(**told: Any) -> int:
    """Plan a training job, print the plan, and start exactly that.

    Files named in data.files are uploaded as a bucket first. Exit code 3: accepted, but the job
    waits, with the reason.
    """
    session, job_file = current(), _read(told)
    with session.client() as client:
        pool = session.profile().pool.value or only_pool(client)
        config = _with_bucket(session, client, pool, job_file)
        if told["only_plan"]:
            return _show_plan(session, client, pool, config, told)
        plan_id = told["plan_id"] or job_file.plan_id
        return _start(
            session, client, _submission(session, client, pool, config, plan_id, told), told
        )


@click.command(short_help="Show where a job would run. Starts nothing.")
@click.option(
    "--inventory", metavar="FILE", help="Plan for the cards of this file, not the pool's."
)
def plan(**told: Any) -> int:
    """Show where a training job would run and what each card would hold. Starts nothing.

    Files named in data.files are uploaded as a bucket first, so that the plan knows their size.
    Exit code 3: it would not fit now, with the reason.
    """
    session, job_file = current(), _read(told)
    with session.client() as client:
        if told["inventory"] is not None:
            cards = read_inventory_file(told["inventory"])
            ask = JobsPlan(config=job_file.config(), inventory=cards)
            return _show(session, client, ask, told)
        pool = session.profile().pool.value or only_pool(client)
        config = _with_bucket(session, client, pool, job_file)
        return _show_plan(session, client, pool, config, told)


def _read(told: dict[str, Any]) -> JobFile:
    """The job file with what the command line changes in it, checked."""
    found = read_job_file(told["config"])
    values = change(found.values, told["changes"])
    if told["lora"]:
        values["method"] = "lora"
    if told["maximize_seq_len"]:
        values["maximize"] = "seq_len"
    if told["excluded"]:
        values["exclude_cards"] = [*values.get("exclude_cards", []), *told["excluded"]]
    changed = JobFile(values, found.folder, found.plan_id)
    changed.config()  # refused here, before anything is uploaded
    return changed


def _with_bucket(session: Session, client: Client, pool: str, job_file: JobFile) -> JobConfig:
    """The configuration that the leader gets: files have become a bucket, no path is left."""
    config = job_file.config()
    if config.data.files is None:
        return config
    bucket = upload_files(session, client, pool, [job_file.folder / f for f in config.data.files])
    data = {k: v for k, v in job_file.values["data"].items() if k != "files"}
    return parse(JobConfig, {**job_file.values, "data": {**data, "bucket": bucket}})


def _show_plan(
    session: Session, client: Client, pool: str, config: JobConfig, told: dict[str, Any]
) -> int:
    return _show(session, client, JobsPlan(pool=pool, config=config), told)


def _show(session: Session, client: Client, ask: JobsPlan, told: dict[str, Any]) -> int:
    answer = client.call_raw(JOBS_PLAN, ask)
    shown = client.read(JOBS_PLAN, answer)
    if session.is_json:
        session.print_raw(answer)
    else:
        session.console().print(plan_text(shown))
        if shown.plan_id is not None and shown.fits:
            again = f"swarm train --config {told['config']} --plan-id {shown.plan_id}"
            click.echo(f"Nothing was started. Start exactly this: {again}")
    return DONE if shown.fits else WAITING


def _submission(
    session: Session,
    client: Client,
    pool: str,
    config: JobConfig,
    plan_id: str | None,
    told: dict[str, Any],
) -> JobsSubmit:
    """What is sent: the plan that was named, or the one that is made and shown now."""
    if plan_id is None:
        shown = client.call(JOBS_PLAN, JobsPlan(pool=pool, config=config))
        plan_id = shown.plan_id
        _tell_plan(session, shown)
    settings = config.model_dump(mode="json", exclude_unset=True)
    values: dict[str, Any] = {"pool": pool, "config": settings}
    values |= {"request_id": told["request_id"]} if told["request_id"] else {}
    values |= {"plan_id": plan_id} if plan_id else {"unpinned": True}
    return parse(JobsSubmit, values)


def _tell_plan(session: Session, shown: PlanView) -> None:
    if not session.is_json and not session.is_quiet:
        session.console().print(plan_text(shown))


def _start(session: Session, client: Client, ask: JobsSubmit, told: dict[str, Any]) -> int:
    answer = client.call_raw(JOBS_SUBMIT, ask)
    job = client.read(JOBS_SUBMIT, answer)
    if told["is_followed"]:
        session.say(f"job {job.job_id} is {job.state}")
        return follow(session, client, job)
    if session.is_json:
        session.print_raw(answer)
    else:
        session.console().print(job_text(job))
        click.echo(f"Follow it with: swarm jobs wait {job.job_id}")
    return _waits(job)


def _waits(job: JobView) -> int:
    return WAITING if job.state == "pending" else DONE


_job_options(train)
_job_options(plan)
