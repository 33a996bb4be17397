"""`swarm signin`: a link that signs one browser into the console, once."""

import click

from agents.cli.session import current, shared_options
from transport.errors import SwarmError


@click.command(short_help="A one-time link that opens the console.")
def signin() -> None:
    """Print a link that signs one browser into the console. It works once, for ten minutes."""
    session = current()
    if session.profile().token.value is None:
        raise SwarmError(
            "unauthenticated",
            "a sign-in link is made with an access token, and there is none",
            hint="name one with --token-file or SWARM_TOKEN",
        )
    with session.client() as client:
        link = client.sign_in_link()
    if session.is_json:
        session.print_json({"url": link})
    else:
        click.echo(link)


signin.params += shared_options()
