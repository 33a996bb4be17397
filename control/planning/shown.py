"""Makes the Plan of what was found: every card, stage, choice and note, for every face.

Pure. Nothing is decided or priced here.
"""

from collections.abc import Sequence

from control.planning import auto
from control.planning.compression import Crossed
from control.planning.data_words import chosen_data, data_notes, data_sentence
from control.planning.disk import disk_free, span_of
from control.planning.longest import longest_held
from control.planning.pace import Pace, network_line, pace_of, unmeasured
from control.planning.plan import PlacedStage, Plan, name_of
from control.planning.search import Ask, Found, LeftOut
from control.planning.split import PlacedCard, Split, fellows_of
from control.planning.summary import (
    WHAT_IF_NOTE,
    idle_share,
    limit_line,
    moved_line,
    paragraph,
    planned_card,
    took_line,
)
from control.planning.terms import Terms
from control.planning.together import crowd_of
from control.planning.usable import Card
from transport.api.plans import (
    Boundary,
    Chosen,
    DataShape,
    Layout,
    PlannedCard,
    PlannedStage,
    PlanView,
)
from transport.orders import CardShare, TrainSettings
from transport.units import human_bytes, human_seconds


def plan_of(ask: Ask, cards: Sequence[Card], found: Found, left_out: LeftOut, terms: Terms) -> Plan:
    """The plan that a search ended with."""
    settings = TrainSettings.model_validate(found.settings.model_dump())
    made, facts = found.split, ask.model.facts
    layout = _layout(ask, found, settings)
    asked = ask.asked(len(made.stages))
    told = paragraph(made, settings, took_line(layout.step_s, layout.network), layout.limit)
    told += data_sentence(ask.data)
    view = PlanView(
        summary=told if not found.reason else f"This run would wait: {found.reason}.",
        plan_id=None,
        fits=not found.reason,
        reason=found.reason,
        model=ask.model.source,
        model_id=ask.config.model.id,
        layout=layout,
        settings=settings,
        chosen=[
            *_chosen_split(ask, found, settings, terms),
            *auto.explain(asked, settings, ask.format.reason),
            *chosen_data(ask.data, ask.config.data),
        ],
        cards=_card_rows(cards, made, left_out),
        data=_data_at(ask.data, settings),
        config=ask.config,
        what_if=terms.what_if,
        notes=[*_notes(ask, found, settings), *_inventory_notes(made, terms)],
    )
    stages = [
        _placed_stage(stage, facts.num_layers, checked=ask.config.memory_check)
        for stage in made.stages
    ]
    plan_id = name_of(view, stages) if view.fits and not terms.what_if else None
    return Plan(plan_id=plan_id, view=view.model_copy(update={"plan_id": plan_id}), stages=stages)


def _layout(ask: Ask, found: Found, settings: TrainSettings) -> Layout:
    made = found.split
    pace = _pace(ask, made, settings)
    step_s = None if pace is None else pace.step_s(made) * crowd_of(made, pace).longer
    longest = longest_held(made, ask.model.facts, settings) if not found.reason else None
    return Layout(
        stages=[_planned_stage(ask, stage) for stage in made.stages],
        limit=limit_line(made, settings, longest),
        idle_share=idle_share(len(made.stages), settings.micro_batches),
        step_s=step_s,
        step_is="unknown" if step_s is None else "estimated",
        bound_s=found.bound_s,
        network=network_line(pace, made) if pace is not None else "",
        boundary=_boundary(ask, made, settings),
    )


def _boundary(ask: Ask, made: Split, settings: TrainSettings) -> Boundary | None:
    if len(made.stages) < 2:
        return None
    crossed = _crossed(ask, settings)
    return Boundary(
        kind=settings.compression.kind,
        token_bytes=crossed.row_bytes,
        step_bytes=crossed.step_bytes,
        share=crossed.share,
        before_bytes=crossed.before_bytes,
    )


def _crossed(ask: Ask, settings: TrainSettings) -> Crossed:
    return Crossed(ask.model.facts, settings, ask.data.sequences if ask.data else None)


