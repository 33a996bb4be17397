"""The leader's database: one SQLite connection, one writer, answers after the commit.

Closures queue here. Waiting writes share one transaction (group commit), each in a savepoint of
its own, so that a failed one loses nothing of the others. A caller who goes away stops nothing.
Does not know what the tables mean.
"""

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import aiosqlite

from control.store.migrate import migrate
from transport.errors import SwarmError

log = logging.getLogger(__name__)

T = TypeVar("T")
Tx = sqlite3.Connection
MAX_GROUP = 256  # closures in one transaction


@dataclass(frozen=True)
class _Asked:
    """A closure in the queue and who waits for it."""

    run: Callable[[Tx], Any]
    answer: "asyncio.Future[Any]"
    is_write: bool


@dataclass(frozen=True)
class _Outcome:
    """What a closure gave, once its transaction is committed."""

    value: Any = None
    error: Exception | None = None


class _Connection(aiosqlite.Connection):
    """aiosqlite's connection and thread; a whole closure runs there in one visit."""

    stopped: "asyncio.Future[Any] | None" = None
    """Set by stop(); done when the thread has ended."""

    def stop(self) -> "asyncio.Future[Any] | None":
        self.stopped = super().stop()
        return self.stopped

    async def visit(self, run: Callable[[Tx], T]) -> T:
        return cast("T", await self._execute(run, self._conn))  # type: ignore[no-untyped-call]


class Database:
    """Open with `open`; close in a finally, or the process does not end."""

    def __init__(self, connection: _Connection, path: Path) -> None:
        self.path = path
        self._connection = connection
        self._queue: asyncio.Queue[_Asked | None] = asyncio.Queue()
        self._closed = False
        self._worker = asyncio.create_task(self._work(), name="database writer")

    @classmethod
    async def open(cls, path: Path) -> "Database":
        """Open, or make, the database and bring its schema up to date.

        Raises:
            SwarmError: conflict when a newer Swarm wrote it; unavailable when it cannot be opened.
        """
        connection = _Connection(lambda: _connect(path), 64)
        # A cancelled connect would leave its thread behind for ever (aiosqlite #259).
        opening = asyncio.ensure_future(_started(connection))
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            await asyncio.gather(opening, return_exceptions=True)
            await connection.close()
            raise
        except (sqlite3.Error, OSError) as error:
            if connection.stopped is not None:  # or its thread outlives the event loop
                await connection.stopped
            raise _as_swarm_error(error, path) from error
        try:
            await connection.visit(lambda tx: migrate(tx, path))
        except BaseException as error:
            await asyncio.shield(connection.close())
            if isinstance(error, sqlite3.Error):
                raise _as_swarm_error(error, path) from error
            raise
        return cls(connection, path)

    async def write(self, change: Callable[[Tx], T]) -> T:
        """Run a closure in a transaction and answer once it is committed for good.

        The closure runs in the database's thread: no awaits, quick, touching nothing that the
        event loop changes. If it raises, nothing of it is kept.

        Raises:
            SwarmError: storage-full when the disk is full, unavailable on other disk errors.
            Whatever the closure raises.
        """
        return await self._ask(change, is_write=True)

    async def read(self, question: Callable[[Tx], T]) -> T:
        """Run a closure that only looks; it sees committed rows."""
        return await self._ask(question, is_write=False)

    async def backup(self, target: Path) -> None:
        """Copy the database as it is now into a new file, while the leader runs."""

        def copy(tx: Tx) -> None:
            with contextlib.closing(sqlite3.connect(target)) as other:
                tx.backup(other)

        await self.read(copy)

    async def close(self) -> None:
        """Finish what is queued, close the connection, end its thread."""
        if self._closed:
            return
        self._closed = True
        self._queue.put_nowait(None)
        await asyncio.shield(self._worker)

    async def _ask(self, run: Callable[[Tx], T], *, is_write: bool) -> T:
        if self._closed:
            raise SwarmError("unavailable", "the leader is stopping", hint="try again in a moment")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(_Asked(run, answer, is_write))
        # An asker that is cancelled cancels the answer only: what it asked for runs all the same.
        return await answer

    async def _work(self) -> None:
        try:
            while (first := await self._queue.get()) is not None:
                await self._serve(self._take_group(first))
        finally:
            await self._connection.close()
            while not self._queue.empty():
                left = self._queue.get_nowait()
                if left is not None and not left.answer.done():
                    left.answer.set_exception(SwarmError("unavailable", "the leader is stopping"))

    def _take_group(self, first: _Asked) -> list[_Asked]:
        """The first and all that wait behind it, up to MAX_GROUP and the end mark."""
        group = [first]
        while len(group) < MAX_GROUP and not self._queue.empty():
            one = self._queue.get_nowait()
            if one is None:
                self._queue.put_nowait(None)
                break
            group.append(one)
        return group

    async def _serve(self, group: list[_Asked]) -> None:
        """Reads see what was committed before them in the queue: runs of writes, then reads."""
        while group:
            kind = group[0].is_write
            size = next((i for i, one in enumerate(group) if one.is_write != kind), len(group))
            now, group = group[:size], group[size:]
            run = [one.run for one in now]
            work = _run_writes if kind else _run_reads
            try:
                outcomes = await self._connection.visit(lambda tx, run=run, w=work: w(tx, run))  # type: ignore[misc]
            except Exception as error:  # noqa: BLE001 - the askers get it, the writer goes on
                outcomes = [_Outcome(error=error)] * len(now)
            for one, outcome in zip(now, outcomes):
                self._answer(one, outcome)

    def _answer(self, asked: _Asked, outcome: _Outcome) -> None:
        if asked.answer.done():
            return
        if outcome.error is None:
            asked.answer.set_result(outcome.value)
        elif isinstance(outcome.error, sqlite3.Error):
            log.error("the database refused", extra={"error": str(outcome.error)})
            asked.answer.set_exception(_as_swarm_error(outcome.error, self.path))
        else:
            asked.answer.set_exception(outcome.error)


