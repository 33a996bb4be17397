"""Starts that cannot be: a port in use, a folder held, a newer database, wrong words and settings.

And what the command line is given as a job file. Every refusal is one sentence and an exit code.
"""

import os
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.flow.open_leader import POOL
from tests.flow.refusals import ROOT, World, check, everything
from transport.errors import CODES


def start(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`swarm leader WORDS`, which must end by itself."""
    told = {"SWARM_CONFIG": str(folder / "none.toml"), **environment}
    return subprocess.run(
        [sys.executable, "-m", "agents.cli.main", "leader", *words],
        cwd=ROOT, env={**os.environ, **told}, capture_output=True, text=True, timeout=30,
        check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def refused(done: subprocess.CompletedProcess[str], code: str, *words: str) -> None:
    """One line on stderr, nothing on stdout, the code's exit code."""
    assert (done.returncode, done.stdout) == (CODES[code][1], ""), done.stderr
    (line,) = done.stderr.splitlines()
    sentence, _, hint = line.partition(". Next: ")
    assert sentence.startswith(f"{code}: "), line
    assert hint, line
    assert [word for word in words if word not in line] == [], line


def test_a_port_in_use_is_said_and_the_folder_is_not_touched(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = start(tmp_path, "run", "--port", str(port), "--data", str(tmp_path / "data"))
    refused(done, "conflict", f"port {port} on 127.0.0.1 is in use", "choose another with --port")
    assert not (tmp_path / "data").exists()


async def test_a_folder_that_another_leader_holds_is_refused(world: World) -> None:
    before = everything(world.data)
    for words in (["run", "--port", "0"], ["backup", str(world.folder / "b.tar")]):
        done = start(world.folder, *words, "--data", str(world.data))
        refused(done, "conflict", f"another leader already uses the data folder {world.data}")
    assert everything(world.data) == before
    assert not (world.folder / "b.tar").exists()


def test_a_folder_of_a_newer_version_is_refused_and_kept_as_it_is(tmp_path: Path) -> None:
    database = tmp_path / "leader.db"
    with closing(sqlite3.connect(database)) as made:
        made.execute("PRAGMA user_version = 999")
        made.execute("CREATE TABLE future (x)")
    before = database.read_bytes()
    done = start(tmp_path, "run", "--port", "0", "--data", str(tmp_path))
    refused(done, "conflict", "schema version 999; this Swarm knows up to", "newer Swarm")
    with closing(sqlite3.connect(database)) as kept:
        assert kept.execute("SELECT name FROM sqlite_schema").fetchall() == [("future",)]
    assert len(database.read_bytes()) == len(before)


def test_a_folder_that_holds_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "leader.db").write_bytes(b"not a database at all" * 1000)
    done = start(tmp_path, "run", "--port", "0", "--data", str(tmp_path))
    refused(done, "unavailable", "leader.db could not be used: file is not a database")
    (tmp_path / "file").write_text("x")
    done = start(tmp_path, "run", "--port", "0", "--data", str(tmp_path / "file"))
    refused(done, "unavailable", f"the data folder {tmp_path / 'file'} cannot be used")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--port", "99999"], "port"),
        (["run", "--port", "many"], "port"),
        (["run", "--host", "0.0.0.0"], "in clear text would show tokens and data"),
        (["run", "--host", "192.0.2.1", "--insecure-lan"], "cannot listen on 192.0.2.1"),
        (["run", "--public", "ftp://x"], "must begin with http:// or https://"),
    ],
)
def test_a_wrong_word_for_the_leader_is_refused(
    tmp_path: Path, words: list[str], said: str
) -> None:
    data = tmp_path / "data"
    done = start(tmp_path, *words, "--data", str(data))
    refused(done, "invalid-input", said)
    assert not data.exists()


