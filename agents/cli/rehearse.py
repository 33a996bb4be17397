"""`swarm rehearse`: a pool on this machine goes through a script's troubles.

Plays agents.rehearse and makes sure that nothing of it is left behind.
"""

import json
import signal
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from agents.cli.session import Session, current, shared_options
from agents.rehearse.script import Script, known_scripts, read_script
from agents.rehearse.story import Outcome, Rehearsal, Run
from transport.errors import SwarmError


@click.command(short_help="Let a pool of virtual fellows go through troubles, on this machine.")
@click.argument("script", required=False)
@click.option("--list", "is_listing", is_flag=True, help="Name the scripts that come with Swarm.")
@click.option("--folder", type=Path, help="Keep the rehearsal's files and logs in this new folder.")
def rehearse(script: str | None, is_listing: bool, folder: Path | None) -> int:
    """Play a rehearsal script: a YAML file, or the name of one that comes with Swarm.

    A real leader and real fellows start as processes of this machine, with cards that are shares
    of its memory. A small model trains over them while the script's troubles happen: workers,
    daemons, the relay or the leader killed, frozen or cut off, links slow or broken, disks full.
    The exit code is 0 when everything that the script expects holds, and 1 when something does not.
    Nothing outside this machine is asked.
    """
    session = current()
    if is_listing or script is None:
        _list(session)
        return 0
    told = read_script(known_scripts().get(script, Path(script)))
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=False)
    place: AbstractContextManager[str] = (
        nullcontext(str(folder))
        if folder
        else tempfile.TemporaryDirectory(prefix="swarm-rehearse-")
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupt)
    with place as home:
        outcome = _play(session, told, Path(home).resolve())
    if session.is_json:
        session.print_json(_told(told, outcome))
    for words in outcome.missed:
        session.say(f"missed: {words}")
    return 1 if outcome.missed else 0


def _play(session: Session, script: Script, home: Path) -> Outcome:
    began = time.monotonic()

    def say(words: str) -> None:
        click.echo(f"{time.monotonic() - began:7.1f} s  {words}", err=session.is_json)

    rehearsal = Rehearsal(script, home, say)
    try:
        outcome = rehearsal.play()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        killed = rehearsal.close()
    if killed:
        raise SwarmError("internal", f"{len(killed)} processes had to be killed at the end")
    held = "everything expected holds" if not outcome.missed else "not as expected"
    say(f"{held}: {outcome.run.job.state} after {outcome.run.seconds:.1f} s")
    return outcome


def _list(session: Session) -> None:
    scripts = {name: read_script(path).title for name, path in known_scripts().items()}
    if session.is_json:
        session.print_json({"scripts": scripts})
        return
    for name, title in scripts.items():
        click.echo(f"{name:24} {title}")


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _told(script: Script, outcome: Outcome) -> dict[str, Any]:
    """The outcome for a program."""
    before = outcome.undisturbed
    return {
        "title": script.title,
        "holds": not outcome.missed,
        "missed": outcome.missed,
        "plan": [asdict(seat) for seat in outcome.plan],
        **_of_run(outcome.run),
        "undisturbed": None if before is None else _of_run(before),
    }


def _of_run(run: Run) -> dict[str, Any]:
    return {
        "seconds": round(run.seconds, 3),
        "troubles": [{"at_s": round(at_s, 3), "what": words} for at_s, words in run.happened],
        "losses": run.losses,
        "adapter_sha256": run.adapter_sha256,
        "job": json.loads(run.job.model_dump_json()),
    }


rehearse.params += list(shared_options())
