"""Queries on what runs measured: steps and evaluations."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from control.store.database import Tx
from transport.api.jobs import Evaluation
from transport.reports import Evaluated, StepDone

MOST_LOSS = 700.0  # whose exponential a float still holds
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
    "marks",
)


@dataclass(frozen=True)
class Span:
    """Which steps of which stage of a job."""

    job_id: str
    stage: int | None
    """None: of the last stage, which may have had other numbers in earlier attempts."""
    from_step: int
    limit: int


# A step that only an earlier stage has told is not there yet: the last one computes the loss.
_LAST = (
    "SELECT stage FROM steps AS told WHERE told.job_id = steps.job_id AND told.step = steps.step"
    " AND stage = (SELECT max(stage) FROM stages"
    " WHERE stages.job_id = told.job_id AND stages.attempt = told.attempt)"
    " ORDER BY attempt DESC LIMIT 1"
)


def _of(stage: int | None) -> str:
    """The condition that a row is of a stage, or of whichever was the last one then."""
    return f"stage = ({_LAST})" if stage is None else f"stage = {stage:d}"


def put_step(tx: Tx, done: StepDone) -> bool:
    """Store a step; one that is known is replaced by a later attempt only. Whether it was new."""
    before = tx.total_changes
    values = [_stored(getattr(done, name)) for name in STEP_COLUMNS]
    sets = ", ".join(f"{name} = excluded.{name}" for name in STEP_COLUMNS[3:])
    names, marks = ", ".join(STEP_COLUMNS), ", ".join("?" * len(values))
    tx.execute(
        f"INSERT INTO steps ({names}) VALUES ({marks}) ON CONFLICT DO UPDATE SET {sets}"  # noqa: S608 - names are ours
        " WHERE excluded.attempt > steps.attempt",
        values,
    )
    return tx.total_changes > before


def _stored(value: Any) -> Any:
    if isinstance(value, dict):
        return json.dumps(value, separators=(",", ":"))
    return int(value) if isinstance(value, bool) else value


def steps(tx: Tx, span: Span) -> list[dict[str, Any]]:
    """Steps of a stage from a step on, in order, as plain rows."""
    rows = tx.execute(
        f"SELECT * FROM steps WHERE job_id = ? AND {_of(span.stage)} AND step >= ?"  # noqa: S608 - ours
        " ORDER BY step LIMIT ?",
        (span.job_id, span.from_step, span.limit),
    )
    return [_shown(row) for row in rows]


def count_steps(tx: Tx, span: Span) -> int:
    """How many steps a stage has from a step on."""
    row = tx.execute(
        f"SELECT count(*) FROM steps WHERE job_id = ? AND {_of(span.stage)} AND step >= ?",  # noqa: S608 - ours
        (span.job_id, span.from_step),
    ).fetchone()
    return int(row[0])


def losses(tx: Tx, job_id: str, stage: int | None, between: tuple[int, int]) -> Iterator[float]:
    """The losses of a stage's steps from one to another, both included, in order."""
    rows = tx.execute(
        f"SELECT loss FROM steps WHERE job_id = ? AND {_of(stage)} AND step BETWEEN ? AND ?"  # noqa: S608 - ours
        " ORDER BY step",
        (job_id, *between),
    )
    return (float(row["loss"]) for row in rows)


def last_times(tx: Tx, job_id: str, stage: int, num: int) -> list[float]:
    """Seconds of the newest steps that a stage did in its newest attempt."""
    rows = tx.execute(
        "SELECT step_s FROM steps WHERE job_id = ? AND stage = ?"
        " ORDER BY attempt DESC, step DESC LIMIT ?",
        (job_id, stage, num),
    )
    return [float(row["step_s"]) for row in rows]


def last_marks(tx: Tx, job_id: str, attempt: int, num: int) -> dict[int, list[dict[str, float]]]:
    """stage -> the marks of its newest steps in an attempt, in order.

    An attempt's first two steps count every tensor and take longer: they are left out once there
    are others.
    """
    at = "FROM steps WHERE job_id = ? AND attempt = ?"
    first, last = tx.execute(f"SELECT min(step), max(step) {at}", (job_id, attempt)).fetchone()
    if last is None:
        return {}
    begin = max(last - num + 1, min(first + 2, last))
    rows = tx.execute(
        f"SELECT stage, marks {at} AND step >= ? ORDER BY stage, step", (job_id, attempt, begin)
    )
    told: dict[int, list[dict[str, float]]] = {}
    for row in rows:
        told.setdefault(row["stage"], []).append(json.loads(row["marks"]))
    return told


def every_step(tx: Tx, job_id: str) -> list[dict[str, Any]]:
    """All steps of a job, by step and stage."""
    rows = tx.execute("SELECT * FROM steps WHERE job_id = ? ORDER BY step, stage", (job_id,))
    return [_shown(row) for row in rows]


def _shown(row: Any) -> dict[str, Any]:
    return {**dict(row), "marks": json.loads(row["marks"])}


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
    return [Evaluation(**row, perplexity=_perplexity(row["loss"])) for row in rows]


def _perplexity(loss: float) -> float | None:
    return math.exp(loss) if loss < MOST_LOSS else None
