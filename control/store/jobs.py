"""Queries on jobs: what was asked, how far it is, what ended it."""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from control.store.database import Tx
from transport.api.job_config import JobConfig
from transport.api.jobs import JobState


@dataclass(frozen=True)
class Job:
    """One requested training run."""

    number: int
    """The order of submission; 0 before it is inserted."""
    job_id: str
    pool: str
    made_by: str
    name: str
    config: JobConfig
    state: JobState
    reason: str
    plan_id: str | None
    pinned: bool
    plan: str | None
    """JSON of the plan it runs by, or last waited with."""
    model_id: str
    revision: str | None
    attempt: int
    steps: int
    created_at: float
    step: int = 0
    loss: float | None = None
    mean: float = 0.0
    """Exponential mean of the losses, biased toward 0."""
    mean_steps: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    error: str | None = None
    """Untrusted: as the fellow told it."""
    error_is_echo: bool = False
    adapter: Mapping[str, Mapping[str, Any]] | None = None
    """File -> {sha256, size_bytes}, once the stages' files are joined."""
    started_at: float | None = None
    ended_at: float | None = None
    saved_step: int | None = None
    """The newest step that can be gone on from."""
    saved_at: float | None = None
    saving_paused: str = ""
    """Why nothing is saved now."""
    resumes: Sequence[Mapping[str, Any]] = ()
    """What it went on from, oldest first: transport.api.jobs.Resumed."""
    loss_of: Mapping[str, Any] | None = None
    """Set while it looks for a place to go on: control.jobs.recovery.Loss."""
    probe_of: str | None = None
    """The job that it verifies by its first steps; its own result is not kept."""


JSON_COLUMNS = ("counts", "adapter", "resumes", "loss_of")


def add(tx: Tx, job: Job) -> None:
    """Insert a job; it gets the next number."""
    values = {
        "job_id": job.job_id,
        "pool": job.pool,
        "made_by": job.made_by,
        "name": job.name,
        "config": job.config.model_dump_json(),
        "state": job.state,
        "reason": job.reason,
        "plan_id": job.plan_id,
        "pinned": int(job.pinned),
        "plan": job.plan,
        "model_id": job.model_id,
        "revision": job.revision,
        "attempt": job.attempt,
        "steps": job.steps,
        "created_at": job.created_at,
        "started_at": job.started_at,
        "probe_of": job.probe_of,
    }
    marks = ", ".join("?" * len(values))
    tx.execute(f"INSERT INTO jobs ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))  # noqa: S608 - names are ours


def update(tx: Tx, job_id: str, **changes: Any) -> None:
    """Set columns of a job, named as in Job."""
    values = {name: _to_column(value) for name, value in changes.items()}
    sets = ", ".join(f"{name} = ?" for name in values)
    tx.execute(f"UPDATE jobs SET {sets} WHERE job_id = ?", (*values.values(), job_id))  # noqa: S608 - names are ours


def count(tx: Tx, job: Job, **more: int) -> None:
    """Add to a job's named counts."""
    if not any(more.values()):
        return
    fresh = find(tx, job.job_id)
    counts = dict(fresh.counts) if fresh else {}
    for name, amount in more.items():
        if amount:
            counts[name] = counts.get(name, 0) + amount
    update(tx, job.job_id, counts=counts)


def find(tx: Tx, job_id: str) -> Job | None:
    """A job by id."""
    row = tx.execute("SELECT * FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
    return _job(row) if row else None


def in_states(tx: Tx, states: Iterable[JobState]) -> list[Job]:
    """Jobs in these states, in order of submission."""
    marks, values = _marks(states)
    rows = tx.execute(f"SELECT * FROM jobs WHERE state IN ({marks}) ORDER BY number", values)  # noqa: S608 - marks only
    return [_job(row) for row in rows]


@dataclass(frozen=True)
class Page:
    """Which jobs a list shows."""

    pools: tuple[str, ...]
    state: JobState | None
    limit: int
    offset: int


def page(tx: Tx, wanted: Page) -> tuple[list[Job], int]:
    """A page of jobs (running ones first, then waiting, then the newest), and how many match."""
    marks, values = _marks(wanted.pools)
    where = f"pool IN ({marks})" + (" AND state = ?" if wanted.state else "")
    values = (*values, wanted.state) if wanted.state else values
    total = tx.execute(f"SELECT count(*) FROM jobs WHERE {where}", values).fetchone()[0]  # noqa: S608 - marks only
    rows = tx.execute(
        f"SELECT * FROM jobs WHERE {where} ORDER BY CASE WHEN state IN"  # noqa: S608 - marks only
        " ('starting', 'running', 'recovering') THEN 0 WHEN state = 'pending' THEN 1 ELSE 2 END,"
        " number DESC LIMIT ? OFFSET ?",
        (*values, wanted.limit, wanted.offset),
    )
    return [_job(row) for row in rows], int(total)


def with_adapter(tx: Tx, pools: Iterable[str]) -> list[Job]:
    """Jobs of these pools whose adapter can be fetched, the newest first."""
    marks, values = _marks(pools)
    rows = tx.execute(
        f"SELECT * FROM jobs WHERE adapter IS NOT NULL AND pool IN ({marks}) ORDER BY number DESC",  # noqa: S608 - marks only
        values,
    )
    return [_job(row) for row in rows]


def _marks(values: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    told = tuple(values)
    return ", ".join("?" * len(told)), told


def _to_column(value: Any) -> Any:
    if isinstance(value, JobConfig):
        return value.model_dump_json()
    if isinstance(value, Mapping):
        return json.dumps(dict(value.items()))
    if isinstance(value, list | tuple):
        return json.dumps([dict(one.items()) for one in value])
    return int(value) if isinstance(value, bool) else value


@lru_cache(maxsize=128)
def _config(text: str) -> JobConfig:
    """Frozen, and the same for the same text: read once."""
    return JobConfig.model_validate_json(text)


def _job(row: sqlite3.Row) -> Job:
    return _read(tuple(row.keys()), tuple(row))


@lru_cache(maxsize=64)
def _read(names: tuple[str, ...], values: tuple[Any, ...]) -> Job:
    """Frozen, and the same for the same row: a job is looked up more often than it changes."""
    row = dict(zip(names, values, strict=True))
    for name in JSON_COLUMNS:
        row[name] = json.loads(row[name]) if row[name] else None
    return Job(
        **{
            **row,
            "config": _config(row["config"]),
            "pinned": bool(row["pinned"]),
            "error_is_echo": bool(row["error_is_echo"]),
            "counts": row["counts"] or {},
            "resumes": tuple(row["resumes"] or ()),
        }
    )
