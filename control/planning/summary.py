"""The plan in words and figures: bars, the line that limits it, the paragraph to show.

Pure. Every figure here is the planner's own; nothing is priced again.
"""

from collections.abc import Sequence

from control.planning.split import FellowCards, PlacedCard, Split
from control.planning.usable import Card
from stage_runtime.costs import CardPlace
from stage_runtime.model_facts import ModelFacts
from transport.api.plans import Kind, PlannedCard, Segment
from transport.orders import TrainSettings
from transport.units import human_bytes, human_seconds

_PLANNED: tuple[Kind, ...] = (
    "weights",
    "embeddings",
    "activations",
    "gradients",
    "optimizer",
    "lora",
    "workspace",
)


def segments(card: Card, placed: PlacedCard | None) -> list[Segment]:
    """The card's bar: all but "overflow" adds up to its total; overflow runs past the end."""
    total = card.report.total_bytes
    if card.report.free_bytes is None:
        return []
    free = card.free_bytes
    sizes: dict[Kind, int] = {"other": total - free}
    if placed is not None:
        sizes |= {kind: int(getattr(placed.price, kind)) for kind in _PLANNED}
        overflow = placed.missing_bytes
        free = max(0, free - placed.price.total)
        _cut(sizes, overflow)
        sizes |= {"free": free, "overflow": overflow}
    else:
        sizes["free"] = free
    return [Segment(kind=kind, bytes=size) for kind, size in sizes.items() if size]


def _cut(sizes: dict[Kind, int], overflow: int) -> None:
    """Take what runs past the card's end from its last segments."""
    for kind in reversed(_PLANNED):
        taken = min(overflow, sizes[kind])
        sizes[kind] -= taken
        overflow -= taken


def planned_card(card: Card, placed: PlacedCard | None, reason: str) -> PlannedCard:
    """One row of the plan's table of cards."""
    place = placed.place if placed else None
    report = card.report
    return PlannedCard(
        card=card.id,
        fellow_id=card.fellow.fellow_id,
        hostname=card.fellow.hostname,
        name=report.name,
        uuid=report.uuid,
        used=placed is not None,
        reason="" if placed else reason,
        stage=place.stage if place else None,
        first_layer=place.first_layer if place else None,
        last_layer=place.last_layer if place else None,
        total_bytes=report.total_bytes,
        free_bytes=None if report.free_bytes is None else card.free_bytes,
        planned_bytes=placed.price.total if placed else None,
        segments=segments(card, placed),
    )


def limit_line(split: Split, settings: TrainSettings) -> str:
    """The line that limits the plan."""
    fullest = split.fullest
    need, free = fullest.price.total, fullest.card.free_bytes
    share = f"{100 * need / max(1, free):.0f} %"
    batch = f"{settings.batch_size} x {settings.seq_len} tokens a step"
    past = "past" if fullest.missing_bytes else "of"
    return (
        f"{batch}, limited by {fullest.card.title}: it would hold {human_bytes(need)} "
        f"{past} {human_bytes(free)} free ({share})"
    )


def idle_share(num_stages: int, micro_batches: int) -> float:
    """Of each step a fellow sits idle: (N - 1) / (M + N - 1)."""
    return (num_stages - 1) / (micro_batches + num_stages - 1)


def predicted_step_s(split: Split, facts: ModelFacts, settings: TrainSettings) -> float | None:
    """Seconds of a step by measured card speed; None while a card has no figure.

    Multiplications and additions of forward and backward: 4 a parameter and token with a frozen
    base, 6 in a full fine-tune, 2 more with recompute. One micro-batch runs through all stages in
    turn; each further one adds the slowest stage once more. The network is left out.
    """
    number_format = _speed_format(split.cards, settings)
    if number_format is None:
        return None
    work = (4 if settings.method == "lora" else 6) + (2 if settings.recompute else 0)
    tokens = settings.batch_size // settings.micro_batches * settings.seq_len
    stages = [
        sum(
            work * tokens * _params(facts, card.place) / (1e12 * _tflops(card.card, number_format))
            for card in stage
        )
        for stage in split.stages
    ]
    return sum(stages) + (settings.micro_batches - 1) * max(stages)


def _speed_format(cards: Sequence[PlacedCard], settings: TrainSettings) -> str | None:
    """The run's own format when every card has a figure in it, else float32, else None."""
    for name in (settings.dtype, "float32"):
        if all(_tflops(card.card, name) > 0 for card in cards):
            return name
    return None


def _tflops(card: Card, number_format: str) -> float:
    found = [s.tflops for s in card.report.speeds if s.number_format == number_format]
    return found[-1] if found else 0.0


def _params(facts: ModelFacts, place: CardPlace) -> int:
    layers = facts.layer_params[place.first_layer : place.last_layer + 1]
    return sum(layers) + (facts.head_params if place.heads else 0)


def unmeasured(split: Split) -> list[str]:
    """Cards that have no measured speed at all."""
    return [card.card.title for card in split.cards if not card.card.report.speeds]


def paragraph(split: Split, settings: TrainSettings, step_s: float | None, limit: str) -> str:
    """What an agent shows: where it goes, how, how long, and what is in the way."""
    where = "; ".join(
        f"{stage[0].card.fellow.hostname} layers "
        f"{stage[0].place.first_layer}-{stage[-1].place.last_layer}"
        for stage in split.stages
    )
    method = f"LoRA rank {settings.lora.rank}" if settings.lora else "full fine-tune"
    lost = idle_share(len(split.stages), settings.micro_batches)
    took = (
        f"A step is predicted at {human_seconds(step_s)}, the network left out."
        if step_s is not None
        else "The step's length is unknown until every card is measured."
    )
    return (
        f"{method} in {settings.dtype} over {len(split.stages)} fellow(s): {where}. "
        f"{settings.steps} steps of {settings.batch_size} sequences in {settings.micro_batches} "
        f"micro-batch(es); each fellow idles {100 * lost:.0f} % of a step. {took} Limit: {limit}."
    )


def needs_line(split: Split, fellows: Sequence[FellowCards]) -> str:
    """What is missing, with the numbers."""
    need = sum(card.price.total for card in split.cards)
    free = sum(fellow.free_bytes for fellow in fellows)
    fullest = split.fullest
    return (
        f"the run needs {human_bytes(need)} on {len(split.cards)} card(s) that have "
        f"{human_bytes(free)} free, and {fullest.card.title} would hold "
        f"{human_bytes(fullest.price.total)} of {human_bytes(fullest.card.free_bytes)}"
    )
