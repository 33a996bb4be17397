"""Queries on what runs measured: steps and evaluations."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from control.store.database import Tx
from transport.api.jobs import Evaluation
from transport.reports import Evaluated, StepDone

STEP_COLUMNS = (
    "job_id",
    "stage",
    "step",
    "attempt",
    "loss",
    "grad_norm",
    "learning_rate",
    "supervised_tokens",
    "step_s",
    "compute_s",
    "wait_s",
    "skipped",
)


@dataclass(frozen=True)
class Span:
    """Which steps of which stage of a job."""

    job_id: str
    stage: int
    from_step: int
    limit: int


def put_step(tx: Tx, done: StepDone) -> bool:
    """Store a step; one that is known is replaced by a later attempt only. Whether it was new."""
    before = tx.total_changes
    values = [int(v) if isinstance(v := getattr(done, c), bool) else v for c in STEP_COLUMNS]
    sets = ", ".join(f"{name} = excluded.{name}" for name in STEP_COLUMNS[3:])
    marks = ", ".join("?" * len(values))
    tx.execute(
        f"INSERT INTO steps VALUES ({marks}) ON CONFLICT DO UPDATE SET {sets}"  # noqa: S608 - names are ours
        " WHERE excluded.attempt > steps.attempt",
        values,
    )
    return tx.total_changes > before


def steps(tx: Tx, span: Span) -> list[dict[str, Any]]:
    """Steps of a stage from a step on, in order, as plain rows."""
    rows = tx.execute(
        "SELECT * FROM steps WHERE job_id = ? AND stage = ? AND step >= ? ORDER BY step LIMIT ?",
        (span.job_id, span.stage, span.from_step, span.limit),
    )
    return [dict(row) for row in rows]


def count_steps(tx: Tx, span: Span) -> int:
    """How many steps a stage has from a step on."""
    row = tx.execute(
        "SELECT count(*) FROM steps WHERE job_id = ? AND stage = ? AND step >= ?",
        (span.job_id, span.stage, span.from_step),
    ).fetchone()
    return int(row[0])


def losses(tx: Tx, job_id: str, stage: int, between: tuple[int, int]) -> Iterator[float]:
    """The losses of a stage's steps from one to another, both included, in order."""
    rows = tx.execute(
        "SELECT loss FROM steps WHERE job_id = ? AND stage = ? AND step BETWEEN ? AND ?"
        " ORDER BY step",
        (job_id, stage, *between),
    )
    return (float(row["loss"]) for row in rows)


def last_times(tx: Tx, job_id: str, stage: int, num: int) -> list[float]:
    """Seconds of the newest steps of a stage."""
    rows = tx.execute(
        "SELECT step_s FROM steps WHERE job_id = ? AND stage = ? ORDER BY step DESC LIMIT ?",
        (job_id, stage, num),
    )
    return [float(row["step_s"]) for row in rows]


def every_step(tx: Tx, job_id: str) -> list[dict[str, Any]]:
    """All steps of a job, by step and stage."""
    rows = tx.execute("SELECT * FROM steps WHERE job_id = ? ORDER BY step, stage", (job_id,))
    return [dict(row) for row in rows]


def put_evaluation(tx: Tx, told: Evaluated) -> None:
    """Store a held-out evaluation; a repeated one replaces the first."""
    tx.execute(
        "INSERT OR REPLACE INTO evaluations VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            told.job_id,
            told.moment,
            told.step,
            told.loss,
            told.accuracy,
            told.tokens,
            told.sequences,
        ),
    )


def evaluations(tx: Tx, job_id: str) -> list[Evaluation]:
    """The evaluations of a job, in order."""
    rows = tx.execute(
        "SELECT moment, step, loss, accuracy, tokens, sequences FROM evaluations"
        " WHERE job_id = ? ORDER BY step, moment IN ('trained', 'bypassed'), moment DESC",
        (job_id,),
    )
    return [Evaluation(**row) for row in rows]
