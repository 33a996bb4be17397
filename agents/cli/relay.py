"""`swarm relay`: runs a relay of its own, on a machine that all fellows can dial."""

import click

from agents.cli.leader import become
from agents.cli.session import shared_options


@click.command(short_help="Join stages that cannot dial each other.")
@click.option("--key-file", metavar="FILE", help="Shared with the leader; made if missing.")
@click.option("--host", metavar="ADDRESS", help="Listen there; everywhere unless told.")
@click.option("--port", metavar="N", type=click.IntRange(0, 65535), help="7421 unless told.")
def relay(**told: str | int | None) -> None:
    """Run a relay until SIGTERM or Ctrl-C. It passes on ciphertext and keeps nothing.

    Give its key file to the leader: swarm leader run --relay HOST:7421 --relay-key-file FILE.
    """
    words = [f"--{name.replace('_', '-')}={value}" for name, value in told.items() if value]
    become("transport.relay_server", words)


relay.params += shared_options()
