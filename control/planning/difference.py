"""Whether a plan still holds on the pool as it is now, what has changed, and how plans differ.

Pure. Drift of free memory that leaves every card with its planned bytes is no change.
"""

from collections.abc import Sequence

from control.planning.plan import Plan
from control.planning.usable import FellowNow, Inventory
from transport.api.plans import PlannedCard
from transport.cards import CardReport
from transport.ids import card_id
from transport.orders import ModelSource
from transport.units import human_bytes, human_seconds


def holds(plan: Plan, inventory: Inventory, source: ModelSource | None = None) -> bool:
    """Whether the plan can start exactly as it was shown. `source`: the model's revision now."""
    return plan.fits and not difference(plan, inventory, source)


def difference(plan: Plan, inventory: Inventory, source: ModelSource | None = None) -> list[str]:
    """Each change that keeps the plan from starting as it was shown, in words; [] when it holds."""
    return [
        *model_changes(plan.view.model, source),
        *card_changes(plan.view.cards, inventory, checked=plan.view.config.memory_check),
    ]


def card_changes(
    cards: Sequence[PlannedCard], inventory: Inventory, *, checked: bool = True
) -> list[str]:
    """What of the cards that a plan uses is not as it was shown, in words.

    Args:
        checked: whether the planned bytes must be free.
    """
    fellows = {one.fellow_id: one for one in inventory}
    told: dict[str, None] = {}
    for card in cards:
        if card.used:
            fellow = fellows.get(card.fellow_id)
            change = _fellow_change(card, fellow)
            if not change and fellow is not None:
                change = _card_change(card, fellow, checked=checked)
            told |= {change: None} if change else {}
    return list(told)


def model_changes(planned: ModelSource | None, now: ModelSource | None) -> list[str]:
    """Whether a model is at another revision than the one that was planned, in words."""
    if now is None or planned is None or now.revision == planned.revision:
        return []
    change = (
        f"{planned.model_id} is at revision {now.revision[:12]} now, "
        f"the plan was made for {planned.revision[:12]}"
    )
    return [change]


def between(old: Plan, new: Plan) -> list[str]:
    """What a new plan of a job does otherwise than an old one, in words; [] when nothing."""
    told = [] if new.fits else [f"it would wait: {new.reason}"]
    before, after = _layers(old), _layers(new)
    for fellow_id in [*before, *(name for name in after if name not in before)]:
        was, now = before.get(fellow_id), after.get(fellow_id)
        if was != now:
            host = (was or now or ("", ""))[0]
            told.append(
                f"{host}: {was[1] if was else 'not used'} -> {now[1] if now else 'not used'}"
            )
    return told + _settings_between(old, new) + _step_between(old, new)


def _layers(plan: Plan) -> dict[str, tuple[str, str]]:
    """Fellow -> (host name, its layers in words)."""
    return {
        stage.fellow_id: (stage.hostname, f"layers {stage.first_layer}-{stage.last_layer}")
        for stage in plan.view.layout.stages
    }


def _settings_between(old: Plan, new: Plan) -> list[str]:
    was, now = old.view.settings, new.view.settings
    if was is None or now is None:
        return []
    return [
        f"{name}: {getattr(was, name)} -> {getattr(now, name)}"
        for name in type(was).model_fields
        if getattr(was, name) != getattr(now, name)
    ]


def _step_between(old: Plan, new: Plan) -> list[str]:
    was, now = old.view.layout.step_s, new.view.layout.step_s
    if was is None or now is None or abs(now - was) < 0.01 * was:
        return []
    return [f"a predicted step: {human_seconds(was)} -> {human_seconds(now)}"]


def _fellow_change(card: PlannedCard, fellow: FellowNow | None) -> str:
    if fellow is None:
        return f"{card.hostname} ({card.fellow_id}) is no longer in the pool"
    if fellow.standing == "offline" or fellow.heartbeat is None:
        return f"{card.hostname} is not connected"
    if fellow.standing != "ready":
        return f"{card.hostname} is {fellow.standing}"
    return ""


def _card_change(card: PlannedCard, fellow: FellowNow, *, checked: bool) -> str:
    report = _report(card, fellow)
    title = f"{card.hostname}'s {card.name} #{card.card.rpartition(':')[2]}"
    if report is None:
        return f"{title} is gone"
    if report.uuid != card.uuid:
        return f"{title} is another card now ({report.name})"
    if report.free_bytes is None:
        return f"{title} no longer tells how much memory is free"
    if checked and report.free_bytes < (card.planned_bytes or 0):
        return (
            f"{title} has {human_bytes(report.free_bytes)} free, "
            f"the plan needs {human_bytes(card.planned_bytes)}"
        )
    return ""


def _report(card: PlannedCard, fellow: FellowNow) -> CardReport | None:
    assert fellow.heartbeat is not None
    named = (
        one for one in fellow.heartbeat.cards if card_id(fellow.fellow_id, one.index) == card.card
    )
    return next(named, None)
