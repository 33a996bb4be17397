"""The database: what is answered is kept, one's failure is no one else's, kills lose nothing."""

import asyncio
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from anyio.lowlevel import checkpoint

from control.store import migrate
from control.store.backup import FOLDERS, backup, backup_stopped, restore
from control.store.database import Database, Tx
from control.store.files import only_leader
from transport.errors import SwarmError

# Commits rows, eight at a time, and prints the number of each once it is answered.
WRITER = """
import asyncio, itertools, sys
from pathlib import Path
from control.store.database import Database

async def main():
    db = await Database.open(Path(sys.argv[1]))
    first = await db.read(lambda tx: tx.execute("SELECT count(*) FROM pools").fetchone()[0])
    numbers = itertools.count(first * 1000)

    async def one():
        while True:
            n = next(numbers)
            row = (f"p{n}",)
            await db.write(lambda tx: tx.execute("INSERT INTO pools VALUES (?, 'x', 1.0)", row))
            print(n, flush=True)

    await asyncio.gather(*(one() for _ in range(8)))

asyncio.run(main())
"""


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = await Database.open(tmp_path / "leader.db")
    yield opened
    await opened.close()


def insert(name: str) -> Callable[[Tx], str]:
    def change(tx: Tx) -> str:
        tx.execute("INSERT INTO pools VALUES (?, 'x', 1.0)", (name,))
        return name

    return change


def names(tx: Tx) -> list[str]:
    return [row["pool"] for row in tx.execute("SELECT pool FROM pools ORDER BY pool")]


async def test_a_failed_write_loses_nothing_of_those_it_shared_a_commit_with(
    database: Database,
) -> None:
    def bad(tx: Tx) -> None:
        insert("half")(tx)
        raise ValueError("no")

    asked = [database.write(insert("a")), database.write(bad), database.write(insert("b"))]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(answer) for answer in answers] == [str, ValueError, str]
    assert await database.read(names) == ["a", "b"]


async def test_waiting_writes_share_a_transaction(database: Database) -> None:
    commits: list[str] = []
    await database.read(lambda tx: tx.set_trace_callback(commits.append))
    await asyncio.gather(*(database.write(insert(f"p{n}")) for n in range(50)))
    await database.read(lambda tx: tx.set_trace_callback(None))
    assert commits.count("COMMIT") <= 3
    assert len(await database.read(names)) == 50


async def test_a_caller_who_goes_away_stops_no_commit(database: Database) -> None:
    asking = asyncio.create_task(database.write(insert("kept")))
    await checkpoint()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await database.read(names) == ["kept"]


async def test_reads_see_every_write_that_was_asked_before_them(database: Database) -> None:
    writing = asyncio.ensure_future(database.write(insert("a")))
    await checkpoint()
    assert await database.read(names) == ["a"]
    await writing


async def test_a_full_disk_is_said_and_what_was_accepted_stays(database: Database) -> None:
    await database.write(insert("first"))

    def fill(tx: Tx) -> None:
        pages = tx.execute("PRAGMA page_count").fetchone()[0]
        tx.execute(f"PRAGMA max_page_count = {pages + 1}")

    await database.read(fill)

    def large(tx: Tx) -> None:
        tx.execute("INSERT INTO pools VALUES (?, ?, 1.0)", ("large", "x" * 1_000_000))

    with pytest.raises(SwarmError) as refusal:
        await database.write(large)
    assert refusal.value.code == "storage-full"
    assert await database.read(names) == ["first"]
    await database.read(lambda tx: tx.execute("PRAGMA max_page_count = 1000000"))
    await database.write(insert("second"))
    assert await database.read(names) == ["first", "second"]


async def test_a_closed_database_refuses_and_closing_twice_is_harmless(tmp_path: Path) -> None:
    database = await Database.open(tmp_path / "x.db")
    writing = asyncio.create_task(database.write(insert("late")))
    await checkpoint()
    await database.close()
    await database.close()
    assert await writing == "late"
    with pytest.raises(SwarmError) as refusal:
        await database.write(insert("no"))
    assert refusal.value.code == "unavailable"


async def test_a_database_of_a_newer_swarm_is_refused_with_the_version_that_opens_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "leader.db"
    await (await Database.open(path)).close()
    with sqlite3.connect(path) as tx:
        tx.execute("PRAGMA user_version = 99")
    tx.close()
    with pytest.raises(SwarmError) as refusal:
        await Database.open(path)
    assert refusal.value.code == "conflict"
    own = version("swarm-pool")
    facts = {"schema": 99, "known": migrate.steps()[-1][0], "written_by": own}
    assert refusal.value.facts == facts
    assert f"start Swarm {own} again" in refusal.value.hint


