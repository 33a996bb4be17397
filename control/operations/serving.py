"""Handlers: served models."""

from control.jobs.placing import stored_plan
from control.operations.call import Call, handles
from control.operations.office import Office
from control.planning.serve import ServeAsk
from control.planning.served import ServedPlan, between, is_for_serving
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
        if ask.plan_id is not None:
            raise SwarmError(
                "invalid-input",
                "/plan_id: a plan on an inventory has none",
                hint="give plan_id with the pool that it was made for",
            )
        file = parse(InventoryFile, ask.inventory)
        return await leader.planner.serve_what_if(ask.model, wish, file)
    if ask.pool is None:
        raise SwarmError(
            "invalid-input",
            "/pool: is missing",
            hint="name the pool, or give an inventory of cards to plan for",
        )
    if ask.plan_id is not None:
        return await _again(leader, ask.pool, ask.plan_id, ask.model, wish)
    view = await leader.planner.serve(ask.pool, ask.model, wish)
    await leader.planner.keep_served(ask.pool, view, leader.clock)
    return view


async def _again(
    leader: Office, pool: str, plan_id: str, model: str, wish: ServeAsk
) -> ServePlanView:
    """A plan that was shown before, while it holds."""
    hint = "plan again with models_plan, without plan_id"
    text = await stored_plan(leader.database, (pool, plan_id), leader.clock, hint=hint)
    view = ServedPlan.model_validate_json(text).view if is_for_serving(text) else None
    if view is None or view.model_id != model:
        raise SwarmError("conflict", f"plan {plan_id} is not one for serving {model}", hint=hint)
    changed = await leader.planner.served_changes(pool, view)
    if not changed:
        return view
    fresh = await leader.planner.serve(pool, model, wish)
    await leader.planner.keep_served(pool, fresh, leader.clock)
    raise SwarmError(
        "plan-changed",
        f"plan {plan_id} no longer holds: {'; '.join(changed[:3])}",
        hint="plan again with models_plan, and take the new plan_id",
        facts={
            "plan_id": plan_id,
            "changes": changed,
            "new_plan_id": fresh.plan_id,
            "new_plan": fresh.summary,
            "differs": between(view, fresh),
        },
    )
