"""The smoothed loss: an exponential mean with weight 0.8, free of the pull toward its start."""

from collections.abc import Iterable

WEIGHT = 0.8
REACH = 200  # losses before these weigh less than 1e-19: a mean may start there


def extend(mean: float, loss: float) -> float:
    """The biased mean after one more loss (it starts at 0)."""
    return WEIGHT * mean + (1 - WEIGHT) * loss


def debias(mean: float, count: int) -> float | None:
    """The mean to show after `count` losses; None before the first."""
    return mean / (1 - WEIGHT**count) if count else None


def smooth(losses: Iterable[float]) -> list[float]:
    """The smoothed value at every step."""
    mean, told = 0.0, []
    for count, loss in enumerate(losses, start=1):
        mean = extend(mean, loss)
        told.append(mean / (1 - WEIGHT**count))
    return told