def _run_writes(tx: Tx, group: list[Callable[[Tx], Any]]) -> list[_Outcome]:
    """All in one transaction; on a failed commit, and after a rollback by SQLite, all fail."""
    try:
        tx.execute("BEGIN IMMEDIATE")
        # One alone has nobody else's writes beside it: the transaction itself is its savepoint.
        alone = len(group) == 1
        outcomes = [_Outcome(run(tx)) if alone else _run_in_savepoint(tx, run) for run in group]
        tx.execute("COMMIT")
    except Exception as error:  # noqa: BLE001 - carried to those who asked
        if tx.in_transaction:
            tx.execute("ROLLBACK")
        return [_Outcome(error=error)] * len(group)
    return outcomes


def _run_in_savepoint(tx: Tx, run: Callable[[Tx], Any]) -> _Outcome:
    tx.execute("SAVEPOINT one")
    try:
        value = run(tx)
    except Exception as error:
        if not tx.in_transaction:
            # SQLite took the whole transaction back (full disk, I/O error): no one's write stands.
            raise sqlite3.OperationalError(str(error)) from error
        tx.execute("ROLLBACK TO one")
        tx.execute("RELEASE one")
        return _Outcome(error=error)
    tx.execute("RELEASE one")
    return _Outcome(value)


def _run_reads(tx: Tx, group: list[Callable[[Tx], Any]]) -> list[_Outcome]:
    outcomes = []
    for run in group:
        try:
            outcomes.append(_Outcome(run(tx)))
        except Exception as error:  # noqa: BLE001 - carried to the one who asked
            outcomes.append(_Outcome(error=error))
    return outcomes


async def _started(connection: _Connection) -> None:
    await connection


def _connect(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    tx = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    tx.row_factory = sqlite3.Row
    # SQLite before 3.51.3 can corrupt a WAL with two connections: there is only ever this one.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=5000"):
        tx.execute(f"PRAGMA {pragma}")
    return tx


def _as_swarm_error(error: Exception, path: Path) -> SwarmError:
    text = str(error)
    if "full" in text:
        return SwarmError(
            "storage-full",
            f"the leader's disk is full: {path.name} could not be written",
            hint="free space in the leader's data folder; what was accepted before is kept",
        )
    return SwarmError(
        "unavailable",
        f"the leader's database {path.name} could not be used: {text[:200]}",
        hint="look at the leader's log and at its data folder",
    )
