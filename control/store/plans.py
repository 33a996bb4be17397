"""Queries on stored plans."""

from dataclasses import astuple, dataclass

from control.store.database import Tx


@dataclass(frozen=True)
class StoredPlan:
    """A plan of a pool, kept under its id."""

    plan_id: str
    pool: str
    plan: str
    """JSON, as the planner wrote it."""
    created_at: float
    expires_at: float


def put(tx: Tx, plan: StoredPlan) -> None:
    """Keep a plan; the same plan again lives longer."""
    tx.execute(
        "INSERT INTO plans VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
        " plan = excluded.plan, expires_at = max(expires_at, excluded.expires_at)",
        astuple(plan),
    )


def find(tx: Tx, pool: str, plan_id: str) -> StoredPlan | None:
    """A plan of a pool."""
    row = tx.execute(
        "SELECT * FROM plans WHERE plan_id = ? AND pool = ?", (plan_id, pool)
    ).fetchone()
    return StoredPlan(**row) if row else None


def drop_expired(tx: Tx, before: float) -> int:
    """Delete plans that expired and that no unfinished job pins. How many."""
    done = tx.execute(
        "DELETE FROM plans WHERE expires_at < ? AND NOT EXISTS (SELECT 1 FROM jobs"
        " WHERE jobs.plan_id = plans.plan_id AND jobs.pool = plans.pool AND jobs.pinned = 1"
        " AND jobs.state IN ('pending', 'starting', 'running', 'recovering'))",
        (before,),
    )
    return done.rowcount
