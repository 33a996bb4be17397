"""What every command of one call shares: its settings, its way to print, its way to the leader.

Built before any command runs and costs nothing until it is asked: no network, no rich.
"""

import json
import os
import sys
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

import click

from agents import profile
from transport.errors import SwarmError

if TYPE_CHECKING:  # what a command may never need is imported when it is
    from rich.console import Console

    from agents.client import Client

DONE, FAILED, WAITING, INTERRUPTED = 0, 1, 3, 130


@dataclass
class Session:
    """The state of one call of `swarm`."""

    flags: dict[str, str | None] = field(default_factory=dict)
    """leader, pool, token_file, timeout as given; None or missing = not given."""
    is_json: bool = False
    no_color: bool = False
    is_quiet: bool = False
    verbosity: int = 0
    is_yes: bool = False

    def profile(self) -> profile.Profile:
        """The settings with their origins."""
        return profile.read(self.flags)

    @property
    def timeout_s(self) -> float:
        """How long an answer may take."""
        told = self.profile().timeout_s.value or "30"
        try:
            seconds = float(told)
        except ValueError:
            seconds = -1.0
        if not 0 < seconds <= 86_400:
            raise SwarmError(
                "invalid-input", f"{told!r} is no number of seconds", hint="like --timeout 30"
            )
        return seconds

    def client(self) -> "Client":
        """A client of the leader."""
        from agents.client import Client  # noqa: PLC0415 - `swarm --help` needs no HTTP

        found = self.profile()
        return Client(found.url, found.token.value, self.timeout_s)

    def console(self, stream: IO[str] | None = None) -> "Console":
        """Where text for people goes; plain when it is not a terminal or colour is unwanted."""
        from rich.console import Console  # noqa: PLC0415 - `swarm --help` needs no tables

        file = stream or sys.stdout
        plain = self.no_color or bool(os.environ.get("NO_COLOR"))
        # A pipe has no width: 200 keeps a row on one line for whoever reads it.
        width = None if file.isatty() else 200
        return Console(
            file=file,
            no_color=plain,
            highlight=False,
            markup=False,
            width=width,
            soft_wrap=width is not None,
        )

    def say(self, text: str) -> None:
        """A line for people beside the result, on stderr; nothing with --quiet."""
        if not self.is_quiet:
            click.echo(text, err=True)

    def print_json(self, value: Any) -> None:
        """A result as JSON on stdout."""
        click.echo(json.dumps(value, indent=2, ensure_ascii=False))

    def print_raw(self, answer: bytes) -> None:
        """An answer unchanged."""
        click.echo(answer.decode().rstrip("\n"))

    def confirm(self, question: str) -> None:
        """Ask a person before something is destroyed; a pipe and --yes mean yes.

        Raises:
            click.Abort: when the answer is no.
        """
        if not self.is_yes and not self.is_json and sys.stdin.isatty() and sys.stderr.isatty():
            click.confirm(question, abort=True, err=True)


def current() -> Session:
    """The session of the command that runs now."""
    session = click.get_current_context().find_object(Session)
    assert session is not None
    return session


def _note(name: str) -> Any:
    def note(context: click.Context, _: click.Parameter, value: Any) -> None:
        if value is None or value is False or value == 0:
            return
        session = context.ensure_object(Session)
        if name in ("leader", "pool", "token_file", "timeout"):
            session.flags[name] = str(value)
        else:
            setattr(session, name, value)

    return note


def shared_options(without: frozenset[str] = frozenset()) -> list[click.Option]:
    """The options that every command takes, before or after its own words.

    Args:
        without: names that the command itself already uses.
    """

    def option(words: list[str], name: str, text: str, **more: Any) -> click.Option:
        return click.Option(
            [*words, f"opt_{name}"],
            callback=_note(name),
            expose_value=False,
            is_eager=True,
            help=text,
            **more,
        )

    options = {
        "leader": option(["--leader"], "leader", "The leader's address.", metavar="URL"),
        "pool": option(["--pool"], "pool", "The pool, as owner/name.", metavar="OWNER/NAME"),
        "token_file": option(
            ["--token-file"], "token_file", "A file with an access token.", metavar="FILE"
        ),
        "timeout": option(
            ["--timeout"], "timeout", "Seconds that an answer may take.", metavar="S"
        ),
        "json": option(["--json"], "is_json", "Print the answer as JSON.", is_flag=True),
        "no_color": option(["--no-color"], "no_color", "No colour.", is_flag=True),
        "quiet": option(["-q", "--quiet"], "is_quiet", "Only the result.", is_flag=True),
        "verbose": option(["-v", "--verbose"], "verbosity", "Say more.", count=True),
        "yes": option(["--yes"], "is_yes", "Do not ask before destroying.", is_flag=True),
    }
    return [made for name, made in options.items() if name not in without]