@pytest.mark.parametrize(
    ("text", "environment", "said"),
    [
        ("[leader]\nprot = 1\n", {}, "has no setting 'prot'"),
        ("[leader\n", {}, "cannot be read"),
        ("[leader]\nport = 'x'\n", {}, "setting port"),
        ("", {"SWARM_HEARTBEAT_S": "nan"}, "setting heartbeat_s (SWARM_HEARTBEAT_S)"),
        ("", {"SWARM_PORT": "-1"}, "setting port (SWARM_PORT)"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_origin(
    tmp_path: Path, text: str, environment: dict[str, str], said: str
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(text)
    told = {"SWARM_CONFIG": str(config), **environment}
    done = start(tmp_path, "run", "--data", str(tmp_path / "data"), **told)
    refused(done, "invalid-input", said)


def test_a_file_that_is_no_backup_is_not_restored(tmp_path: Path) -> None:
    (tmp_path / "b.tar").write_bytes(b"no backup" * 100)
    data = tmp_path / "new"
    done = start(tmp_path, "restore", str(tmp_path / "b.tar"), "--data", str(data))
    refused(done, "invalid-input", "b.tar")
    done = start(tmp_path, "restore", str(tmp_path / "none.tar"), "--data", str(data))
    refused(done, "not-found", "none.tar")
    done = start(tmp_path, "backup", str(tmp_path / "c.tar"), "--data", str(data))
    refused(done, "not-found", f"there is no leader in {data}")
    sqlite3.connect(tmp_path / "leader.db").close()
    lost = str(tmp_path / "none" / "c.tar")
    done = start(tmp_path, "backup", lost, "--data", str(tmp_path))
    refused(done, "unavailable", f"{lost} could not be written")
    assert not (tmp_path / "c.tar").exists()


GOOD = "model: {id: local:tiny}\ndata: {bucket: words}\ntrain: {steps: 3}\n"
# what stands in the file -> (code, what is said)
JOB_FILES: dict[str, tuple[str, str, str]] = {
    "broken YAML": ("model: {id: x\n", "invalid-input", "is neither JSON nor YAML: line 2"),
    "a tab": ("model:\n\tid: x\n", "invalid-input", "is neither JSON nor YAML: line 2"),
    "broken JSON": ('{"model": ', "invalid-input", "is neither JSON nor YAML: "),
    "a list": ("- a\n- b\n", "invalid-input", "it holds no settings"),
    "nothing": ("", "invalid-input", "it holds no settings"),
    "binary": ("\0\1\2", "invalid-input", "is neither JSON nor YAML"),
    "a key twice": (GOOD + "name: a\nname: b\n", "invalid-input", "'name' stands twice"),
    "aliases": ("a: &a [x]\nb: *a\n", "invalid-input", "anchors and aliases are not read"),
    "a Python object": ("a: !!python/object/apply:os.system [id]\n", "invalid-input", "line 1"),
    "a misspelt key": (GOOD.replace("steps", "stepps"), "invalid-input", "did you mean 'steps'?"),
    "no steps": (GOOD.replace("steps: 3", "seed: 1"), "invalid-input", "/train/steps: is missing"),
    "a missing data file": (
        GOOD.replace("bucket: words", "files: [none.txt]"), "not-found", "none.txt"
    ),
    "a directory as data": (GOOD.replace("bucket: words", "files: [.]"), "not-found", "data file"),
}  # fmt: skip


@pytest.mark.parametrize("case", JOB_FILES)
@pytest.mark.usefixtures("told_where")
async def test_a_job_file_that_cannot_be_used_is_refused(
    world: World, case: str, tmp_path: Path
) -> None:
    text, code, said = JOB_FILES[case]
    file = tmp_path / "job.yaml"
    file.write_text(text)
    before = everything(world.data)
    told = await world.swarm("train", "--config", str(file), "--pool", POOL, "-q")
    check(told, code, (said,))
    assert everything(world.data) == before


@pytest.mark.usefixtures("told_where")
async def test_what_is_no_job_file_at_all_is_refused(world: World, tmp_path: Path) -> None:
    large = tmp_path / "large.yaml"
    with large.open("wb") as file:
        file.truncate(100_000_000)
    missing = str(tmp_path / "none.yaml")
    before = everything(world.data)
    for name, code, said in (
        (missing, "not-found", "there is no job file"),
        (str(tmp_path), "invalid-input", "cannot be read: Is a directory"),
        (str(large), "too-large", "is larger than 1 MB: it is no job file"),
        ("x" * 5000, "invalid-input", "cannot be read: File name too long"),
    ):
        for words in (["train"], ["plan"], ["jobs", "plan"]):
            told = await world.swarm(*words, "--config", name, "--pool", POOL)
            check(told, code, (said,))
    assert everything(world.data) == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("train.steps", "is not KEY=VALUE"),
        ("=3", "is not KEY=VALUE"),
        ("train.stepps=3", "did you mean 'steps'?"),
        ("train.steps=[", "has no readable value"),
        ("name.x=3", "'name' holds a value, not settings"),
        ("train.steps=nan", "/train/steps: input should be"),
    ],
)
@pytest.mark.usefixtures("told_where")
async def test_a_change_of_a_job_file_that_cannot_be_is_refused(
    world: World, tmp_path: Path, change: str, said: str
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(GOOD + "name: x\n")
    words = ("plan", "--config", str(file), "--pool", POOL, "--set", change)
    check(await world.swarm(*words), "invalid-input", (said,))


@pytest.mark.usefixtures("told_where")
async def test_a_leader_that_is_not_there_and_a_wrong_timeout_are_said(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = await world.swarm("pools", "list", "--leader", f"http://127.0.0.1:{port}")
    check(told, "unreachable", (f"no leader answers at http://127.0.0.1:{port}", "swarm leader"))
    for wrong in ("soon", "0", "-1", "nan", "inf"):
        told = await world.swarm("pools", "list", "--timeout", wrong)
        check(told, "invalid-input", ("is no number of seconds",))
    monkeypatch.delenv("SWARM_TOKEN")
    told = await world.swarm("pools", "list", "--token-file", "/no/such/file")
    check(told, "invalid-input", ("/no/such/file",))
