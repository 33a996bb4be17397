"""The plan in words and figures: bars, the line that limits it, the paragraph to show.

Pure. Every figure here is the planner's own; nothing is priced again.
"""

from collections.abc import Sequence

from control.planning.course import Tried
from control.planning.split import FellowCards, PlacedCard, Split
from control.planning.usable import Card
from transport.api.plans import Kind, PlannedCard, Segment
from transport.orders import TrainSettings
from transport.units import count_of, human_bytes, human_seconds

_PLANNED: tuple[Kind, ...] = (
    "weights",
    "embeddings",
    "kv_cache",
    "activations",
    "gradients",
    "optimizer",
    "lora",
    "workspace",
)
WHAT_IF_NOTE = "a what-if on an inventory: nothing can be started from it, so it has no plan_id"


def left_out_line(cards: Sequence[Card]) -> str:
    """Why cards are left out, in brackets: " (cards left out: 2 x fellow training)"."""
    reasons: dict[str, int] = {}
    for card in cards:
        if card.reason:
            reasons[card.reason] = reasons.get(card.reason, 0) + 1
    told = ", ".join(f"{count} x {reason}" for reason, count in sorted(reasons.items())[:4])
    if not cards:
        return " (there is no card yet)"
    return f" (cards left out: {told})" if told else ""


def segments(card: Card, placed: PlacedCard | None) -> list[Segment]:
    """The card's bar: all but "overflow" adds up to its total; overflow runs past the end."""
    total = card.report.total_bytes
    if card.report.free_bytes is None:
        return []
    free = card.free_bytes
    sizes: dict[Kind, int] = {"other": total - free}
    if placed is not None:
        sizes |= {kind: int(getattr(placed.price, kind, 0)) for kind in _PLANNED}
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


def limit_line(split: Split, settings: TrainSettings, longest: int | None) -> str:
    """The line that limits the plan.

    Args:
        longest: tokens a sequence that the cards hold with this placement; None when unknown.
    """
    fullest = split.fullest
    need, free = fullest.price.total, fullest.card.free_bytes
    share = f"{100 * need / max(1, free):.0f} %"
    batch = f"{settings.batch_size} x {settings.seq_len:,} tokens a step"
    holds = f"; the cards hold {longest:,} tokens a sequence as placed" if longest else ""
    past = "past" if fullest.missing_bytes else "of"
    return (
        f"{batch}{holds}, limited by {fullest.card.title}: it would hold {human_bytes(need)} "
        f"{past} {human_bytes(free)} free ({share})"
    )


def took_line(step_s: float | None, network: str) -> str:
    """How long a step takes, and whether the network counts."""
    if step_s is None:
        return "The step's length is unknown until every card is measured."
    counted = "the network counted" if network else "the network left out"
    return f"A step is predicted at {human_seconds(step_s)}, {counted}."


def idle_share(num_stages: int, micro_batches: int) -> float:
    """Of each step a fellow sits idle: (N - 1) / (M + N - 1)."""
    return (num_stages - 1) / (micro_batches + num_stages - 1)


def moved_line(tried: Tried | None, number_format: str, kind: str) -> str:
    """Why the layers lie as they do, where speed moved them; "" where it did not."""
    if tried is None or tried.split.counts == tried.by_memory.counts:
        return ""
    now, before = (" + ".join(map(str, one.counts)) for one in (tried.split, tried.by_memory))
    shorter = 100 * (1 - tried.seconds / tried.memory_seconds)
    share = f"{shorter:.0f} %" if shorter >= 1 else "less than 1 %"
    return (
        f"{now} by {kind} {number_format} speed within each card's memory ({before} by free "
        f"memory), a step predicted {share} shorter"
    )


def paragraph(split: Split, settings: TrainSettings, took: str, limit: str) -> str:
    """What an agent shows: where it goes, how, how long, and what is in the way."""
    where = "; ".join(
        f"{stage[0].card.fellow.hostname} layers "
        f"{stage[0].place.first_layer}-{stage[-1].place.last_layer}"
        for stage in split.stages
    )
    method = f"LoRA rank {settings.lora.rank}" if settings.lora else "full fine-tune"
    if settings.method == "boundary":
        method = f"bottleneck of {settings.compression.dim} values alone"
    lost = idle_share(len(split.stages), settings.micro_batches)
    bits = {"nf4": ", weights in 4 bits", "int8": ", weights in 8 bits"}
    stored = bits.get(settings.quantization, "")
    fellows = count_of(len(split.stages), "fellow")
    parts = count_of(settings.micro_batches, "micro-batch", "micro-batches")
    return (
        f"{method} in {settings.dtype}{stored} over {fellows}: {where}. "
        f"{count_of(settings.steps, 'step')} of {count_of(settings.batch_size, 'sequence')} in "
        f"{parts}; each fellow idles {100 * lost:.0f} % of a step. {took} Limit: {limit}."
    )


def needs_line(split: Split, fellows: Sequence[FellowCards], what: str = "the run") -> str:
    """What is missing, with the numbers."""
    need = sum(card.price.total for card in split.cards)
    free = sum(fellow.free_bytes for fellow in fellows)
    fullest = split.fullest
    return (
        f"{what} needs {human_bytes(need)} on {count_of(len(split.cards), 'card')} with "
        f"{human_bytes(free)} free, and {fullest.card.title} would hold "
        f"{human_bytes(fullest.price.total)} of {human_bytes(fullest.card.free_bytes)}"
    )
