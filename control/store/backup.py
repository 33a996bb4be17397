"""Backup and restore of a leader: database, data, results and (when asked) models in one tar.

Restoring checks the file first and never writes over a leader that is there.
"""

import asyncio
import contextlib
import errno
import shutil
import sqlite3
import tarfile
from collections.abc import Iterable
from pathlib import Path

from control.store.database import Database
from control.store.migrate import schema_version, steps
from transport.errors import SwarmError

DATABASE = "leader.db"
FOLDERS = ("state", "buckets", "jobs")
MODELS = "models"  # large, and elsewhere too: only when asked for


async def backup(database: Database, data: Path, target: Path, folders: Iterable[str]) -> None:
    """Write a backup of a running leader.

    Raises:
        SwarmError: conflict when the file is there already.
    """
    copy = target.with_name(f"{target.name}.db")
    _refuse_there(target)
    try:
        await database.backup(copy)
        await asyncio.to_thread(_pack, data, copy, target, folders)
    finally:
        _drop(copy)


def _refuse_there(target: Path) -> None:
    if target.exists():
        raise SwarmError("conflict", f"{target} is there already", hint="name a new file")


def _drop(path: Path) -> None:
    path.unlink(missing_ok=True)


def backup_stopped(data: Path, target: Path, folders: Iterable[str]) -> None:
    """The same for a leader that does not run. The caller holds its folder (files.only_leader)."""
    if not (data / DATABASE).is_file():
        raise SwarmError("not-found", f"there is no leader in {data}", hint="name it with --data")
    _refuse_there(target)
    copy = target.with_name(f"{target.name}.db")
    try:
        with (
            contextlib.closing(sqlite3.connect(data / DATABASE)) as source,
            contextlib.closing(sqlite3.connect(copy)) as sink,
        ):
            source.backup(sink)
        _pack(data, copy, target, folders)
    except (OSError, sqlite3.Error) as error:
        raise _unwritten(error, target) from error
    finally:
        for left in (copy, target.with_name(f"{target.name}.part")):
            left.unlink(missing_ok=True)


def _unwritten(error: Exception, target: Path) -> SwarmError:
    why = error.strerror if isinstance(error, OSError) else str(error)
    full = "full" in str(error) or getattr(error, "errno", None) == errno.ENOSPC
    return SwarmError(
        "storage-full" if full else "unavailable",
        f"{target} could not be written: {why}",
        hint="name a file in a folder that exists and has room",
    )


def restore(source: Path, data: Path) -> None:
    """Unpack a backup into an empty or absent folder, after checking its database.

    Raises:
        SwarmError: conflict when a leader is there or the backup is newer than this Swarm;
            invalid-input when the file is no whole backup.
    """
    if data.exists() and any(path.name != "leader.lock" for path in data.iterdir()):
        raise SwarmError(
            "conflict", f"{data} is not empty", hint="restore into a new folder with --data"
        )
    if not source.is_file():
        raise SwarmError("not-found", f"there is no file {source}", hint="name a backup file")
    fresh = data.with_name(f"{data.name}.restoring")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        with tarfile.open(source, "r") as tar:
            tar.extractall(fresh, filter="data")
        _check(fresh / DATABASE)
        for path in fresh.iterdir():
            data.mkdir(parents=True, exist_ok=True)
            path.replace(data / path.name)
    except (tarfile.TarError, OSError, sqlite3.Error) as error:
        if getattr(error, "errno", None) == errno.ENOSPC:
            raise _unwritten(error, data) from error
        raise SwarmError(
            "invalid-input",
            f"{source} is not a whole backup: {type(error).__name__}",
            hint="take another backup file",
        ) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _pack(data: Path, copy: Path, target: Path, folders: Iterable[str]) -> None:
    part = target.with_name(f"{target.name}.part")
    with tarfile.open(part, "w") as tar:
        tar.add(copy, DATABASE)
        for name in folders:
            if (data / name).is_dir():
                tar.add(data / name, name)
    part.chmod(0o600)
    part.replace(target)


def _check(path: Path) -> None:
    if not path.is_file():
        raise sqlite3.DatabaseError("no database inside")
    with contextlib.closing(sqlite3.connect(path)) as tx:
        found = tx.execute("PRAGMA integrity_check").fetchone()[0]
        version, newest = schema_version(tx), steps()[-1][0]
    if found != "ok":
        raise sqlite3.DatabaseError(str(found))
    if version > newest:
        raise SwarmError(
            "conflict",
            f"the backup has schema version {version}; this Swarm knows up to {newest}",
            hint="restore it with the Swarm that made it",
        )
