"""`swarm`: finds the command, runs it, and turns every failure into words and an exit code.

Loads a command only when it is called. Does not know what any command does.
"""

import json
import os
import sys
from collections.abc import Sequence

import click

from agents.cli.session import INTERRUPTED, Session, shared_options
from agents.cli.subcommands import load_own, unknown_command
from agents.cli.words import COMMANDS, GROUPS
from transport.errors import SwarmError


class Swarm(click.Group):
    """The top: its help comes from a table, its commands are loaded when named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All first words, in the order in which a newcomer needs them."""
        return [*COMMANDS, *GROUPS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load one command."""
        if cmd_name in COMMANDS:
            return load_own(COMMANDS[cmd_name])
        if cmd_name in GROUPS:
            from agents.cli.operation_commands import command_of

            return command_of(cmd_name, GROUPS[cmd_name])
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command, or name the nearest."""
        word = args[0]
        if word not in COMMANDS and word not in GROUPS:
            raise unknown_command("swarm ", word, self.list_commands(ctx))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The lists of commands, from the table."""
        rows = [(name, own.says) for name, own in COMMANDS.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
        with formatter.section("Operations (also MCP tools and REST routes)"):
            formatter.write_dl(list(GROUPS.items()))


def _print_version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"swarm {version('swarm-pool')}")
        context.exit()


swarm = Swarm(
    name="swarm",
    help="Train and serve models on the machines you already own.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "obj": None},
    params=[
        *shared_options(),
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Print the version.",
        ),
    ],
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `swarm` and exit."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run `swarm`; its exit code."""
    session = Session()
    try:
        told = swarm.main(list(arguments), prog_name="swarm", standalone_mode=False, obj=session)
        sys.stdout.flush()
    except SwarmError as error:
        return _refuse(error, is_json=session.is_json or "--json" in arguments)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as help_text:
        click.echo(help_text.format_message(), err=True)
        return 2
    except click.ClickException as error:
        return _refuse(_usage(error), is_json=session.is_json or "--json" in arguments)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read us has enough; the interpreter must not complain at its end either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return told if isinstance(told, int) else 0


def _usage(error: click.ClickException) -> SwarmError:
    """A mistake in the command line as our own error."""
    message = error.format_message().rstrip(".")
    hint = "see --help"
    context = getattr(error, "ctx", None)
    if context is not None:
        hint = f"see `{context.command_path} --help`"
    return SwarmError("invalid-input", message, hint=hint)


def _refuse(error: SwarmError, *, is_json: bool) -> int:
    if is_json:
        click.echo(json.dumps(error.problem(), ensure_ascii=False))
        click.echo(f"error: {error.message} ({error.code})", err=True)
        return error.exit_code
    click.echo(f"error: {error.message} ({error.code})", err=True)
    for change in error.facts.get("changes", [])[:10]:
        click.echo(f"  {change if isinstance(change, str) else json.dumps(change)}", err=True)
    if error.facts.get("new_plan"):
        new_id = error.facts.get("new_plan_id") or "(none)"
        click.echo(f"  new plan {new_id}: {error.facts['new_plan']}", err=True)
    if error.hint:
        from agents.cli.hints import in_commands

        click.echo(f"  next: {in_commands(error.hint)}", err=True)
    return error.exit_code


if __name__ == "__main__":
    main()
