"""Data that cannot be trained on: broken files when they are sent, useless ones when planned."""

import json
from typing import Any

import pytest

from tests.flow.open_leader import JOB, POOL
from tests.flow.refusals import World, check, everything, rest_told, run_swarm

pytestmark = pytest.mark.usefixtures("told_where")

GOOD = '{"text": "the word"}\n'
# (content, what is said)
BROKEN_ROWS = {
    "not JSON": (GOOD + "the word\n", "line 2 is not a JSON object"),
    "half a line": (GOOD * 3 + '{"text": "the', "line 4 is not a JSON object"),
    "a list": ('["text"]\n', "line 1 is not a JSON object"),
    "a number": (GOOD + "\n\n7\n", "line 4 is not a JSON object"),
    "deep": ("[" * 100_000 + "\n", "line 1 is not a JSON object"),
    "binary": (GOOD + "a\0b\n", "line 2 is not text: it holds zero bytes"),
    "no known key": ('{"words": "x"}\n', "line 1 has none of text, messages"),
    "text of a wrong type": ('{"text": 7}\n', "line 1 has a text that is not text"),
    "text that is null": (GOOD + '{"text": null}\n', "line 2 has no text"),
    "half a surrogate pair": ('{"text": "\\ud800"}\n', "line 1 has a text with half a surrogate"),
    "prompt alone": ('{"prompt": "x"}\n', "line 1 has no completion"),
    "messages of a wrong type": ('{"messages": "x"}\n', "line 1 has messages that are not a list"),
    "no messages": ('{"messages": []}\n', "line 1 has messages that are not a list"),
    "a message without content": ('{"messages": [{"role": "user"}]}\n', "line 1 has a message"),
    "an unknown role": (
        '{"messages": [{"role": "boss", "content": "x"}]}\n',
        "line 1 has a message whose role is none of system",
    ),
    "nothing to learn": (
        '{"messages": [{"role": "user", "content": "x"}]}\n',
        "line 1 has no message of the assistant",
    ),
    "blank": ("\n  \n", "holds no rows"),
    "text and then a pair": (
        GOOD * 2 + '{"prompt": "x", "completion": "y"}\n',
        "line 3 is prompt-completion, the 2 rows before it are text",
    ),
}


def add(content: str, name: str = "rows.jsonl") -> dict[str, Any]:
    """Arguments of buckets_add."""
    return {"pool": POOL, "bucket": "words", "name": name, "content": content}


@pytest.mark.parametrize("case", BROKEN_ROWS)
async def test_a_broken_data_file_is_refused_by_its_line(world: World, case: str) -> None:
    content, said = BROKEN_ROWS[case]
    problem = await world.refused("buckets_add", add(content), "invalid-input", said)
    if "line" in said:
        assert problem["facts"]["line"] == int(said.split()[1])


async def test_an_empty_file_is_refused(world: World) -> None:
    for name in ("rows.jsonl", "rows.txt"):
        await world.refused("buckets_add", add("", name), "invalid-input", "no rows", but=("cli",))
        told = await world.by_cli_file("buckets_add", add("", name))
        check(told, "invalid-input", ("is empty",))


async def test_a_binary_file_is_refused_whatever_its_name(world: World) -> None:
    before = everything(world.data)
    headers = {"content-type": "application/octet-stream"}
    for name in ("rows.jsonl", "rows.txt"):
        file = world.folder / name
        for content in (b"\x89PNG\r\n\x1a\n\0\0", b"\xff\xfe{}", b"PK\x03\x04\xb5"):
            file.write_bytes(content)
            path = f"/api/v1/buckets/words/files?pool={POOL}&name={name}"
            async with world.http(**headers) as client:
                told = rest_told(await client.post(path, content=content))
            check(told, "invalid-input", (f"{name}: line 1 is not",))
            said = await world.swarm("buckets", "add", "words", str(file), "--pool", POOL)
            check(said, "invalid-input", (f"{name}: line 1 is not",))
    assert everything(world.data) == before


async def test_a_line_that_is_too_long_is_refused(world: World) -> None:
    before = everything(world.data)
    headers = {"content-type": "application/octet-stream"}
    async with world.http(**headers) as client:
        path = f"/api/v1/buckets/words/files?pool={POOL}&name=rows.jsonl"
        told = rest_told(await client.post(path, content=b'{"text": "' + b"x" * 9_000_000))
    check(told, "invalid-input", ("line 1 is longer than 8 MB",))
    assert everything(world.data) == before


