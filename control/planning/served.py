"""A plan for serving as it is kept under its id, whether it still holds, and how two differ.

Pure. Kept beside the plans of training runs, and never taken for one.
"""

from typing import Literal

from control.planning.difference import card_changes, model_changes
from control.planning.usable import Inventory
from transport.api.serving import ServedStage, ServePlanView
from transport.orders import ModelSource
from transport.schema import Model


class ServedPlan(Model):
    """What is stored."""

    serves: Literal[True] = True
    view: ServePlanView


def is_for_serving(stored: str) -> bool:
    """Whether the JSON of a stored plan is one for serving."""
    return stored.startswith('{"serves":true')


def changes(plan: ServePlanView, inventory: Inventory, source: ModelSource | None) -> list[str]:
    """Each change that keeps the plan from being loaded as it was shown, in words."""
    return [*model_changes(plan.model, source), *card_changes(plan.cards, inventory)]


def between(old: ServePlanView, new: ServePlanView) -> list[str]:
    """What a new plan does otherwise than an old one, in words; [] when nothing."""
    told = [] if new.fits else [f"it would not load: {new.reason}"]
    before, after = _layers(old), _layers(new)
    for fellow_id in [*before, *(name for name in after if name not in before)]:
        was, now = before.get(fellow_id), after.get(fellow_id)
        if was != now:
            host = (was or now or ("", ""))[0]
            words = [one[1] if one else "not used" for one in (was, now)]
            told.append(f"{host}: {words[0]} -> {words[1]}")
    names = ("context_tokens", "kv_storage", "dtype", "quantization") if new.fits else ()
    was_now = [(name, getattr(old, name), getattr(new, name)) for name in names]
    return told + [f"{name}: {was} -> {now}" for name, was, now in was_now if was != now]


def _layers(plan: ServePlanView) -> dict[str, tuple[str, str]]:
    return {one.fellow_id: (one.hostname, _span(one)) for one in plan.stages}


def _span(stage: ServedStage) -> str:
    return f"layers {stage.first_layer}-{stage.last_layer}"
