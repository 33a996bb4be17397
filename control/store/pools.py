"""Queries on pools."""

from dataclasses import dataclass

from control.store.database import Tx
from transport.errors import SwarmError


@dataclass(frozen=True)
class Pool:
    """A named set of fellows."""

    pool: str
    made_by: str
    created_at: float


def add(tx: Tx, pool: Pool) -> None:
    """Insert a pool.

    Raises:
        SwarmError: conflict when the name is taken.
    """
    if find(tx, pool.pool) is not None:
        raise SwarmError(
            "conflict",
            f"there is already a pool {pool.pool!r}",
            hint="choose another name, or use the pool that is there",
        )
    tx.execute("INSERT INTO pools VALUES (?, ?, ?)", (pool.pool, pool.made_by, pool.created_at))


def find(tx: Tx, pool: str) -> Pool | None:
    """A pool by name."""
    row = tx.execute("SELECT * FROM pools WHERE pool = ?", (pool,)).fetchone()
    return Pool(**row) if row else None


def every(tx: Tx) -> list[Pool]:
    """All pools, by name."""
    return [Pool(**row) for row in tx.execute("SELECT * FROM pools ORDER BY pool")]


def count_jobs(tx: Tx, pool: str) -> int:
    """Jobs ever submitted to a pool."""
    row = tx.execute("SELECT count(*) FROM jobs WHERE pool = ?", (pool,)).fetchone()
    return int(row[0])
