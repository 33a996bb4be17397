"""Queries on exports: whole checkpoints that fellows make of jobs' results."""

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from control.store.database import Tx
from transport.api.exports import ExportDtype

ExportState = Literal["waiting", "running", "done", "failed"]


@dataclass(frozen=True)
class Export:
    """What was asked for, who makes it and how far it is."""

    job_id: str
    export_id: str
    dtype: ExportDtype | None
    state: ExportState
    reason: str
    fellow_id: str | None
    asked_at: float
    ended_at: float | None = None
    error: str | None = None
    """As the fellow told it, cleaned."""
    base_license: str | None = None
    files: dict[str, dict[str, Any]] = field(default_factory=dict)


def put(tx: Tx, export: Export) -> None:
    """Store an export in place of an earlier one of its job."""
    tx.execute(
        "INSERT OR REPLACE INTO exports (job_id, export_id, dtype, state, reason, error, fellow_id,"
        " asked_at, ended_at, base_license, files) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            export.job_id,
            export.export_id,
            export.dtype,
            export.state,
            export.reason,
            export.error,
            export.fellow_id,
            export.asked_at,
            export.ended_at,
            export.base_license,
            json.dumps(export.files),
        ),
    )


def update(tx: Tx, export_id: str, **changes: Any) -> None:
    """Set columns of an export, named as in Export."""
    values = [json.dumps(v) if isinstance(v, dict) else v for v in changes.values()]
    sets = ", ".join(f"{name} = ?" for name in changes)
    tx.execute(
        f"UPDATE exports SET {sets} WHERE export_id = ?",  # noqa: S608 - names are ours
        (*values, export_id),
    )


def of_job(tx: Tx, job_id: str) -> Export | None:
    """The export of a job."""
    return _one(tx.execute("SELECT * FROM exports WHERE job_id = ?", (job_id,)).fetchone())


def find(tx: Tx, export_id: str) -> Export | None:
    """An export by its own id."""
    return _one(tx.execute("SELECT * FROM exports WHERE export_id = ?", (export_id,)).fetchone())


def unfinished(tx: Tx) -> list[Export]:
    """Exports that wait or run, the oldest first."""
    rows = tx.execute(
        "SELECT * FROM exports WHERE state IN ('waiting', 'running') ORDER BY asked_at"
    )
    return [one for row in rows if (one := _one(row)) is not None]


def _one(row: Any) -> Export | None:
    return None if row is None else Export(**{**dict(row), "files": json.loads(row["files"])})
