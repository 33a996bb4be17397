"""Places a model for serving: the fewest fellows that hold it, the cut it was trained with, the
longest context, or the fastest cards.

Pure. The same cards, floors, spread and exact split as for training; prices are those of serving.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from control.planning.auto import Quantization
from control.planning.course import SAME, Course
from control.planning.disk import Disk
from control.planning.longest import most
from control.planning.orders import Tries, best_order
from control.planning.pace import pace_of
from control.planning.place import Inputs
from control.planning.price_book import PriceBook
from control.planning.search import tries_for
from control.planning.split import FellowCards, Pins, PlacedCard, Split, fellows_of, split, split_at
from control.planning.summary import WHAT_IF_NOTE, left_out_line, needs_line, planned_card
from control.planning.usable import Card, Wanted, examine
from stage_runtime.kv_costs import ServePrices, ServeShape
from stage_runtime.places import CardPlace, Device
from transport.api.plans import PlannedCard
from transport.api.serving import KvStorage, ServedStage, ServePlanView
from transport.errors import SwarmError
from transport.units import count_of

LONGEST_CONTEXT = 1_048_576
MAX_STAGES = 16


_NOTES = (
    "serving prices are estimates: nothing has been served yet that could correct them",
    "a model cannot be loaded yet: this plan is to look at",
)


@dataclass(frozen=True)
class Cut:
    """Layers by fellow, in pipeline order: of the run that trained the model."""

    fellows: tuple[str, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class ServeAsk:
    """How a model shall be served."""

    context_tokens: int
    is_default_context: bool = False
    """Nobody asked for it: the model's positions may cut it."""
    stages: int | None = None
    storage: KvStorage = "float16"
    quantization: Quantization | None = None
    """None: 4 bits only when it does not fit without."""
    maximize: str | None = None
    exclude_cards: frozenset[str] = frozenset()
    cut: Cut | None = None


@dataclass(frozen=True)
class _Served:
    """A placement, and why it is this one."""

    ask: ServeAsk
    shape: ServeShape
    cards: list[Card]
    split: Split | None
    why: str
    reason: str = ""


def place_model(inputs: Inputs, ask: ServeAsk) -> ServePlanView:
    """Plan a load on a pool as it is now, or on an inventory.

    Raises:
        SwarmError: invalid-input; a context beyond the model's positions, more stages than layers,
            a card that is not in the pool.
    """
    positions = inputs.model.facts.max_positions
    if ask.is_default_context and positions is not None:
        ask = replace(ask, context_tokens=min(ask.context_tokens, positions))
    _refuse(inputs, ask)
    asked = ask.quantization
    served = _served(inputs, ask, asked or "none")
    if served.reason and asked is None:
        smaller = _served(inputs, ask, "nf4")
        served = smaller if not smaller.reason or smaller.split else served
    return _view(inputs, served)


def _refuse(inputs: Inputs, ask: ServeAsk) -> None:
    facts = inputs.model.facts
    if facts.max_positions is not None and ask.context_tokens > facts.max_positions:
        raise SwarmError(
            "invalid-input",
            f"a context of {ask.context_tokens} tokens is longer than the {facts.max_positions} "
            "positions of this model",
            hint=f"ask for {facts.max_positions} or less",
        )
    if ask.stages is not None and ask.stages > facts.num_layers:
        raise SwarmError(
            "invalid-input",
            f"{ask.stages} stages are more than the {facts.num_layers} layers of this model",
            hint=f"ask for {facts.num_layers} or less",
        )


def _served(inputs: Inputs, ask: ServeAsk, quantization: Quantization) -> _Served:
    shape = _shape(inputs, ask, quantization)
    cards = _cards(inputs, ask, shape)
    every = fellows_of(cards)
    fellows = sorted(every, key=lambda one: (-one.free_bytes, one.fellow_id))
    fellows = fellows[: min(MAX_STAGES, inputs.model.facts.num_layers)]
    if len(fellows) < (ask.stages or 1):
        few = f"{len(fellows)} with a usable card, {ask.stages or 1} needed"
        reason = f"not enough ready fellows: {few}{left_out_line(cards)}"
        return _Served(ask, shape, cards, None, "", reason)
    if ask.maximize == "context":
        shape = _longest_shape(inputs, ask, shape, fellows)
    found = _placed(inputs, ask, shape, fellows)
    if found is None:
        fellows = fellows[: ask.stages]
        nearest = split(fellows, _book(inputs, shape), Pins())
        over = "" if ask.stages is None else f" over {count_of(ask.stages, 'stage')}, as you asked"
        reason = (
            f"not enough memory for a context of {ask.context_tokens:,} tokens{over}: "
            f"{needs_line(nearest, fellows, 'the model')}"
        )
        return _Served(ask, shape, cards, nearest, "", reason)
    disk = Disk(inputs.model.facts, inputs.model.source, inputs.model.files)
    lacks = [lack for stage in found[0].stages if (lack := disk.lack(stage))]
    reason = f"not enough disk: {'; '.join(lacks)}" if lacks else ""
    return _Served(ask, shape, cards, *found, reason)


