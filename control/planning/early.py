"""Room that a plan leaves, used to compute blocks again before their gradient has come.

Pure. The split stays as it was found; what may be rebuilt early is bounded by what every card has
free beyond a margin. Does not know how a stage finds the time for it (stage_runtime.recompute).
"""

from collections.abc import Sequence
from dataclasses import replace

from control.planning.search import Ask, Found
from control.planning.split import FellowCards, Split, split_at

TRIED = (64, 16, 4, 2)
"""Blocks of a stage, the most first; a stage has no more than its layers."""
MARGIN_SHARE, MARGIN_BYTES = 0.1, 1_000_000_000
"""Kept free on every card: the smaller of a tenth of its room and a gigabyte."""


def with_early_recompute(ask: Ask, fellows: Sequence[FellowCards], found: Found) -> Found:
    """The same split with as many early blocks as fit; as it was when none does."""
    settings = found.settings
    if not settings.recompute or len(found.split.stages) < 2 or settings.backend != "swarm":
        return found
    by_id = {one.fellow_id: one for one in fellows}
    order = [by_id[stage[0].card.fellow.fellow_id] for stage in found.split.stages]
    most = max(found.split.counts)
    for blocks in dict.fromkeys(min(most, blocks) for blocks in TRIED):
        more = settings.model_copy(update={"early_recompute": blocks})
        split = split_at(order, ask.book(more), found.split.counts)
        if blocks > 1 and _is_roomy(split):
            return replace(found, split=split, settings=more)
    return found


def _is_roomy(split: Split) -> bool:
    """Whether every card keeps its margin."""
    return split.fits and all(
        one.card.free_bytes - one.price.total
        >= min(MARGIN_BYTES, int(MARGIN_SHARE * one.card.free_bytes))
        for one in split.cards
    )
