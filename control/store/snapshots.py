"""Queries on saved states: each stage's file, and the steps whose files are all there."""

from dataclasses import dataclass

from control.store.database import Tx


@dataclass(frozen=True)
class Saved:
    """One stage's file of one step."""

    job_id: str
    attempt: int
    step: int
    stage: int
    num_stages: int
    first_layer: int
    last_layer: int
    sha256: str
    size_bytes: int
    received_at: float


@dataclass(frozen=True)
class SavedStep:
    """A step that counts as saved."""

    job_id: str
    attempt: int
    step: int
    saved_at: float


def find(tx: Tx, job_id: str, attempt: int, step: int, stage: int) -> Saved | None:
    """One file."""
    row = tx.execute(
        "SELECT * FROM snapshots WHERE job_id = ? AND attempt = ? AND step = ? AND stage = ?",
        (job_id, attempt, step, stage),
    ).fetchone()
    return Saved(**row) if row else None


def add(tx: Tx, saved: Saved) -> bool:
    """Note a file that is on the disk. Whether its step counts from now on: all are there."""
    values = tuple(vars(saved).values())
    tx.execute("INSERT OR IGNORE INTO snapshots VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
    files = of_step(tx, saved.job_id, saved.attempt, saved.step)
    if len(files) < saved.num_stages:
        return False
    before = tx.total_changes
    tx.execute(
        "INSERT OR IGNORE INTO saved_steps VALUES (?, ?, ?, ?)",
        (saved.job_id, saved.attempt, saved.step, saved.received_at),
    )
    return tx.total_changes > before


def of_step(tx: Tx, job_id: str, attempt: int, step: int) -> list[Saved]:
    """The files of a step, by stage."""
    rows = tx.execute(
        "SELECT * FROM snapshots WHERE job_id = ? AND attempt = ? AND step = ? ORDER BY stage",
        (job_id, attempt, step),
    )
    return [Saved(**row) for row in rows]


def of_job(tx: Tx, job_id: str) -> list[Saved]:
    """Every file of a job, the newest step first."""
    rows = tx.execute(
        "SELECT * FROM snapshots WHERE job_id = ? ORDER BY step DESC, attempt DESC, stage",
        (job_id,),
    )
    return [Saved(**row) for row in rows]


def every(tx: Tx) -> list[Saved]:
    """Every file of every job."""
    return [Saved(**row) for row in tx.execute("SELECT * FROM snapshots")]


def steps(tx: Tx, job_id: str) -> list[SavedStep]:
    """The steps of a job that count, the newest first."""
    rows = tx.execute(
        "SELECT * FROM saved_steps WHERE job_id = ? ORDER BY step DESC, attempt DESC", (job_id,)
    )
    return [SavedStep(**row) for row in rows]


def drop_step(tx: Tx, job_id: str, attempt: int, step: int) -> None:
    """Forget a step and its files; the files themselves are removed after the commit."""
    for table in ("saved_steps", "snapshots"):
        tx.execute(
            f"DELETE FROM {table} WHERE job_id = ? AND attempt = ? AND step = ?",  # noqa: S608 - names are ours
            (job_id, attempt, step),
        )
