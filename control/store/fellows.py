"""Queries on fellows, invites and measured speeds."""

import json
from collections.abc import Iterable
from dataclasses import astuple, dataclass

from control.store.database import Tx
from transport.cards import Speed


@dataclass(frozen=True)
class Invite:
    """The right of one machine to join one pool within an hour."""

    invite_id: str
    pool: str
    sha256: str
    made_by: str
    created_at: float
    expires_at: float
    used_at: float | None = None
    credential_sha256: str | None = None
    fellow_id: str | None = None


@dataclass(frozen=True)
class StoredFellow:
    """A machine that joined."""

    fellow_id: str
    pool: str
    credential_sha256: str
    hostname: str
    version: str
    joined_at: float
    removed_at: float | None = None
    reports_committed: int = 0


def add_invite(tx: Tx, invite: Invite) -> None:
    """Insert an invite."""
    tx.execute("INSERT INTO invites VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", astuple(invite))


def find_invite(tx: Tx, sha256: str) -> Invite | None:
    """An invite by the hash of its secret."""
    row = tx.execute("SELECT * FROM invites WHERE sha256 = ?", (sha256,)).fetchone()
    return Invite(**row) if row else None


def spend_invite(tx: Tx, invite_id: str, fellow: StoredFellow) -> bool:
    """Use an invite up. False when another machine was faster."""
    done = tx.execute(
        "UPDATE invites SET used_at = ?, credential_sha256 = ?, fellow_id = ?"
        " WHERE invite_id = ? AND used_at IS NULL",
        (fellow.joined_at, fellow.credential_sha256, fellow.fellow_id, invite_id),
    )
    return done.rowcount == 1


def add(tx: Tx, fellow: StoredFellow) -> None:
    """Insert a fellow."""
    tx.execute("INSERT INTO fellows VALUES (?, ?, ?, ?, ?, ?, ?, ?)", astuple(fellow))


def find(tx: Tx, fellow_id: str) -> StoredFellow | None:
    """A fellow by id, removed ones too."""
    row = tx.execute("SELECT * FROM fellows WHERE fellow_id = ?", (fellow_id,)).fetchone()
    return StoredFellow(**row) if row else None


def find_by_credential(tx: Tx, sha256: str) -> StoredFellow | None:
    """A fellow by the hash of its credential, removed ones too."""
    row = tx.execute("SELECT * FROM fellows WHERE credential_sha256 = ?", (sha256,)).fetchone()
    return StoredFellow(**row) if row else None


def every(tx: Tx) -> list[StoredFellow]:
    """All fellows that are not removed, in order of joining."""
    rows = tx.execute(
        "SELECT * FROM fellows WHERE removed_at IS NULL ORDER BY joined_at, fellow_id"
    )
    return [StoredFellow(**row) for row in rows]


def remove(tx: Tx, fellow_id: str, at: float) -> None:
    """Take a fellow out of its pool."""
    tx.execute("UPDATE fellows SET removed_at = ? WHERE fellow_id = ?", (at, fellow_id))


def set_committed(tx: Tx, fellow_id: str, sequence: int) -> None:
    """Note up to which report a fellow's sequence is stored."""
    tx.execute(
        "UPDATE fellows SET reports_committed = ? WHERE fellow_id = ?", (sequence, fellow_id)
    )


def put_speeds(tx: Tx, fellow_id: str, card_index: int, speeds: Iterable[Speed]) -> None:
    """Store measured speeds of a card; newer ones replace older ones."""
    tx.executemany(
        "INSERT OR REPLACE INTO speeds (fellow_id, card_index, number_format, tflops, measured_at,"
        " cold_tflops, matmul_tflops, attention_tflops, memory_bytes_s, block_s, sizes)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                fellow_id,
                card_index,
                s.number_format,
                s.tflops,
                s.measured_at,
                s.cold_tflops,
                s.matmul_tflops,
                s.attention_tflops,
                s.memory_bytes_s,
                s.block_s,
                _sizes(s),
            )
            for s in speeds
        ],
    )


def _sizes(speed: Speed) -> str:
    return json.dumps([one.model_dump() for one in speed.sizes])


def speeds(tx: Tx) -> dict[tuple[str, int], list[Speed]]:
    """(fellow_id, card index) -> its measured speeds."""
    found: dict[tuple[str, int], list[Speed]] = {}
    for row in tx.execute("SELECT * FROM speeds ORDER BY fellow_id, card_index, number_format"):
        told = {name: row[name] for name in Speed.model_fields}
        speed = Speed.model_validate(told | {"sizes": json.loads(row["sizes"])})
        found.setdefault((row["fellow_id"], row["card_index"]), []).append(speed)
    return found