NAMES = (
    "../../etc/passwd.txt", "/etc/passwd.txt", "a/b.txt", "..", ".hidden.txt", "x" * 200 + ".txt",
    "C:\\x.txt", "a\0b.txt", "ä.txt", "a\nb.txt", "",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
async def test_a_name_that_is_no_plain_file_name_is_refused(world: World, name: str) -> None:
    await world.refused(
        "buckets_add", add("the word", name), "invalid-input", "/name: ", but=("cli",)
    )
    ask = {"name": "tiny2", "file": name, "content": "{}"}
    await world.refused("models_add", ask, "invalid-input", "/file: ", but=("cli",))


async def test_a_file_of_another_kind_is_refused_by_its_ending(world: World) -> None:
    said = "rows.bin ends neither in .jsonl nor in .txt"
    await world.refused("buckets_add", add("a,b", "rows.bin"), "invalid-input", said, but=("cli",))


async def test_another_file_under_a_taken_name_and_an_unknown_bucket_are_refused(
    world: World,
) -> None:
    said = "already holds another file 'a.txt'"
    await world.refused("buckets_add", add("new", "a.txt"), "conflict", said)
    ask = add("the word", "b.txt") | {"bucket": "none"}
    await world.refused("buckets_add", ask, "not-found", "there is no bucket 'none' here")
    taken = {"pool": POOL, "bucket": "words"}
    await world.refused("buckets_create", taken, "conflict", "already a bucket 'words'")


async def make_bucket(world: World, bucket: str, content: str, name: str = "rows.jsonl") -> None:
    """A bucket with one file."""
    await world.post("/buckets", pool=POOL, bucket=bucket)
    if content:
        await world.post(f"/buckets/{bucket}/files", pool=POOL, name=name, content=content)


def job_on(bucket: str, model: str = "local:tiny", **train: Any) -> dict[str, Any]:
    """A job file."""
    return {
        "model": {"id": model},
        "data": {"bucket": bucket},
        "train": {"steps": 3, "seq_len": 8, **train},
    }


PAIR = json.dumps({"prompt": "the word " * 40, "completion": "was"}) + "\n"
USELESS: dict[str, tuple[str, str, dict[str, Any], tuple[str, ...]]] = {
    "empty": ("", "rows.jsonl", {}, ("the bucket is empty", "add rows with buckets_add")),
    "less-than-a-sequence": (
        "the word",
        "a.txt",
        {"seq_len": 128},
        ("the data has 3 tokens, less than one sequence of 128",),
    ),
    "less-than-a-batch": (
        "the word was with all " * 20,
        "a.txt",
        {"batch_size": 64},
        ("shorter than one batch", "sequences of 8 tokens, a batch needs 64"),
    ),
    "all-masked": (
        PAIR * 4,
        "rows.jsonl",
        {},
        (
            "all targets of the ",
            "are masked at 8 tokens: 3 rows, first rows.jsonl line 1",
            "longer train.seq_len",
        ),
    ),
}


@pytest.mark.parametrize("case", USELESS)
async def test_data_that_cannot_be_trained_on_is_refused_with_its_numbers(
    world: World, case: str
) -> None:
    content, name, train, words = USELESS[case]
    await make_bucket(world, case, content, name)
    ask = {"pool": POOL, "config": job_on(case, **train)}
    await world.refused("jobs_plan", ask, "invalid-input", *words)
    await world.refused("jobs_submit", {**ask, "unpinned": True}, "invalid-input", *words)


FAULTY = [
    {"prompt": "the word " * 9, "completion": "was"},
    {"prompt": "the", "completion": "word " * 20},
    {"prompt": "the", "completion": "<eos> <eos>"},
    *[{"prompt": "with", "completion": "all"}] * 3,
    {"prompt": "in", "completion": "the beginning"},
]


async def test_every_face_tells_what_would_spoil_a_run(world: World) -> None:
    await make_bucket(world, "faulty", "".join(json.dumps(row) + "\n" for row in FAULTY))
    ask = {"pool": POOL, "config": job_on("faulty", seq_len=12)}
    plan = await world.post("/jobs/plan", **ask)
    found = {one["kind"]: (one["count"], one["first"]) for one in plan["data"]["findings"]}
    assert found == {
        "prompt-too-long": (1, "rows.jsonl line 1"),
        "truncated": (2, "rows.jsonl line 1"),
        "eos-doubled": (1, "rows.jsonl line 3"),
        "duplicates": (2, "rows.jsonl line 5"),
    }
    told = await world.tools["mcp modern"].call_tool("jobs_plan", ask)
    assert "1 of 7 rows have a prompt that fills the sequence" in str(told.content[0])
    (world.folder / "faulty.json").write_text(json.dumps(ask["config"]))
    for command in ("plan", "train"):
        words = [command, "--config", str(world.folder / "faulty.json"), "--pool", POOL]
        code, out, _ = await run_swarm(*words, *(["--plan"] if command == "train" else []))
        assert code in (0, 3)
        assert "Found    1 of 7 rows end with EOS twice (first: rows.jsonl line 3)" in out
        assert "Found    2 of 7 rows have the same tokens as a row before them" in out
        assert "Sample   the word the word" in out


async def test_a_job_without_a_bucket_and_with_an_unknown_one_is_refused(world: World) -> None:
    for data, code, said in (
        ({}, "unavailable", "data set Salesforce/wikitext is not on this leader's disk"),
        ({"bucket": "a", "dataset": "o/d"}, "invalid-input", "bucket and dataset exclude"),
        ({"files": ["/etc/passwd"]}, "invalid-input", "names a bucket"),
        ({"dataset": "org/data"}, "unavailable", "data set org/data is not on this leader's disk"),
        ({"dataset": "../data"}, "invalid-input", "/config/data/dataset"),
        ({"bucket": "none"}, "not-found", "there is no bucket 'none' here"),
    ):
        ask = {"pool": POOL, "config": {**JOB, "data": data}}
        await world.refused("jobs_plan", ask, code, said)
        await world.refused("jobs_submit", {**ask, "unpinned": True}, code, said)


async def test_a_request_id_with_other_arguments_is_refused(world: World) -> None:
    ask = {"pool": POOL, "bucket": "once", "request_id": "r-1"}
    await world.post("/buckets", **ask)
    await world.post("/buckets", **ask)
    said = "request_id 'r-1' was used before, with other arguments"
    await world.refused("buckets_create", ask | {"bucket": "twice"}, "conflict", said)
    other = {"pool": POOL, "config": JOB, "unpinned": True, "request_id": "r-1"}
    await world.refused("jobs_submit", other, "conflict", said)
    words = add("the word", "b.txt") | {"request_id": "r-1"}
    await world.refused("buckets_add", words, "conflict", said)
