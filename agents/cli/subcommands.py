"""A group of commands that are loaded when named; unknown words get the nearest right one."""

import difflib
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import click

from agents.cli.session import shared_options
from agents.cli.words import Own
from transport.errors import SwarmError


class Words(click.Group):
    """The commands below one first word.

    Args:
        rows: each command with its line of help, in the order shown.
        find: loads a command by name.
        otherwise: the command meant when no word is given; None = help.
    """

    def __init__(
        self,
        name: str,
        says: str,
        rows: Mapping[str, str],
        find: Callable[[str], click.Command | None],
        otherwise: str | None = None,
    ) -> None:
        super().__init__(name, help=says, short_help=says, params=[*shared_options()])
        self.no_args_is_help = otherwise is None
        self._rows = rows
        self._find = find
        self._otherwise = otherwise

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the meant command in where none is named."""
        begins_with_word = bool(args) and not args[0].startswith("-")
        is_named = begins_with_word or bool(set(args) & set(self._rows))
        asks_help = bool(set(args) & {"-h", "--help"})
        if self._otherwise is not None and not is_named and not asks_help:
            args = [self._otherwise, *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order shown."""
        return list(self._rows)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load one."""
        return self._find(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find one, or name the nearest."""
        if args[0] not in self._rows:
            raise unknown_command(f"{ctx.command_path} ", args[0], list(self._rows))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list, without loading anything."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self._rows.items()))


def unknown_command(prefix: str, word: str, known: list[str]) -> click.UsageError:
    """The refusal of a word that is no command."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    more = f"Did you mean {near[0]!r}?" if near else f"See `{prefix}--help`."
    return click.UsageError(f"There is no command {word[:40]!r}. {more}")


def load_own(own: Own) -> click.Command:
    """A command that has a module of its own.

    Raises:
        SwarmError: unavailable when this installation lacks it.
    """
    try:
        found: Any = importlib.import_module(own.module)
    except ModuleNotFoundError as error:
        if error.name != own.module:
            raise
        raise SwarmError(
            "unavailable", "this command is not part of this installation", hint="see swarm --help"
        ) from None
    command = getattr(found, own.attribute)
    assert isinstance(command, click.Command)
    return command