def test_a_migration_keeps_a_copy_first_and_changes_nothing_when_it_fails(tmp_path: Path) -> None:
    folder = tmp_path / "migrations"
    folder.mkdir()
    (folder / "0001_a.sql").write_text("CREATE TABLE a (n INTEGER);")
    path = tmp_path / "x.db"
    tx = sqlite3.connect(path, isolation_level=None)
    migrate.migrate(tx, path, folder)
    tx.execute("INSERT INTO a VALUES (7)")
    (folder / "0002_b.sql").write_text(
        "CREATE TABLE b (n INTEGER); INSERT INTO nowhere VALUES (1);"
    )
    with pytest.raises(sqlite3.Error):
        migrate.migrate(tx, path, folder)
    assert migrate.schema_version(tx) == 1
    assert tx.execute("SELECT name FROM sqlite_master").fetchall() == [("a",)]
    copy = sqlite3.connect(tmp_path / "x.db.schema-1")
    assert copy.execute("SELECT n FROM a").fetchall() == [(7,)]
    copy.close()
    tx.close()


async def test_a_backup_made_while_running_is_restored_whole(
    database: Database, tmp_path: Path
) -> None:
    await database.write(insert("a"))
    data = database.path.parent
    (data / "jobs" / "j-1").mkdir(parents=True)
    (data / "jobs" / "j-1" / "records.jsonl").write_text("{}\n")
    target = tmp_path / "saved.tar"
    await backup(database, data, target, FOLDERS)
    await database.write(insert("later"))
    restore(target, tmp_path / "again")
    other = await Database.open(tmp_path / "again" / "leader.db")
    try:
        assert await other.read(names) == ["a"]
    finally:
        await other.close()
    assert (tmp_path / "again" / "jobs" / "j-1" / "records.jsonl").read_text() == "{}\n"
    with pytest.raises(SwarmError) as refusal:
        restore(target, tmp_path / "again")
    assert refusal.value.code == "conflict"


def test_a_broken_backup_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "saved.tar").write_bytes(b"not a tar file")
    with pytest.raises(SwarmError) as refusal:
        restore(tmp_path / "saved.tar", tmp_path / "again")
    assert refusal.value.code == "invalid-input"
    assert [p.name for p in tmp_path.iterdir()] == ["saved.tar"]
    with pytest.raises(SwarmError) as missing:
        backup_stopped(tmp_path / "none", tmp_path / "x.tar", FOLDERS)
    assert missing.value.code == "not-found"


def test_a_second_leader_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    with only_leader(tmp_path), pytest.raises(SwarmError) as refusal, only_leader(tmp_path):
        pass
    assert refusal.value.code == "conflict"


def kill_rounds(path: Path, rounds: int, seed: int) -> tuple[int, list[int]]:
    """Kill a writer so many times. (rows acknowledged, acknowledged numbers that are not there)."""
    dice = random.Random(seed)
    acknowledged: set[int] = set()
    for _ in range(rounds):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        acknowledged.add(int(child.stdout.readline()))
        until = time.monotonic() + dice.uniform(0.005, 0.1)
        while time.monotonic() < until:
            acknowledged.add(int(child.stdout.readline()))
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read()
        whole = rest[: rest.rfind("\n") + 1]
        acknowledged |= {int(line) for line in whole.split()}
        child.stdout.close()
        child.wait(10)
    with sqlite3.connect(path) as tx:
        assert tx.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        there = {int(name[1:]) for (name,) in tx.execute("SELECT pool FROM pools")}
    tx.close()
    return len(acknowledged), sorted(acknowledged - there)


def test_twelve_kills_at_random_moments_lose_no_acknowledged_row(tmp_path: Path) -> None:
    count, lost = kill_rounds(tmp_path / "leader.db", 12, seed=1)
    assert lost == []
    assert count >= 12


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_hundred_kills_at_random_moments_lose_no_acknowledged_row(tmp_path: Path) -> None:
    count, lost = kill_rounds(tmp_path / "leader.db", 200, seed=2)
    print(f"200 kills, {count} rows acknowledged, {len(lost)} lost")
    assert lost == []