def _pace(ask: Ask, made: Split, settings: TrainSettings) -> Pace | None:
    cards = [one.card for one in made.cards]
    fellows = fellows_of(cards)
    known = ask.links if ask.links is not None and not ask.links.unknown(fellows) else None
    return pace_of(ask.model.facts, settings, cards, known)


def _chosen_split(ask: Ask, found: Found, settings: TrainSettings, terms: Terms) -> list[Chosen]:
    """The split and why, where the leader chose it."""
    made = found.split
    if len(made.stages) < 2 or ask.pins.counts:
        return []
    pace = _pace(ask, made, settings)
    kind = "datasheet" if terms.datasheet else "measured"
    silent = unmeasured([one.card for one in made.cards])
    if ask.pins.equal:
        why = "the same number of layers each, as you asked (partition equal)"
    elif pace is not None:
        shorter = moved_line(found.tried, pace.number_format, kind)
        why = shorter or f"by free memory; no layer moved makes a step shorter by {kind} speed"
    elif silent:
        why = f"by free memory: no measured speed for {', '.join(silent[:4])}"
    else:
        why = "by free memory: the cards have no speed figure in one format"
    return [Chosen(setting="split", value=made.counts, reason=why)]


FEW = "not enough fellows even with it"


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
        cards=[planned_card(c, None, c.reason or left_out.reasons.get(c.id, FEW)) for c in cards],
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
        download_bytes=ask.disk.download(stage),
        disk_free_bytes=disk_free(first.card.fellow),
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
    # A step takes the next sequences of an endless stream of passes: none are left out at an end.
    passes = settings.steps * settings.batch_size / data.sequences if data.sequences else None
    return data.model_copy(update={"batches": whole, "passes": passes})


def _notes(ask: Ask, found: Found, settings: TrainSettings) -> list[str]:
    made = found.split
    notes = ["memory figures are estimates from the fellows' reports; the stages check them again"]
    if not ask.config.memory_check:
        over = f", {human_bytes(made.missing_bytes)} too much" if made.missing_bytes else ""
        notes.append(f"memory and disk are unchecked, as you asked (memory_check false){over}")
    if settings.schedule != ask.config.train.schedule:
        notes.append(
            f"1f1b refuses fewer micro-batches ({settings.micro_batches}) than stages "
            f"({len(made.stages)}): gpipe is used"
        )
    if settings.compression.kind != "none":
        notes.append(_crossed(ask, settings).line())
    silent = unmeasured([one.card for one in made.cards])
    if silent:
        notes.append(
            f"no measured speed for {', '.join(silent[:4])}: the split is by free memory alone"
        )
    if ask.old:
        notes.append(
            f"{', '.join(ask.old[:4])}: an old version, so recompute and chunked loss are left out "
            "and no more than two fellows train together; update with swarm update"
        )
    return [*notes, *data_notes(ask.data), *_speed_notes(ask, found)]


def _speed_notes(ask: Ask, found: Found) -> list[str]:
    """What the predicted step rests on."""
    if found.tried is None or len(found.split.stages) < 2:
        return []
    notes = []
    fellows = fellows_of([one.card for one in found.split.cards])
    gap = ask.links.unknown(fellows) if ask.links is not None else (" ", " ")
    if gap is not None:
        hosts = {one.fellow_id: one.cards[0].fellow.hostname for one in fellows}
        where = f" ({hosts[gap[0]]} to {hosts[gap[1]]})" if gap[0] in hosts else ""
        notes.append(f"the network is left out of the step: links have no figures{where}")
    pace = _pace(ask, found.split, found.settings)
    if pace is not None and (words := crowd_of(found.split, pace).words):
        notes.append(words)
    if found.bound_s is not None and found.tried.seconds > found.bound_s * 1.0005:
        above = 100 * (found.tried.seconds / found.bound_s - 1)
        notes.append(
            f"no order of these fellows is faster than {human_seconds(found.bound_s)} a step; "
            f"this one is within {above:.1f} %"
        )
    return notes


def _inventory_notes(made: Split, terms: Terms) -> list[str]:
    if not terms.what_if:
        return []
    notes = [WHAT_IF_NOTE]
    if terms.datasheet & {one.card.id for one in made.cards}:
        notes.append("speeds are datasheet figures: compare plans by them, real steps take longer")
    return notes
