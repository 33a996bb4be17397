"""Queries on measured links between fellows, and between a fellow and its leader."""

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Final

from control.store.database import Tx
from transport.cards import PathKind

LEADER: Final = "leader"


@dataclass(frozen=True)
class LinkFigure:
    """One direction of a link, as it was measured last."""

    sender: str
    taker: str
    bytes_s: float
    latency_s: float
    """One way."""
    path: PathKind
    measured_at: float
    """Unix seconds, on the leader's clock."""


def put(tx: Tx, figures: Iterable[LinkFigure]) -> None:
    """Store figures; newer ones replace older ones."""
    tx.executemany(
        "INSERT OR REPLACE INTO link_figures VALUES (?, ?, ?, ?, ?, ?)",
        [astuple(figure) for figure in figures],
    )


def every(tx: Tx) -> list[LinkFigure]:
    """All figures."""
    rows = tx.execute("SELECT * FROM link_figures ORDER BY sender, taker")
    return [LinkFigure(**row) for row in rows]


def forget(tx: Tx, fellow_id: str) -> None:
    """Forget a fellow's links."""
    tx.execute("DELETE FROM link_figures WHERE sender = ? OR taker = ?", (fellow_id, fellow_id))
