"""Handlers: served models."""

from control.operations.call import Call, handles
from control.operations.office import Office
from control.planning.serve import ServeAsk
from transport.api.inventory import InventoryFile
from transport.api.serving import MODELS_PLAN, ModelsPlan, ServePlanView
from transport.errors import SwarmError
from transport.schema import parse


@handles(MODELS_PLAN)
async def models_plan(leader: Office, call: Call, ask: ModelsPlan) -> ServePlanView:
    """Plan a load."""
    wish = ServeAsk(
        context_tokens=ask.context_tokens or leader.settings.serve_context_tokens,
        is_default_context=ask.context_tokens is None,
        stages=ask.stages,
        storage=ask.kv_storage,
        quantization=None if ask.quantization == "auto" else ask.quantization,
        maximize=ask.maximize,
        exclude_cards=frozenset(ask.exclude_cards),
    )
    if ask.inventory is not None:
        file = parse(InventoryFile, ask.inventory)
        return await leader.planner.serve_what_if(ask.model, wish, file)
    if ask.pool is None:
        raise SwarmError(
            "invalid-input",
            "/pool: is missing",
            hint="name the pool, or give an inventory of cards to plan for",
        )
    return await leader.planner.serve(ask.pool, ask.model, wish)
