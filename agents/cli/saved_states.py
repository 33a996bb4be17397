"""`swarm jobs snapshots`: what a job has saved, listed or fetched file by file."""

from pathlib import Path

import click

from agents.cli.operation_commands import ask_from
from agents.cli.render import show
from agents.cli.session import current, shared_options
from agents.client import Client
from transport.api.saved_states import JOBS_SNAPSHOTS, JobsSaved, SavedStepRow
from transport.errors import SwarmError


@click.command(short_help="Saved steps of a job; --to fetches the newest.")
@click.argument("job_id")
@click.option("--to", "target", metavar="FOLDER", help="Fetch the newest saved step into it.")
def jobs_snapshots(job_id: str, target: str | None) -> None:
    """List the saved steps of a job, or fetch the newest, while it runs or afterwards.

    Each stage's file is a safetensors file: what it trains, and the optimizer's state for it.
    """
    session = current()
    with session.client() as client:
        ask = ask_from(session, client, JOBS_SNAPSHOTS, {"job_id": job_id})
        answer = client.call_raw(JOBS_SNAPSHOTS, ask)
        told = client.read(JOBS_SNAPSHOTS, answer)
        if target is not None:
            folder = Path(target).expanduser()
            row = fetch_newest(client, told, folder)
            session.say(f"step {row.step} of {job_id} is in {folder}")
        if session.is_json:
            session.print_raw(answer)
        else:
            show(session.console(), told)


def fetch_newest(client: Client, told: JobsSaved, folder: Path) -> SavedStepRow:
    """Write the files of the newest saved step to a new or empty folder, their digests compared.

    Raises:
        SwarmError: not-found when nothing is saved; conflict when the folder holds something;
            internal when a file arrives damaged.
    """
    if not told.steps:
        raise SwarmError("not-found", f"{told.job_id} has no saved step", hint="wait for the first")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SwarmError(
            "conflict", f"{str(folder)!r} is not empty", hint="name a new folder with --to"
        )
    folder.mkdir(parents=True, exist_ok=True)
    row = told.steps[0]
    for file in row.files:
        target = folder / f"stage-{file.stage}.safetensors"
        if client.fetch(file.path, target) != file.sha256:
            target.unlink(missing_ok=True)
            raise SwarmError("internal", f"{target.name} arrived damaged", hint="fetch it again")
    return row


jobs_snapshots.params += shared_options()
