"""Queries on access tokens. Secrets are here as SHA-256 only."""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from control.store.database import Tx
from transport.api.operation import Scope


@dataclass(frozen=True)
class Token:
    """One access token of a person, a script or an agent."""

    token_id: str
    name: str
    scope: Scope
    pools: tuple[str, ...]
    """Pools it may see; empty = all."""
    sha256: str
    prefix: str
    """Its first characters, by which its owner tells it apart."""
    created_at: float
    last_used_at: float | None = None
    expires_at: float | None = None
    revoked_at: float | None = None


def add(tx: Tx, token: Token) -> None:
    """Insert a token."""
    values = (*_columns(token), token.last_used_at, token.expires_at, token.revoked_at)
    tx.execute("INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)


def put(tx: Tx, token: Token) -> None:
    """Insert a token, or replace the one with its id."""
    tx.execute("DELETE FROM tokens WHERE token_id = ?", (token.token_id,))
    add(tx, token)


def every(tx: Tx) -> list[Token]:
    """All tokens, the oldest first."""
    rows = tx.execute("SELECT * FROM tokens ORDER BY created_at, token_id")
    return [Token(**{**row, "pools": tuple(json.loads(row["pools"]))}) for row in map(dict, rows)]


def revoke(tx: Tx, token_id: str, at: float) -> None:
    """End a token; one that is revoked keeps its first date."""
    tx.execute(
        "UPDATE tokens SET revoked_at = ? WHERE token_id = ? AND revoked_at IS NULL", (at, token_id)
    )


def note_use(tx: Tx, uses: Iterable[tuple[str, float]]) -> None:
    """Store when tokens were last used: (token_id, unix time)."""
    tx.executemany(
        "UPDATE tokens SET last_used_at = ?2 WHERE token_id = ?1"
        " AND (last_used_at IS NULL OR last_used_at < ?2)",
        list(uses),
    )


def _columns(token: Token) -> tuple[str | float, ...]:
    return (
        token.token_id,
        token.name,
        token.scope,
        json.dumps(token.pools),
        token.sha256,
        token.prefix,
        token.created_at,
    )
