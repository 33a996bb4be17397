"""Hub data sets: WikiText where no data is named, a commit in the plan, each refusal clear."""

import asyncio
import contextlib
import io
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from control.clock import HandClock
from control.datasets.hub_data import FetchTerms, HubData, HubDataSets, HubFile, Wanted, choose
from tests.conftest import ROOT
from tests.flow.hub_stand_in import COMMIT, Repository, open_hub
from tests.flow.open_leader import POOL, TEXT
from tests.flow.refusals import World, everything
from tests.flow.refusing_leaders import process_world
from transport.errors import SwarmError

pytestmark = pytest.mark.usefixtures("told_where")

WIKITEXT = "datasets/Salesforce/wikitext"
LINES = ["", " = The swarm = \n", "", *[f" {TEXT.strip()} \n"] * 60, " = = Part = = \n", " word \n"]


def parquet(rows: list[dict[str, Any]]) -> bytes:
    """A table as a file's bytes."""
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out)
    return out.getvalue()


def repositories() -> dict[str, Repository]:
    """Name -> what the hub has under it."""
    text = parquet([{"text": line} for line in LINES * 3])
    pairs = parquet([{"prompt": f"the {n}", "completion": "was"} for n in range(30)])
    return {
        WIKITEXT: Repository(
            {
                "README.md": b"about",
                "wikitext-2-raw-v1/train-00000-of-00001.parquet": text,
                "wikitext-2-raw-v1/test-00000-of-00001.parquet": parquet([{"text": "x"}]),
                "wikitext-103-raw-v1/train-00000-of-00001.parquet": b"not asked for",
            }
        ),
        "datasets/org/pairs": Repository(
            {"data/train-00000-of-00002.parquet": pairs, "data/train-00001-of-00002.parquet": pairs}
        ),
        "datasets/org/lines": Repository({"train.jsonl": b'{"text": "the word was"}\n' * 40}),
        "datasets/org/wrong": Repository({"train.jsonl": b'{"text": 1}\n'}),
        "datasets/org/odd": Repository({"data/train-0.parquet": b"PAR1 and nothing"}),
        "datasets/org/images": Repository({"data/train-0.tar": b"x"}),
        "datasets/org/two": Repository({"en/train-0.parquet": text, "de/train-0.parquet": text}),
        "datasets/org/large": Repository({"train.txt": b"the word was " * 100_000}),
        "datasets/org/gated": Repository(refusal=(401, "GatedRepo")),
        "datasets/org/busy": Repository(refusal=(429, "")),
        "datasets/org/down": Repository(refusal=(500, "")),
    }


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    """A hub of data sets."""
    with open_hub(repositories()) as url:
        yield url


