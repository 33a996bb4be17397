"""Which rows are held out: the tail, rows drawn by a seed, or whole groups of rows.

Pure functions of the settings and of what the data holds; never all rows, never none.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from transport.api.job_config import HeldOutConfig
from transport.errors import SwarmError
from transport.units import count_of

SHARE = 0.05
MOST = 64
"""Held out at most when neither a share nor a number is set."""
MAX_GROUPS = 1_000_000

Decide = Callable[[int, str], bool]
"""(a row's number from 0, its group) -> whether it is held out."""


def wanted(asked: HeldOutConfig, total: int) -> int:
    """How many of `total` rows or sequences are held out: at least 1 of 2, and never all.

    Raises:
        SwarmError: invalid-input when nothing would be left to train on.
    """
    if asked.rows is not None:
        if asked.rows >= total:
            raise SwarmError(
                "invalid-input",
                f"data.held_out.rows is {asked.rows} and the data has {total}: nothing is left to "
                "train on",
                hint="hold out less, or add data",
            )
        return asked.rows
    if total < 2:
        return 0
    share = SHARE if asked.share is None else asked.share
    found = max(1, math.floor(total * share))
    return min(MOST, found) if asked.share is None else found


@dataclass(frozen=True)
class Rows:
    """What is known of the rows before they are read again."""

    total: int
    groups: Mapping[str, int] | None = None
    """Group -> rows; only when held out by group."""


def is_decided_by_rows(asked: HeldOutConfig) -> bool:
    """Whether rows are put apart when tokens are made; else the tail is cut off afterwards."""
    return asked.by != "tail" or asked.rows is not None


def decide(asked: HeldOutConfig, rows: Rows) -> Decide:
    """Which rows are held out.

    Raises:
        SwarmError: invalid-input when nothing would be held out, or nothing left.
    """
    if asked.by == "group":
        chosen = _groups(asked, rows)
        return lambda _, group: group in chosen
    count = wanted(asked, rows.total)
    if not count:
        raise SwarmError(
            "invalid-input",
            f"{rows.total} row cannot be split by {asked.by}: a held-out part needs at least 2",
            hint="hold out by tail, which cuts inside a document, or add rows",
        )
    if asked.by == "tail":
        return lambda number, _: number >= rows.total - count
    words = np.random.PCG64(np.random.SeedSequence(asked.seed)).random_raw(rows.total)
    drawn = frozenset(np.argsort(words, kind="stable")[:count].tolist())
    return lambda number, _: number in drawn


def _groups(asked: HeldOutConfig, rows: Rows) -> frozenset[str]:
    """Groups in the order of a seeded hash, until enough rows are held out."""
    groups = dict(rows.groups or {})
    if len(groups) < 2:
        raise SwarmError(
            "invalid-input",
            f"column {asked.column!r} has {count_of(len(groups), 'value')}: a group to train on "
            "and one to hold out need at least 2",
            hint="name another column, or hold out by random",
        )
    goal, held = wanted(asked, rows.total), 0
    chosen: list[str] = []
    for group in sorted(groups, key=lambda one: _hash(asked.seed, one)):
        if held >= goal or len(chosen) == len(groups) - 1:
            break
        if held + groups[group] <= 2 * goal:  # else it would overshoot by far
            chosen.append(group)
            held += groups[group]
    return frozenset(chosen or [min(groups, key=lambda one: (groups[one], one))])


def _hash(seed: int, group: str) -> bytes:
    return hashlib.sha256(f"{seed}:{group}".encode("utf-8", "surrogatepass")).digest()


def counted(groups: Iterable[str]) -> Rows:
    """How many rows each group has.

    Raises:
        SwarmError: invalid-input for more groups than are kept in memory.
    """
    counts: dict[str, int] = {}
    total = 0
    for group in groups:
        counts[group] = counts.get(group, 0) + 1
        total += 1
        if len(counts) > MAX_GROUPS:
            raise SwarmError(
                "invalid-input",
                f"the column to hold out by has more than {MAX_GROUPS} values",
                hint="name a column with fewer, or hold out by random",
            )
    return Rows(total, counts)
