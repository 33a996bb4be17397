"""Plans as text for people: who does what, what was chosen and why, and the line that limits.

Knows the answers' models; does not ask anything. The text may change; `--json` is what programs
read.
"""

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from agents.cli.render_data import data_lines
from agents.cli.tables import DASH, Labelled, table
from agents.log_lines import clean
from transport.api.plans import Chosen, Offer, PlannedCard, PlanView
from transport.api.serving import ServePlanView
from transport.units import human_bytes, human_seconds


def plan_text(plan: PlanView) -> RenderableType:
    """A plan: who does what, who is left out and why, what was chosen, and the line that limits."""
    revision = f" @ {plan.model.revision[:8]}" if plan.model else ""
    title = Text.assemble(
        ("Plan ", "bold"),
        (_id_text(plan.plan_id, plan.what_if), "bold"),
        f"   {plan.model_id}{revision}{_kind_text(plan)}",
    )
    parts: list[RenderableType] = [title]
    if plan.layout.stages:
        parts.append(_plan_stages(plan))
    parts += _left_out(plan.cards)
    parts += chosen_lines(plan.chosen)
    parts += data_lines(plan.data)
    parts += _download(plan)
    parts += [Labelled("Limit", plan.layout.limit)] if plan.layout.limit else []
    readers = ", ".join(stage.hostname for stage in plan.layout.stages if stage.sees_tokens)
    parts += [Labelled("Tokens", f"seen by {readers}")] if readers else []
    parts += [Labelled("Step", _step(plan))] if plan.layout.step_s is not None else []
    parts += [Labelled("Network", plan.layout.network)] if plan.layout.network else []
    parts += [Labelled("Note", note) for note in plan.notes]
    if not plan.fits:
        parts.append(Text(f"Does not fit: {plan.reason}", style="bold red"))
    parts += [Labelled("Offer", _offer(one)) for one in plan.offers]
    return Group(*parts)


def chosen_lines(chosen: Sequence[Chosen]) -> list[RenderableType]:
    """Every setting that the leader chose, with the reason."""
    return [
        Labelled("Chosen", f"{one.setting} {value_text(one.value)}: {one.reason}") for one in chosen
    ]


def _step(plan: PlanView) -> str:
    """The predicted step, and the share of it that a fellow waits."""
    layout = plan.layout
    waits = "" if layout.idle_share is None else f", idle share {100 * layout.idle_share:.0f}%"
    return f"{human_seconds(layout.step_s)} ({layout.step_is}){waits}"


def _offer(one: Offer) -> str:
    return one.change if one.plan_id is None else f"{one.change}   --plan-id {one.plan_id}"


def serve_plan_text(plan: ServePlanView) -> RenderableType:
    """Where a model would be served, and the context that each stage holds."""
    title = Text.assemble(("Plan ", "bold"), (_id_text(plan.plan_id, plan.what_if), "bold"))
    stored = "" if plan.quantization in (None, "none") else f", {plan.quantization}"
    title.append(f"   {plan.model_id}   {plan.dtype}{stored}   {plan.cut}")
    rows = [
        (
            f"  {stage.stage}",
            stage.hostname,
            layers_text(stage.first_layer, stage.last_layer),
            cards_text(stage.cards, plan.cards),
            human_bytes(stage.planned_bytes),
            human_bytes(stage.free_bytes),
            f"{stage.token_budget:,}",
        )
        for stage in plan.stages
    ]
    headings = ("  stage", "fellow", "layers", "cards", "needs>", "free>", "holds tokens>")
    parts: list[RenderableType] = [title, *([table(headings, rows)] if rows else [])]
    parts += _left_out(plan.cards)
    parts += [Labelled("Limit", plan.limit)] if plan.limit else []
    parts += [Labelled("Note", note) for note in plan.notes]
    if not plan.fits:
        parts.append(Text(f"Does not fit: {plan.reason}", style="bold red"))
    return Group(*parts)


def _left_out(cards: Sequence[PlannedCard]) -> list[Text]:
    """Cards that are not used, a line for each reason."""
    by_reason: dict[str, list[str]] = {}
    for card in cards:
        if not card.used:
            name = f"{clean(card.hostname, 60)} ({clean(card.name, 60)})"
            by_reason.setdefault(card.reason, []).append(name)
    return [Text(f"  left out: {_some(names)}: {why}") for why, names in by_reason.items()]


def _some(names: Sequence[str], most: int = 4) -> str:
    """The first of many names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def cards_text(stage_cards: Sequence[str], cards: Sequence[PlannedCard]) -> str:
    """ "RTX A4000 #0", "GTX 1660 SUPER #0, #1": cards of one name are named once."""
    names = {card.card: clean(card.name, 60) for card in cards}
    by_name: dict[str, list[str]] = {}
    for card in stage_cards:
        by_name.setdefault(names.get(card, card), []).append(f"#{card.rpartition(':')[2]}")
    return ", ".join(f"{name} {', '.join(numbers)}" for name, numbers in by_name.items())


def _download(plan: PlanView) -> list[RenderableType]:
    """What each fellow downloads of its free disk."""
    told = [
        f"{stage.hostname} {human_bytes(stage.download_bytes)} of "
        f"{human_bytes(stage.disk_free_bytes)} free"
        if stage.disk_free_bytes is not None
        else f"{stage.hostname} {human_bytes(stage.download_bytes)}, its free disk is unknown"
        for stage in plan.layout.stages
        if stage.download_bytes is not None
    ]
    return [Labelled("Download", "; ".join(told))] if told else []


def _plan_stages(plan: PlanView) -> Table:
    rows = [
        (
            f"  {stage.stage}",
            stage.hostname,
            stage.fellow_id,
            layers_text(stage.first_layer, stage.last_layer),
            cards_text(stage.cards, plan.cards),
            human_bytes(stage.planned_bytes),
            human_bytes(stage.free_bytes),
        )
        for stage in plan.layout.stages
    ]
    headings = ("  stage", "fellow", "id", "layers", "cards", "needs>", "free>")
    return table(headings, rows)


def layers_text(first: int | None, last: int | None) -> str:
    """ "20-47", or a dash."""
    return DASH if first is None or last is None else f"{first}-{last}"


def value_text(value: Any) -> str:
    """A setting's value as people write it."""
    return "on" if value is True else "off" if value is False else str(value)


def _id_text(plan_id: str | None, what_if: bool) -> str:
    return plan_id or ("(what-if: no id)" if what_if else "(none)")


def _kind_text(plan: PlanView) -> str:
    """ "QLoRA, 4 bits, float16": what trains, how weights are kept, what computes."""
    settings = plan.settings
    if settings is None:
        return ""
    stored = {"nf4": "4 bits", "int8": "8 bits"}.get(settings.quantization, "")
    method = {"lora": "QLoRA" if stored else "LoRA", "full": "full fine-tune"}.get(
        settings.method, settings.method
    )
    return "   " + ", ".join(word for word in (method, stored, settings.dtype) if word)
