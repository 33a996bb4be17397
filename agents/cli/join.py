"""`swarm join` and `swarm fellow`: this machine becomes, and is, a fellow.

Finds the invite without it ever being an argument. The daemon itself is agents.fellow.daemon.
"""

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from agents.cli.session import Session, current, shared_options
from agents.fellow import identity as identities
from agents.fellow.daemon import DaemonSetting, serve
from agents.fellow.identity import Identity
from agents.fellow.inventory import default_cache_folder
from agents.fellow.joining import join as ask_to_join
from agents.log_lines import clean, start_log
from transport.errors import SwarmError

_MAX_NAME = 60
_LEVELS = ("warning", "info", "debug")


def _machine_options(command: click.Command) -> click.Command:
    """The options of a running fellow, and the shared ones."""
    options: list[click.Parameter] = [
        click.Option(
            ["--state", "state"],
            metavar="FOLDER",
            help="Where this fellow keeps its name and its unsent reports. [SWARM_FELLOW_STATE]",
        ),
        click.Option(
            ["--cache", "cache"],
            metavar="FOLDER",
            help="Where model files are kept; the hub's cache unless told. [SWARM_CACHE]",
        ),
        click.Option(
            ["--name"],
            metavar="NAME",
            help="What plans and tables call this machine; kept. Its host name unless told.",
        ),
        click.Option(
            ["--listen"],
            metavar="ADDRESS[:PORT]",
            help="Where stages of this machine listen, and neighbouring stages dial.",
        ),
        click.Option(
            ["--announce"],
            multiple=True,
            metavar="ADDRESS:PORT",
            help="What they dial instead: a router or proxy that passes --listen's port on.",
        ),
        click.Option(
            ["--no-warm", "is_cold"], is_flag=True, help="Keep no process with torch loaded."
        ),
        click.Option(["--log-file"], metavar="FILE", help="Write the log there, not to stderr."),
    ]
    command.params += [*options, *shared_options()]
    return command


@click.command(short_help="Join this machine to a pool, and run it.")
@click.argument("url")
@click.option(
    "--card",
    "cards",
    multiple=True,
    metavar="CARD",
    help="cpu:4GB:2 (4 GB, 2 threads), cuda or cuda:0; may be given several times.",
)
@click.option("--invite-file", metavar="FILE", help="A file that holds the invite's secret.")
@click.option("--only-join", is_flag=True, help="Join, and do not run yet.")
def join(url: str, cards: tuple[str, ...], invite_file: str | None, **more: Any) -> None:
    """Join this machine to the pool of an invite, then run it as a fellow.

    The invite's secret comes from SWARM_INVITE, from --invite-file or from a prompt; never as an
    argument, where other users of the machine could read it.
    """
    session = current()
    _start_log(session, more["log_file"])
    folder, name = _state(more["state"]), _name(more["name"])
    with identities.OneDaemon(folder):
        identity = asyncio.run(ask_to_join(folder, url, _invite(invite_file), cards, name))
    session.say(f"{identity.fellow_id} has joined {identity.pool}")
    if not more["only_join"]:
        _run(identity, folder, more)


@click.command(short_help="Run this machine, which has joined before.")
def fellow(**more: Any) -> None:
    """Run this machine as the fellow that it has joined as before."""
    _start_log(current(), more["log_file"])
    folder = _state(more["state"])
    identity = identities.load(folder)
    if identity is None or not identity.has_joined:
        raise SwarmError(
            "not-found",
            "this machine has not joined a pool",
            hint="make an invite with `swarm invite`, then run `swarm join URL` here",
        )
    if name := _name(more["name"]):
        identity = replace(identity, name=name)
        with identities.OneDaemon(folder):
            identities.save(folder, identity)
    _run(identity, folder, more)


def _run(identity: Identity, folder: Path, more: dict[str, Any]) -> None:
    told = more["cache"]
    setting = DaemonSetting(
        state_folder=folder,
        cache_folder=Path(told).expanduser().absolute() if told else default_cache_folder(),
        listen_address=more["listen"] or "",
        announce=tuple(more["announce"]),
        is_warm=not more["is_cold"],
    )
    asyncio.run(serve(identity, setting))


def _state(told: str | None) -> Path:
    return Path(told).expanduser().absolute() if told else identities.default_state_folder()


def _name(told: str | None) -> str:
    """A name that stands on one line of a table; "" when none was told."""
    if told is None:
        return ""
    if not told.strip() or told != clean(told, _MAX_NAME):
        raise SwarmError(
            "invalid-input",
            f"{told[:_MAX_NAME]!r} is no name of a machine",
            hint=f"use 1 to {_MAX_NAME} characters, all of which can be printed",
        )
    return told.strip()


def _start_log(session: Session, file: str | None) -> None:
    level = "error" if session.is_quiet else _LEVELS[min(session.verbosity + 1, 2)]
    start_log(level, Path(file).expanduser() if file else None)


def _invite(file: str | None) -> str:
    """The invite's secret, from where it cannot be read by others."""
    if file is not None:
        try:
            return Path(file).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SwarmError(
                "invalid-input",
                f"the invite file {file} cannot be read ({type(error).__name__})",
                hint="name a file that holds the secret from `swarm invite`",
            ) from None
    told = os.environ.get("SWARM_INVITE")
    if told:
        return told
    if not sys.stdin.isatty():
        raise SwarmError(
            "invalid-input",
            "there is no invite",
            hint="set SWARM_INVITE to the secret from `swarm invite`, or name --invite-file",
        )
    return str(click.prompt("Invite", hide_input=True, err=True))


_machine_options(join)
_machine_options(fellow)
