"""`swarm model-load`: where a model would be served. Loading itself comes with serving."""

from typing import Any

import click

from agents.cli.jobfile import read_inventory_file
from agents.cli.operation_commands import only_pool
from agents.cli.render_plan import serve_plan_text
from agents.cli.session import DONE, WAITING, Session, current, shared_options
from agents.client import Client
from transport.api.serving import MODELS_PLAN, ModelsPlan
from transport.errors import SwarmError
from transport.schema import parse


@click.command("model-load", short_help="Show where a model would be served (--plan).")
@click.argument("model")
@click.option("--plan", "only_plan", is_flag=True, help="Show the plan; load nothing.")
@click.option("--maximize", type=click.Choice(["context", "speed"]), help="What to search for.")
@click.option("--context", "context_tokens", type=int, metavar="N", help="Tokens of context.")
@click.option("--stages", type=int, metavar="N", help="Over exactly so many fellows.")
@click.option("--kv-cache", "kv_storage", type=click.Choice(["float16", "int8"]),
              help="How keys and values are stored.")  # fmt: skip
@click.option("--exclude-card", "exclude_cards", multiple=True, metavar="FELLOW:INDEX",
              help="Leave a card out. May be repeated.")  # fmt: skip
@click.option("--inventory", metavar="FILE", help="Plan for the cards of this file.")
@click.option("--plan-id", metavar="ID",
              help="With --plan: this plan again, or what changed since.")  # fmt: skip
def model_load(**told: Any) -> int:
    """Show where a model would be served and the context that every card holds. Loads nothing."""
    if not told.pop("only_plan"):
        raise SwarmError(
            "unavailable", "models cannot be loaded yet", hint="look at the plan with --plan"
        )
    session = current()
    with session.client() as client:
        ask = _ask(session, client, told)
        answer = client.call_raw(MODELS_PLAN, ask)
        shown = client.read(MODELS_PLAN, answer)
    if session.is_json:
        session.print_raw(answer)
    else:
        session.console().print(serve_plan_text(shown))
    return DONE if shown.fits else WAITING


def _ask(session: Session, client: Client, told: dict[str, Any]) -> ModelsPlan:
    values = {key: value for key, value in told.items() if value not in (None, ())}
    if "exclude_cards" in values:
        values["exclude_cards"] = list(values["exclude_cards"])
    if "inventory" in values:
        values["inventory"] = read_inventory_file(values["inventory"])
    else:
        values["pool"] = session.profile().pool.value or only_pool(client)
    return parse(ModelsPlan, values)


model_load.params += shared_options()
