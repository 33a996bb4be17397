"""Brings a database to the newest schema: numbered SQL files, each in a transaction of its own.

A copy of the file is kept before anything changes. A database that a newer Swarm wrote is refused.
"""

import contextlib
import functools
import sqlite3
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from transport.errors import SwarmError

FOLDER = Path(__file__).parent / "migrations"


def steps(folder: Path = FOLDER) -> list[tuple[int, Path]]:
    """(version, file of SQL) of every migration, in order."""
    files = sorted(folder.glob("[0-9][0-9][0-9][0-9]_*.sql"))
    return [(int(file.name[:4]), file) for file in files]


def schema_version(tx: sqlite3.Connection) -> int:
    """The version that the database says it has; 0 when it is new."""
    return int(tx.execute("PRAGMA user_version").fetchone()[0])


def migrate(tx: sqlite3.Connection, path: Path, folder: Path = FOLDER) -> None:
    """Apply what is missing.

    Raises:
        SwarmError: conflict when the database is newer than this Swarm, naming both versions.
    """
    have, wanted = schema_version(tx), steps(folder)
    newest = wanted[-1][0]
    if have > newest:
        writer = _written_by(tx)
        opens = f"Swarm {writer}" if writer else "the newer Swarm"
        raise SwarmError(
            "conflict",
            f"{path.name} has schema version {have}; this Swarm knows up to {newest}",
            hint=f"start {opens} again, or restore a backup made before the upgrade",
            facts={"schema": have, "known": newest, "written_by": writer},
        )
    if 0 < have < newest:
        _keep_copy(tx, path.with_name(f"{path.name}.schema-{have}"))
    for number, file in wanted:
        if number > have:
            _apply(tx, number, file.read_text("utf-8"))
    if folder == FOLDER:
        _sign(tx)


def _written_by(tx: sqlite3.Connection) -> str | None:
    """The version of Swarm that opened this database last; None when it does not say so."""
    try:
        row = tx.execute("SELECT value FROM about WHERE name = 'version'").fetchone()
    except sqlite3.Error:
        return None
    return str(row[0])[:64] if row else None


def _sign(tx: sqlite3.Connection) -> None:
    """Write down which version reads this database, for an older one that is asked to."""
    own = _own_version()
    if own is not None and _written_by(tx) != own:
        tx.execute("INSERT OR REPLACE INTO about VALUES ('version', ?)", (own,))


@functools.cache
def _own_version() -> str | None:
    """This Swarm's version; None when it runs without being installed."""
    try:
        return version("swarm-pool")
    except PackageNotFoundError:
        return None


def _apply(tx: sqlite3.Connection, version: int, sql: str) -> None:
    try:
        tx.executescript(f"BEGIN IMMEDIATE;\n{sql}\nPRAGMA user_version = {version};\nCOMMIT;")
    except sqlite3.Error:
        if tx.in_transaction:
            tx.execute("ROLLBACK")
        raise


def _keep_copy(tx: sqlite3.Connection, target: Path) -> None:
    with contextlib.closing(sqlite3.connect(target)) as copy:
        tx.backup(copy)