def _shape(inputs: Inputs, ask: ServeAsk, quantization: Quantization) -> ServeShape:
    shape = ServeShape(
        ask.context_tokens,
        storage="int8" if ask.storage == "int8" else "16bit",
        quantization=quantization,
    )
    ready = [card for card in _cards(inputs, ask, shape, any_format=True) if not card.reason]
    if ready and all("bfloat16" in card.report.number_formats for card in ready):
        return shape
    if ready and all("float16" in card.report.number_formats for card in ready):
        return replace(shape, dtype="float16")
    return replace(shape, dtype="float32")


def _cards(
    inputs: Inputs, ask: ServeAsk, shape: ServeShape, *, any_format: bool = False
) -> list[Card]:
    layer = 1 % inputs.model.facts.num_layers
    book = _book(inputs, replace(shape, context_tokens=16))

    def floor(device: Device) -> int:
        return book.total(CardPlace(1, 3, layer, layer), device)

    wanted = Wanted(
        floor,
        None if any_format else shape.dtype,
        shape.quantization,
        ask.exclude_cards,
        frozenset({"stage"}),
    )
    return examine(inputs.inventory, wanted)


def _book(inputs: Inputs, shape: ServeShape) -> PriceBook:
    prices = ServePrices(inputs.model.facts, shape)
    return PriceBook(inputs.model.facts, prices.prices.settings, prices)


def _placed(
    inputs: Inputs, ask: ServeAsk, shape: ServeShape, fellows: Sequence[FellowCards]
) -> tuple[Split, str] | None:
    """(the split, why it is this one); None when nothing fits."""
    book = _book(inputs, shape)
    if ask.maximize is None and ask.stages is None and ask.cut is not None:
        trained = _as_trained(book, ask.cut, fellows)
        if trained is not None:
            return trained, "the cut that the model was trained with"
    if ask.maximize == "speed":
        fastest = _fastest(inputs, ask, book, fellows)
        if fastest is not None:
            return fastest
    if ask.maximize == "context" and ask.stages is None:
        sizes: Iterable[int] = range(len(fellows), 0, -1)
        why = "the most room for the context"
    elif ask.stages is not None:
        sizes, why = [ask.stages], f"{count_of(ask.stages, 'stage')}, as you asked"
    else:
        sizes, why = range(1, len(fellows) + 1), "the fewest fellows that hold it"
    for size in sizes:
        made = _in_some_order(book, fellows[:size])
        if made is not None:
            return made, why
    return None


def _in_some_order(book: PriceBook, fellows: Sequence[FellowCards]) -> Split | None:
    stable = sorted(fellows, key=lambda one: one.fellow_id)
    for order in (stable, list(fellows), list(fellows)[::-1]):
        made = split(order, book, Pins())
        if made.fits:
            return made
    return None


def _as_trained(book: PriceBook, cut: Cut, fellows: Sequence[FellowCards]) -> Split | None:
    known = {one.fellow_id: one for one in fellows}
    if any(name not in known for name in cut.fellows):
        return None
    if sum(cut.counts) != book.facts.num_layers:
        return None
    made = split_at([known[name] for name in cut.fellows], book, cut.counts)
    return made if made.fits else None


def _fastest(
    inputs: Inputs, ask: ServeAsk, book: PriceBook, fellows: Sequence[FellowCards]
) -> tuple[Split, str] | None:
    """The fewest seconds a token by card speed: a token runs through all stages in turn."""
    best: tuple[float, Split] | None = None
    sizes = [ask.stages] if ask.stages is not None else range(1, len(fellows) + 1)
    settings = book.settings.model_copy(update={"seq_len": 1, "batch_size": 1})
    for size in sizes:
        chosen = sorted(fellows, key=_slowness)[:size]
        cards = [card for one in chosen for card in one.cards]
        pace = pace_of(book.facts, settings, cards)
        if pace is None:
            continue
        disk = Disk(book.facts, inputs.model.source, inputs.model.files)
        course = Course(book, size, Pins(), disk, pace)
        ranked = best_order(course, chosen, Tries(tries_for(size)))
        # The same speed over more fellows is no gain: the fewest of equals.
        if ranked is not None and (best is None or ranked.tried.seconds < best[0] * (1 - SAME)):
            best = ranked.tried.seconds, ranked.tried.split
    return None if best is None else (best[1], "the placement that card speed favours")


