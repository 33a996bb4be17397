"""`swarm leader`: starts the leader, or has its data backed up, as a process of its own.

Passes words on; imports nothing of the leader.
"""

import os
import sys
from collections.abc import Mapping
from typing import NoReturn

import click

from agents.cli.subcommands import Words
from transport.errors import SwarmError

_MODULE = "mcp_server.main"
_ROWS = {
    "run": "Run a leader on this machine. This is also what `swarm leader` alone does.",
    "backup": "Write a stopped leader's data to one file.",
    "restore": "Put a backup into an empty data folder.",
}


def become(module: str, words: list[str], extra: Mapping[str, str] | None = None) -> NoReturn:
    """Replace this process by a Python module, so that signals reach it and nothing stands between.

    Args:
        extra: added to the environment, where other users of the machine cannot read it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    command = [sys.executable, "-m", module, *words]
    try:
        os.execve(sys.executable, command, {**os.environ, **(extra or {})})  # noqa: S606
    except OSError as error:
        raise SwarmError("internal", f"{module} could not be started: {error.strerror}") from None


_DATA = click.option("--data", metavar="FOLDER", help="Where the leader keeps its data.")


@click.command("run", short_help=_ROWS["run"])
@click.option("--host", metavar="ADDRESS", help="Listen there; 127.0.0.1 unless told.")
@click.option("--port", metavar="N", help="7420 unless told; 0 takes a free one.")
@_DATA
@click.option("--public", metavar="URL", help="How fellows and people reach this leader.")
@click.option("--tls-cert", metavar="FILE", help="A certificate for it, not the leader's own.")
@click.option("--tls-key", metavar="FILE", help="The key of that certificate.")
@click.option("--relay", metavar="WHERE", help="Where stages meet: own, none, or HOST:PORT.")
@click.option("--relay-host", metavar="ADDRESS", help="Where its own relay listens.")
@click.option("--relay-port", metavar="N", help="Of its own relay; the port after its own.")
@click.option("--relay-key-file", metavar="FILE", help="The key of a relay elsewhere.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]))
@click.option("--insecure-lan", is_flag=True, help="Serve other machines in clear text.")
@click.option("--trusted-proxy", metavar="ADDRESS", help="A reverse proxy that adds TLS.")
def run(**told: str | bool | None) -> None:
    """Run a leader on this machine until SIGTERM or Ctrl-C.

    It prints one line of JSON with its address when it is ready, and logs JSON lines to stderr.
    """
    become(_MODULE, _words(told))


@click.command("backup", short_help=_ROWS["backup"])
@click.argument("file")
@_DATA
@click.option("--models", is_flag=True, help="With the checkpoints of the model store.")
def backup(file: str, **told: str | bool | None) -> None:
    """Write the leader's database, data and results to one new file.

    The leader must be stopped first: while it runs it holds its data folder, and this refuses.
    """
    become(_MODULE, ["backup", file, *_words(told)])


@click.command("restore", short_help=_ROWS["restore"])
@click.argument("file")
@_DATA
def restore(file: str, **told: str | bool | None) -> None:
    """Put a backup into an empty data folder. The file is checked first."""
    become(_MODULE, ["restore", file, *_words(told)])


def _words(told: Mapping[str, str | bool | None]) -> list[str]:
    words: list[str] = []
    for name, value in told.items():
        if value is True:
            words.append(f"--{name.replace('_', '-')}")
        elif value not in (None, False):
            words.append(f"--{name.replace('_', '-')}={value}")
    return words


_COMMANDS = {"run": run, "backup": backup, "restore": restore}
leader = Words("leader", "Run a leader; back its data up.", _ROWS, _COMMANDS.get, otherwise="run")
