"""Queries on the stages of jobs: who runs which layers of which attempt, and how far it is."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from control.store.database import Tx
from transport.orders import StageOrder


@dataclass(frozen=True)
class Stage:
    """One stage of one attempt."""

    job_id: str
    attempt: int
    stage: int
    fellow_id: str
    hostname: str
    work: StageOrder
    phase: str = "starting"
    public_key: str | None = None
    endpoints: tuple[str, ...] = ()
    step: int | None = None
    loss: float | None = None
    weight_bytes: int | None = None
    adapter_sha256: str | None = None
    sent_bytes: int | None = None
    received_bytes: int | None = None


@dataclass(frozen=True)
class Peak:
    """Measured and planned tensor bytes of a card of a stage."""

    stage: int
    card_index: int
    peak_bytes: int
    planned_bytes: int
    how: str


def add(tx: Tx, stage: Stage) -> None:
    """Insert a stage that is about to start."""
    tx.execute(
        "INSERT INTO stages (job_id, attempt, stage, fellow_id, hostname, work)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (
            stage.job_id,
            stage.attempt,
            stage.stage,
            stage.fellow_id,
            stage.hostname,
            stage.work.model_dump_json(),
        ),
    )


def update(tx: Tx, stage: Stage, **changes: Any) -> None:
    """Set columns of a stage, named as in Stage."""
    values = [json.dumps(v) if isinstance(v, tuple | list) else v for v in changes.values()]
    sets = ", ".join(f"{name} = ?" for name in changes)
    tx.execute(
        f"UPDATE stages SET {sets} WHERE job_id = ? AND attempt = ? AND stage = ?",  # noqa: S608 - names are ours
        (*values, stage.job_id, stage.attempt, stage.stage),
    )


def of_job(tx: Tx, job_id: str, attempt: int) -> list[Stage]:
    """The stages of an attempt, in order."""
    rows = tx.execute(
        "SELECT * FROM stages WHERE job_id = ? AND attempt = ? ORDER BY stage", (job_id, attempt)
    )
    return [_stage(dict(row)) for row in rows]


def find(tx: Tx, job_id: str, attempt: int, stage: int) -> Stage | None:
    """One stage of an attempt."""
    row = tx.execute(
        "SELECT * FROM stages WHERE job_id = ? AND attempt = ? AND stage = ?",
        (job_id, attempt, stage),
    ).fetchone()
    return _stage(dict(row)) if row else None


def busy(tx: Tx, fellow_ids: Iterable[str]) -> dict[str, str]:
    """Which of these fellows hold a stage of an unfinished job: fellow_id -> job_id."""
    wanted = set(fellow_ids)
    rows = tx.execute(
        "SELECT stages.fellow_id, stages.job_id FROM jobs JOIN stages"
        " ON stages.job_id = jobs.job_id AND stages.attempt = jobs.attempt"
        " WHERE jobs.state IN ('starting', 'running', 'recovering')"
    )
    return {row["fellow_id"]: row["job_id"] for row in rows if row["fellow_id"] in wanted}


def put_peak(tx: Tx, stage: Stage, peak: Peak) -> None:
    """Store the peak of a card; a later report of the same card replaces a lower one."""
    tx.execute(
        "INSERT INTO peaks VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
        " peak_bytes = max(peak_bytes, excluded.peak_bytes),"
        " planned_bytes = excluded.planned_bytes, how = excluded.how",
        (
            stage.job_id,
            stage.attempt,
            peak.stage,
            peak.card_index,
            peak.peak_bytes,
            peak.planned_bytes,
            peak.how,
        ),
    )


def peaks(tx: Tx, job_id: str, attempt: int) -> list[Peak]:
    """The measured peaks of an attempt, by stage and card."""
    rows = tx.execute(
        "SELECT stage, card_index, peak_bytes, planned_bytes, how FROM peaks"
        " WHERE job_id = ? AND attempt = ? ORDER BY stage, card_index",
        (job_id, attempt),
    )
    return [Peak(**row) for row in rows]


@lru_cache(maxsize=256)
def _order(text: str) -> StageOrder:
    """Frozen, and the same for the same text: read once."""
    return StageOrder.model_validate_json(text)


def _stage(row: dict[str, Any]) -> Stage:
    return Stage(
        **{
            **row,
            "work": _order(row["work"]),
            "endpoints": tuple(json.loads(row["endpoints"] or "[]")),
        }
    )