def _slowness(fellow: FellowCards) -> tuple[float, str]:
    speeds = [s.tflops for card in fellow.cards for s in card.report.speeds]
    return (-max(speeds, default=0.0), fellow.fellow_id)


def _longest_shape(
    inputs: Inputs, ask: ServeAsk, shape: ServeShape, fellows: Sequence[FellowCards]
) -> ServeShape:
    limit = min(LONGEST_CONTEXT, inputs.model.facts.max_positions or LONGEST_CONTEXT)

    def holds(context: int) -> bool:
        tried = replace(shape, context_tokens=context)
        return _placed(inputs, ask, tried, fellows) is not None

    found = most(holds, 16, limit)
    return shape if found is None else replace(shape, context_tokens=found)


def _view(inputs: Inputs, served: _Served) -> ServePlanView:
    made, shape = served.split, served.shape
    stages = [] if made is None else [_stage(inputs, shape, one) for one in made.stages]
    fits = not served.reason
    limit = "" if made is None else _limit(made, stages, shape)
    view = ServePlanView(
        summary=_words(inputs, served, stages, limit),
        plan_id=None,
        fits=fits,
        reason=served.reason,
        model=inputs.model.source,
        model_id=inputs.model.source.model_id,
        dtype=shape.dtype,
        quantization=shape.quantization,
        context_tokens=shape.context_tokens,
        kv_storage=served.ask.storage,
        stages=stages,
        limit=limit,
        cut=served.why,
        cards=_rows(served),
        what_if=inputs.terms.what_if,
        notes=[*_NOTES, *([WHAT_IF_NOTE] if inputs.terms.what_if else [])],
    )
    named = view.fits and not view.what_if
    return view.model_copy(update={"plan_id": _name(view) if named else None})


def _stage(inputs: Inputs, shape: ServeShape, stage: Sequence[PlacedCard]) -> ServedStage:
    first = stage[0]
    return ServedStage(
        stage=first.place.stage,
        fellow_id=first.card.fellow.fellow_id,
        hostname=first.card.fellow.hostname,
        first_layer=first.place.first_layer,
        last_layer=stage[-1].place.last_layer,
        cards=[one.card.id for one in stage],
        planned_bytes=sum(one.price.total for one in stage),
        free_bytes=sum(one.card.free_bytes for one in stage),
        token_budget=_budget(inputs, shape, stage),
    )


def _budget(inputs: Inputs, shape: ServeShape, stage: Sequence[PlacedCard]) -> int:
    limit = min(LONGEST_CONTEXT, inputs.model.facts.max_positions or LONGEST_CONTEXT)

    def holds(context: int) -> bool:
        book = _book(inputs, replace(shape, context_tokens=context))
        return all(book.total(c.place, c.card.device) <= c.card.free_bytes for c in stage)

    return most(holds, 1, limit) or 0


def _limit(made: Split, stages: Sequence[ServedStage], shape: ServeShape) -> str:
    least = min(stages, key=lambda one: one.token_budget)
    fullest = max(
        made.stages[least.stage], key=lambda one: one.price.total / max(1, one.card.free_bytes)
    )
    return (
        f"Context {shape.context_tokens:,} tokens; the cards hold {least.token_budget:,}, "
        f"limited by {fullest.card.title}"
    )


def _words(inputs: Inputs, served: _Served, stages: Sequence[ServedStage], limit: str) -> str:
    if served.reason:
        return f"This model would not load: {served.reason}."
    where = "; ".join(f"{s.hostname} layers {s.first_layer}-{s.last_layer}" for s in stages)
    stored = "" if served.shape.quantization == "none" else f" ({served.shape.quantization})"
    name = inputs.model.source.model_id
    return f"{name} in {served.shape.dtype}{stored}: {where}. {served.why}. {limit}."


def _rows(served: _Served) -> list[PlannedCard]:
    placed = {one.card.id: one for one in served.split.cards} if served.split else {}
    return [
        planned_card(card, placed.get(card.id), card.reason or _spare(served))
        for card in served.cards
    ]


def _spare(served: _Served) -> str:
    if not served.split:
        return f"not enough fellows even with it: {served.ask.stages or 1} needed"
    stages = served.ask.stages
    if served.reason and stages is not None:
        return f"not one of the {count_of(stages, 'stage')} that you asked for"
    return "not needed: the plan fits without it"


def _name(view: ServePlanView) -> str:
    told = view.model_dump(mode="json", include={"model", "dtype", "quantization", "stages"})
    told |= {"context": view.context_tokens, "storage": view.kv_storage}
    told["cards"] = [[one.card, one.uuid, one.used, one.total_bytes] for one in view.cards]
    for stage in told["stages"]:
        del stage["free_bytes"], stage["token_budget"]
    text = json.dumps(told, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
