"""Queries on answered requests: how a change that is asked for twice happens once."""

from dataclasses import astuple, dataclass

from control.store.database import Tx


@dataclass(frozen=True)
class AnsweredRequest:
    """A request_id of a caller, and the answer it was given."""

    who: str
    request_id: str
    operation: str
    arguments_sha256: str
    answer: str
    """JSON, secrets left out."""
    created_at: float


def find(tx: Tx, who: str, request_id: str) -> AnsweredRequest | None:
    """The request of a caller by its id."""
    row = tx.execute(
        "SELECT * FROM requests WHERE who = ? AND request_id = ?", (who, request_id)
    ).fetchone()
    return AnsweredRequest(**row) if row else None


def add(tx: Tx, request: AnsweredRequest) -> None:
    """Insert a request."""
    tx.execute("INSERT INTO requests VALUES (?, ?, ?, ?, ?, ?)", astuple(request))


def drop_before(tx: Tx, at: float) -> int:
    """Forget requests older than this. How many."""
    return tx.execute("DELETE FROM requests WHERE created_at < ?", (at,)).rowcount
