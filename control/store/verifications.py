"""Queries on verifications: split runs that are held against one process."""

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from control.store.database import Tx
from transport.orders import ReferenceOrder

VerifyState = Literal["probing", "waiting", "comparing", "done", "failed"]


@dataclass(frozen=True)
class Verification:
    """What was asked for, how far it is, and what the one process found."""

    job_id: str
    verify_id: str
    probe_job_id: str
    state: VerifyState
    reason: str
    asked_at: float
    differs: list[str] = field(default_factory=list)
    """What the probe does otherwise than the job."""
    fellow_id: str | None = None
    ended_at: float | None = None
    error: str | None = None
    """As the fellow told it, cleaned."""
    work: ReferenceOrder | None = None
    told: dict[str, Any] = field(default_factory=dict)
    """losses, held_out, seconds and peak_bytes of the one process."""


def put(tx: Tx, one: Verification) -> None:
    """Store a verification in place of an earlier one of its job."""
    tx.execute(
        "INSERT OR REPLACE INTO verifications (job_id, verify_id, probe_job_id, state, reason,"
        " error, differs, fellow_id, work, told, asked_at, ended_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            one.job_id,
            one.verify_id,
            one.probe_job_id,
            one.state,
            one.reason,
            one.error,
            _to_column(one.differs),
            one.fellow_id,
            _to_column(one.work),
            _to_column(one.told),
            one.asked_at,
            one.ended_at,
        ),
    )


def update(tx: Tx, verify_id: str, **changes: Any) -> None:
    """Set columns of a verification, named as in Verification."""
    values = [_to_column(value) for value in changes.values()]
    sets = ", ".join(f"{name} = ?" for name in changes)
    tx.execute(
        f"UPDATE verifications SET {sets} WHERE verify_id = ?",  # noqa: S608 - names are ours
        (*values, verify_id),
    )


def of_job(tx: Tx, job_id: str) -> Verification | None:
    """The newest verification of a job."""
    return _one(tx.execute("SELECT * FROM verifications WHERE job_id = ?", (job_id,)).fetchone())


def find(tx: Tx, verify_id: str) -> Verification | None:
    """A verification by its own id."""
    return _one(
        tx.execute("SELECT * FROM verifications WHERE verify_id = ?", (verify_id,)).fetchone()
    )


def unfinished(tx: Tx) -> list[Verification]:
    """Verifications without a verdict yet, the oldest first."""
    rows = tx.execute(
        "SELECT * FROM verifications WHERE state NOT IN ('done', 'failed') ORDER BY asked_at"
    )
    return [one for row in rows if (one := _one(row)) is not None]


def _to_column(value: Any) -> Any:
    if isinstance(value, ReferenceOrder):
        return value.model_dump_json()
    return json.dumps(value) if isinstance(value, dict | list) else value


def _one(row: Any) -> Verification | None:
    if row is None:
        return None
    work = ReferenceOrder.model_validate_json(row["work"]) if row["work"] else None
    told = {name: json.loads(row[name]) for name in ("told", "differs")}
    return Verification(**{**dict(row), **told, "work": work})
