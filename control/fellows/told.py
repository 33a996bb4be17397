"""What a fellow tells that is new: figures of its cards, and what may let a waiting job start."""

from collections.abc import Iterable

from transport.cards import Heartbeat, Speed


def matters(before: Heartbeat, now: Heartbeat) -> bool:
    """Whether a heartbeat says something by which a waiting job might start."""
    return (
        [(c.uuid, c.free_bytes) for c in before.cards]
        != [(c.uuid, c.free_bytes) for c in now.cards]
        or [(s.job_id, s.phase) for s in before.stages] != [(s.job_id, s.phase) for s in now.stages]
        or before.measuring != now.measuring
    )


def latest(known: Iterable[Speed], told: Iterable[Speed]) -> list[Speed]:
    """What was told last of each number format: a fellow's clock may have been wrong before."""
    last = {speed.number_format: speed for speed in (*known, *told)}
    return sorted(last.values(), key=lambda speed: speed.number_format)
