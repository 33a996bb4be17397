"""`swarm config show`: the settings of the command line, and where each was found."""

import os

import click

from agents.cli.session import current, shared_options
from agents.cli.subcommands import Words
from agents.profile import Setting, config_path, data_folder

_ROWS = {"show": "Print the settings that would be used now."}


@click.command("show", short_help=_ROWS["show"])
@click.option("--origin", "with_origin", is_flag=True, help="Say where each was found.")
def show(with_origin: bool) -> None:
    """Print the settings that would be used now. A flag goes before a SWARM_ variable, that before
    config.toml, that before the default. The access token is not shown.
    """
    session = current()
    found = session.profile()
    hidden = None if found.token.value is None else "[hidden]"
    rows = {
        "leader": found.leader,
        "pool": found.pool,
        "token": Setting(hidden, found.token.origin),
        "timeout": found.timeout_s,
        "config_file": Setting(str(config_path(os.environ)), "SWARM_CONFIG or default"),
        "leader_data": Setting(str(data_folder(os.environ)), "SWARM_DATA or default"),
    }
    if session.is_json:
        told = {name: {"value": one.value, "origin": one.origin} for name, one in rows.items()}
        session.print_json(told if with_origin else {n: t["value"] for n, t in told.items()})
        return
    for name, one in rows.items():
        origin = f"   ({one.origin})" if with_origin else ""
        click.echo(f"{name:<12} {one.value or '–'}{origin}")


show.params += shared_options()
config = Words("config", "Settings, and where each comes from.", _ROWS, {"show": show}.get)
