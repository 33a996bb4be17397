"""Makes the Plan of what was found: every card, stage, choice and note, for every face.

Pure. Nothing is decided or priced here.
"""

from collections.abc import Sequence

from control.planning import auto
from control.planning.plan import PlacedStage, Plan, name_of
from control.planning.search import Ask, Found, LeftOut, disk_free, download_of, span_of
from control.planning.split import PlacedCard, Split
from control.planning.summary import (
    idle_share,
    limit_line,
    paragraph,
    planned_card,
    predicted_step_s,
    unmeasured,
)
from control.planning.usable import Card
from transport.api.plans import DataShape, Layout, PlannedCard, PlannedStage, PlanView
from transport.orders import CardShare, TrainSettings
from transport.units import human_bytes


def plan_of(ask: Ask, cards: Sequence[Card], found: Found, left_out: LeftOut) -> Plan:
    settings = TrainSettings.model_validate(found.settings.model_dump())
    made, facts = found.split, ask.model.facts
    step_s = predicted_step_s(made, facts, settings)
    limit = limit_line(made, settings)
    asked = ask.asked(len(made.stages))
    told = paragraph(made, settings, step_s, limit)
    view = PlanView(
        summary=told if not found.reason else f"This run would wait: {found.reason}.",
        plan_id=None,
        fits=not found.reason,
        reason=found.reason,
        model=ask.model.source,
        model_id=ask.config.model.id,
        layout=Layout(
            stages=[_planned_stage(ask, stage) for stage in made.stages],
            limit=limit,
            idle_share=idle_share(len(made.stages), settings.micro_batches),
            step_s=step_s,
            step_is="unknown" if step_s is None else "estimated",
        ),
        settings=settings,
        chosen=auto.explain(asked, settings, ask.format.reason),
        cards=_card_rows(cards, made, left_out),
        data=_data_at(ask.data, settings),
        config=ask.config,
        notes=_notes(ask, made, settings),
    )
    stages = [
        _placed_stage(stage, facts.num_layers, checked=ask.config.memory_check)
        for stage in made.stages
    ]
    plan_id = name_of(view, stages) if view.fits else None
    return Plan(plan_id=plan_id, view=view.model_copy(update={"plan_id": plan_id}), stages=stages)


def waiting_plan(ask: Ask, cards: Sequence[Card], left_out: LeftOut, reason: str) -> Plan:
    view = PlanView(
        summary=f"This run would wait: {reason}.",
        plan_id=None,
        fits=False,
        reason=reason,
        model=ask.model.source,
        model_id=ask.config.model.id,
        layout=Layout(stages=[], limit="", idle_share=None, step_s=None, step_is="unknown"),
        settings=None,
        chosen=[],
        cards=[
            planned_card(c, None, c.reason or left_out.reasons.get(c.id, "too few fellows with it"))
            for c in cards
        ],
        data=ask.data,
        config=ask.config,
    )
    return Plan(plan_id=None, view=view, stages=[])


def _card_rows(cards: Sequence[Card], made: Split, left_out: LeftOut) -> list[PlannedCard]:
    placed = {one.card.id: one for one in made.cards}
    spare = "not needed: the stage has fewer layers than its fellow has cards"
    return [
        planned_card(card, placed.get(card.id), card.reason or left_out.reasons.get(card.id, spare))
        for card in cards
    ]


def _planned_stage(ask: Ask, stage: Sequence[PlacedCard]) -> PlannedStage:
    span, first = span_of(stage), stage[0]
    return PlannedStage(
        stage=first.place.stage,
        fellow_id=first.card.fellow.fellow_id,
        hostname=first.card.fellow.hostname,
        first_layer=span.first_layer,
        last_layer=span.last_layer,
        cards=[one.card.id for one in stage],
        planned_bytes=sum(one.price.total for one in stage),
        free_bytes=sum(one.card.free_bytes for one in stage),
        download_bytes=download_of(ask, stage),
        disk_free_bytes=disk_free(stage),
        sees_tokens=span.is_first or span.is_last,
    )


def _placed_stage(stage: Sequence[PlacedCard], num_layers: int, *, checked: bool) -> PlacedStage:
    span, first = span_of(stage), stage[0]
    return PlacedStage(
        stage=first.place.stage,
        num_stages=first.place.num_stages,
        fellow_id=first.card.fellow.fellow_id,
        first_layer=span.first_layer,
        last_layer=span.last_layer,
        num_layers=num_layers,
        cards=[_share(one, checked=checked) for one in stage],
        threads=_threads(stage),
    )


def _share(placed: PlacedCard, *, checked: bool) -> CardShare:
    budget = placed.card.free_bytes
    if not checked:  # the caller wants to try: the stage's own check must not refuse the plan
        budget = max(budget, placed.price.total)
    return CardShare(
        index=placed.card.report.index,
        uuid=placed.card.report.uuid,
        first_layer=placed.place.first_layer,
        last_layer=placed.place.last_layer,
        planned_bytes=placed.price.tensor_bytes,
        budget_bytes=max(1, budget),
    )


def _threads(stage: Sequence[PlacedCard]) -> int:
    """A CPU card's own number; beside other cards half the cores, at most 8."""
    told = [card.card.report.threads for card in stage if card.card.report.threads]
    heartbeat = stage[0].card.fellow.heartbeat
    assert heartbeat is not None
    return max(told) if told else max(1, min(8, heartbeat.machine.cores // 2))


def _data_at(data: DataShape | None, settings: TrainSettings) -> DataShape | None:
    """The data's figures with those that the batch size decides."""
    if data is None or data.sequences is None:
        return data
    whole = data.sequences // settings.batch_size
    passes = settings.steps / whole if whole else None
    return data.model_copy(update={"batches": whole, "passes": passes})


def _notes(ask: Ask, made: Split, settings: TrainSettings) -> list[str]:
    notes = ["memory figures are estimates from the fellows' reports; the stages check them again"]
    if not ask.config.memory_check:
        over = f", {human_bytes(made.missing_bytes)} too much" if made.missing_bytes else ""
        notes.append(f"memory and disk are unchecked, as you asked (memory_check false){over}")
    if settings.schedule != ask.config.train.schedule:
        notes.append(
            f"1f1b refuses fewer micro-batches ({settings.micro_batches}) than stages "
            f"({len(made.stages)}): gpipe is used"
        )
    silent = unmeasured(made)
    if silent:
        notes.append(
            f"no measured speed for {', '.join(silent[:4])}: the split is by free memory alone"
        )
    return notes