@pytest.fixture(scope="module")
async def world(
    hub: str, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> AsyncIterator[World]:
    """A leader that asks this hub."""
    at = tmp_path_factory.mktemp("leader")
    told = {
        "HF_ENDPOINT": hub, "HF_HOME": str(at / "hf"), "HF_HUB_OFFLINE": "0",
        "SWARM_MAX_DATASET_BYTES": "1000000",
    }  # fmt: skip
    async with process_world(at, **told) as opened:
        yield opened


def config(**data: Any) -> dict[str, Any]:
    """A job on the tiny model."""
    train = {"steps": 3, "seq_len": 8, "batch_size": 2}
    return {"model": {"id": "local:tiny"}, "train": train, **({"data": data} if data else {})}


async def test_a_job_that_names_no_data_trains_on_wikitext_at_a_commit(world: World) -> None:
    plan = await world.post("/jobs/plan", pool=POOL, config=config())
    assert plan["data"]["dataset"] == f"Salesforce/wikitext@{COMMIT}"
    assert plan["data"]["rows"] == 3  # articles, not lines
    assert plan["data"]["sequences"] > 10
    (chosen,) = [one for one in plan["chosen"] if one["setting"] == "data.dataset"]
    assert "names no data" in chosen["reason"]
    job = await world.post("/jobs", pool=POOL, config=config(), plan_id=plan["plan_id"])
    assert job["state"] in ("starting", "pending")
    await world.post(f"/jobs/{job['job_id']}/cancel")


@pytest.mark.parametrize(
    "data, rows",
    [
        ({"dataset": "org/pairs@main"}, 60),
        ({"dataset": "org/lines"}, 40),
        ({"dataset": "org/two", "subset": "de"}, 3 * len(LINES)),
        ({"dataset": "org/pairs", "held_out": {"by": "random", "rows": 9}}, 60),
    ],
)
async def test_a_data_set_is_fetched_once_by_its_files(
    world: World, data: dict[str, Any], rows: int
) -> None:
    plan = await world.post("/jobs/plan", pool=POOL, config=config(**data))
    assert plan["data"]["rows"] == rows
    assert plan["data"]["dataset"].endswith(f"@{COMMIT}")
    if "held_out" in data:
        assert plan["data"]["held_out_sequences"] == 9
    before = everything(world.data)["files"]
    await world.post("/jobs/plan", pool=POOL, config=config(**data))
    assert everything(world.data)["files"] == before
    assert list((world.data / "datasets").glob("*.part")) == []


REFUSED: dict[str, tuple[str, tuple[str, ...]]] = {
    "org/unknown": ("not-found", ("there is no data set 'org/unknown' here", "HF_TOKEN")),
    "org/pairs@gone": ("not-found", ("there is no data set 'org/pairs@gone' here",)),
    "org/gated": ("forbidden", ("org/gated is gated", "set HF_TOKEN at the leader")),
    "org/busy": ("rate-limited", ("too often",)),
    "org/down": ("unavailable", ("answers 500, and data set org/down is not on this", "bucket")),
    "org/two": ("invalid-input", ("has several subsets: de, en", "data.subset")),
    "org/images": ("invalid-input", ("has no train file that is read",)),
    "org/wrong": ("invalid-input", ("train.jsonl: line 1 has a text that is not text",)),
    "org/odd": ("invalid-input", ("train-0.parquet cannot be read as parquet",)),
    "org/large": ("too-large", ("has 1.3 MB of train data, more than the 1 MB",)),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_data_set_that_cannot_be_had_is_refused_with_the_reason(
    world: World, name: str
) -> None:
    code, words = REFUSED[name]
    ask = {"pool": POOL, "config": config(dataset=name)}
    await world.refused("jobs_plan", ask, code, *words, but=("mcp legacy",))
    assert list((world.data / "datasets").glob("*.part")) == []


async def test_without_the_hub_a_fetched_copy_is_used_and_another_is_refused(world: World) -> None:
    """This process is offline: the same folder, without the leader that filled it."""
    await world.post("/jobs/plan", pool=POOL, config=config(dataset="org/lines"))
    terms = FetchTerms(10**6, 10**9)
    sets = HubDataSets(world.data / "datasets", terms, HandClock())
    for revision in (None, COMMIT[:12]):
        found = await sets.resolve(Wanted("org/lines", revision, None, "train"))
        fetched = await sets.get(found)
        assert fetched is not None
        assert fetched.data.pinned == f"org/lines@{COMMIT}"
    with pytest.raises(SwarmError) as refusal:
        await sets.resolve(Wanted("org/lines", None, None, "test"))
    assert refusal.value.code == "unavailable"
    assert "is not on this leader's disk" in refusal.value.message


async def test_a_job_waits_with_how_much_of_its_data_set_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[float] = []
    go_on = asyncio.Event()

    async def slow(asked: Any, limits: Any, progress: Any) -> dict[str, Any]:
        progress({"done": 500})
        await go_on.wait()
        raise SwarmError("unavailable", "the hub went away", hint="try again")

    monkeypatch.setattr("control.datasets.hub_data.run_child", slow)
    clock = HandClock()
    sets = HubDataSets(tmp_path, FetchTerms(10**6, 10**9), clock)
    wanted = Wanted("org/data", None, None, "train")
    data = HubData(wanted, COMMIT, (HubFile("train.txt", 1000, "train.txt"),))
    sets.on_moved = lambda: heard.append(sets.share(data))
    assert await sets.get(data, wait_s=0.05) is None
    assert (sets.share(data), heard) == (0.5, [0.5])
    go_on.set()
    for _ in range(2):  # the second is told from memory: the hub is not asked again at once
        with pytest.raises(SwarmError) as refusal:
            await sets.get(data, wait_s=5)
        assert refusal.value.message == "the hub went away"
    assert list(tmp_path.glob("*")) == []
    await sets.close()


async def test_a_download_ends_with_its_leader_and_leaves_nothing(tmp_path: Path) -> None:
    asked_it = asyncio.Event()

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked_it.set()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(never, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "control.datasets.fetch_child",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, cwd=ROOT,
        env={**os.environ, "HF_ENDPOINT": url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path)},
    )  # fmt: skip
    into = tmp_path / "data.part"
    into.mkdir()
    asked = {
        "into": str(into), "limit_bytes": 1000, "repository": "org/d", "shown": "org/d",
        "revision": COMMIT, "files": [{"path": "train.txt", "name": "train.txt"}],
    }  # fmt: skip
    assert child.stdin is not None
    child.stdin.write(json.dumps(asked).encode() + b"\n")
    async with asyncio.timeout(30):
        await asked_it.wait()
        child.stdin.close()  # as the system does for a leader that is killed
        assert await child.wait() == 4
    assert not into.exists()
    server.close()


def test_files_are_chosen_by_split_and_format() -> None:
    listed = [(name, 1) for name in (
        "data/train-00000-of-00001.parquet", "data/train-extra.jsonl", "data/training.parquet",
        "data/test-0.parquet", "../train-evil.parquet", ".hidden/train-0.parquet", "train/a.csv",
    )]  # fmt: skip
    found = choose(listed, Wanted("o/d", None, None, "train"))
    assert [file.path for file in found] == ["data/train-00000-of-00001.parquet"]
    found = choose(listed[6:], Wanted("o/d", None, None, "train"))
    assert [(file.path, file.name) for file in found] == [("train/a.csv", "a.csv")]
    with pytest.raises(SwarmError) as refusal:
        choose(listed, Wanted("o/d", None, "fr", "train"))
    assert "in subset 'fr'" in refusal.value.message
