"""The peak envelope of what stands above the cards: a fellow, a pool.

A parent's utilisation peak is the highest of its children's; memory peaks add up, since what each
child held at its own peak could have been held at once.
"""

from collections.abc import Iterable

from transport.cards import CardLoad


def busy_peak(loads: Iterable[CardLoad]) -> float | None:
    """0 to 1; None when nobody told."""
    return max((one.busy.most for one in loads if one.busy is not None), default=None)


def memory_peak(loads: Iterable[CardLoad]) -> int | None:
    """Bytes; None when nobody told."""
    told = [one.memory_bytes.most for one in loads if one.memory_bytes is not None]
    return round(sum(told)) if told else None
