"""Arguments that are wrong: unknown, misspelt, of a wrong type, out of range, no number, too deep.

Made from the declarations, so that a new operation or a new argument is tried by itself.
"""

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from mcp_server.tools import PROBLEM_KEY
from tests.flow.open_leader import JOB, POOL
from tests.flow.refusals import World, check, everything, rest_told
from transport.api.catalog import OPERATIONS
from transport.api.job_config import JobConfig
from transport.api.operation import Operation

pytestmark = pytest.mark.usefixtures("told_where")

SAMPLES: dict[str, Any] = {
    "pool": POOL,
    "bucket": "words",
    "name": "sample",
    "job_id": "j-zzzzzzzz",
    "fellow_id": "f-zzzzzzzz",
    "token_id": "t-zzzzzzzz",
    "config": JOB,
    "content": "the word",
}
# The command line sends whole files and folders there: tests of data and models have them.
CLI_APART = ("buckets_add", "models_add")


def sample(operation: Operation) -> dict[str, Any]:
    """The required arguments of an operation, well formed."""
    fields = operation.asks.model_fields
    needed = {key for key, field in fields.items() if field.is_required()}
    return {key: SAMPLES[key] for key in needed}


def misspelt(operation: Operation) -> tuple[str, str]:
    """(an argument with a letter too many, the right one; "" when there is none)."""
    fields = list(operation.asks.model_fields)
    # The last one: first ones are positional on the command line, where nobody can misspell them.
    return (f"{fields[-1]}x", fields[-1]) if fields else ("polo", "")


@pytest.mark.parametrize("name", OPERATIONS)
async def test_an_unknown_argument_is_named_with_the_nearest_right_one(
    world: World, name: str
) -> None:
    operation = OPERATIONS[name]
    wrong, right = misspelt(operation)
    ask = {**sample(operation), wrong: "1"}
    nearest = f"did you mean {right!r}?" if right else "leave it out"
    words = (f"/{wrong}: there is no such argument", nearest)
    await world.refused(name, ask, "invalid-input", *words, but=("cli",))
    if name in CLI_APART:
        return
    flag = f"--{wrong.replace('_', '-')}"
    told = await world.swarm(*operation.words, flag, "1")
    check(told, "invalid-input", (flag, f"see `swarm {' '.join(operation.words)} --help`"))


@pytest.mark.parametrize("name", [name for name, op in OPERATIONS.items() if sample(op)])
async def test_a_missing_argument_is_named(world: World, name: str) -> None:
    operation = OPERATIONS[name]
    in_path = {key for key in sample(operation) if f"{{{key}}}" in operation.path}
    kept = {key: value for key, value in sample(operation).items() if key in in_path}
    missing = sorted(set(sample(operation)) - in_path)
    words = [f"/{key}: is missing" for key in missing] or [f"/{key}: is missing" for key in in_path]
    if missing:
        await world.refused(name, kept, "invalid-input", *words, but=("cli",))
    else:
        await world.refused(name, {}, "invalid-input", *words, but=("cli", "rest"))


def leaves(schema: dict[str, Any], root: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """(a/b path, schema of every type it may have) of each argument in a schema."""
    for name, told in schema.get("properties", {}).items():
        for one in kinds(told, root):
            yield f"{path}/{name}", one
            yield from leaves(one, root, f"{path}/{name}")


def kinds(told: dict[str, Any], root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The alternatives of a schema, references followed."""
    if "$ref" in told:
        yield from kinds(root["$defs"][told["$ref"].rpartition("/")[2]], root)
    for one in told.get("anyOf", []):
        yield from kinds(one, root)
    if "type" in told or "const" in told or "enum" in told:
        yield told


def beyond(told: dict[str, Any]) -> Iterator[float | str | list[Any]]:
    """Values just outside what a schema allows."""
    if "minimum" in told:
        yield told["minimum"] - 1
    if "exclusiveMinimum" in told:
        yield told["exclusiveMinimum"]
    if "maximum" in told:
        yield told["maximum"] + 1
    if "exclusiveMaximum" in told:
        yield told["exclusiveMaximum"]
    if "maxLength" in told:
        yield "x" * (told["maxLength"] + 1)
    if "pattern" in told:
        yield from ("../../etc/passwd", "", "x" * 5000)
    if "enum" in told or "const" in told:
        yield "no-such"


def put(values: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The values with one of them changed."""
    changed: dict[str, Any] = json.loads(json.dumps(values))
    *folders, last = path.strip("/").split("/")
    place = changed
    for folder in folders:
        place = place.setdefault(folder, {})
    place[last] = value
    return changed


def arguments() -> Iterator[Any]:
    """(operation, path, a wrong value) for every argument of every operation, and every setting."""
    for name, operation in OPERATIONS.items():
        if name in ("jobs_submit",):  # the same job file as jobs_plan
            continue
        schema = operation.asks.model_json_schema()
        for path, told in leaves(schema, schema):
            for number, value in enumerate(beyond(told)):
                yield pytest.param(name, path, value, id=f"{name}{path}-{number}")


@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_value_out_of_range_is_refused_by_its_place(world: World, name: str) -> None:
    before = everything(world.folder / "data")
    tried = [param.values for param in arguments() if param.values[0] == name]
    for _, path, value in tried:
        operation = OPERATIONS[name]
        ask = put(sample(operation), path, value)
        for face in ("mcp legacy", "mcp modern"):
            told = await world.by_mcp(face, operation, ask)
            check(told, "invalid-input")
            assert path in told.problem["detail"], told.problem
        if operation.method == "POST" and f"{{{path[1:]}}}" not in operation.path:
            check(await world.by_rest(operation, ask), "invalid-input", (path,))
    assert everything(world.folder / "data") == before


def test_every_number_of_a_job_file_has_a_range_or_a_reason() -> None:
    schema = JobConfig.model_json_schema()
    limits = ("minimum", "exclusiveMinimum", "enum", "const")
    open_ended = [
        path
        for path, told in leaves(schema, schema)
        if told.get("type") in ("number", "integer") and not any(one in told for one in limits)
    ]
    assert open_ended == []


WRONG_TYPES = [
    ("jobs_plan", {"config": 7}, "/config"),
    ("jobs_plan", {"config": {**JOB, "train": []}}, "/config/train"),
    ("jobs_plan", {"config": {**JOB, "train": {"steps": "3"}}}, "/config/train/steps"),
    ("jobs_plan", {"config": {**JOB, "train": {"steps": 3.5}}}, "/config/train/steps"),
    ("jobs_plan", {"config": {**JOB, "train": {"steps": True}}}, "/config/train/steps"),
    ("jobs_plan", {"config": {**JOB, "train": {"steps": None}}}, "/config/train/steps"),
    ("jobs_plan", {"config": {**JOB, "exclude_cards": "none"}}, "/config/exclude_cards"),
]


@pytest.mark.parametrize(("name", "changes", "place"), WRONG_TYPES)
async def test_a_wrong_type_is_refused_by_its_place_on_every_face(
    world: World, name: str, changes: dict[str, Any], place: str
) -> None:
    if isinstance(changes["config"], dict):
        ask = {**sample(OPERATIONS[name]), **changes}
        await world.refused(name, ask, "invalid-input", f"{place}: input should be")
    else:
        ask = {**sample(OPERATIONS[name]), **changes}
        await world.refused(name, ask, "invalid-input", f"{place}: input should be", but=("cli",))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["jobs", "list", "--limit", "many"], "/limit: input should be a valid integer"),
        (["jobs", "list", "--limit", "0"], "/limit: input should be greater than or equal to 1"),
        (["jobs", "list", "--state", "asleep"], "'asleep' is not one of 'pending', 'starting'"),
        (["jobs", "records", "j-zzzzzzzz", "--from-step", "1.5"], "/from_step: input should be"),
        (["jobs", "wait", "j-zzzzzzzz", "--timeout-s", "nan"], "number"),
        (["fellows", "list", "--pool", "NOT A POOL"], "/pool: string should match pattern"),
        (["tokens", "create", "x", "--expires-days", "inf"], "/expires_days: input should be"),
        (["jobs", "lisst"], "lisst"),
        (["jbos"], "jbos"),
        (["jobs", "show"], "JOB_ID"),
        (["jobs", "show", "j-1", "extra"], "extra"),
    ],
)
async def test_a_wrong_word_on_the_command_line_is_refused(
    world: World, words: list[str], said: str
) -> None:
    before = everything(world.folder / "data")
    check(await world.swarm(*words), "invalid-input", (said,))
    assert everything(world.folder / "data") == before


NO_NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999")


@pytest.mark.parametrize("value", NO_NUMBERS)
async def test_what_is_no_finite_number_is_refused_on_every_face(world: World, value: str) -> None:
    before = everything(world.folder / "data")
    raw = json.dumps({"pool": POOL, "config": put(JOB, "/train/learning_rate", "HERE")})
    raw = raw.replace('"HERE"', value)
    async with world.http(**{"content-type": "application/json"}) as client:
        for path in ("/jobs/plan", "/jobs"):
            told = rest_told(await client.post(f"/api/v1{path}", content=raw))
            check(told, "invalid-input", ("/config/train/learning_rate", "finite number"))
        for problem in await raw_tool_calls(world, "jobs_plan", raw):
            assert problem["code"] == "invalid-input", problem
            assert "/config/train/learning_rate" in problem["detail"]
    file = world.folder / "no-number.yaml"
    as_yaml = {"NaN": ".nan", "Infinity": ".inf", "-Infinity": "-.inf"}.get(value, value)
    file.write_text(
        f"model: {{id: local:tiny}}\ndata: {{bucket: words}}\n"
        f"train: {{steps: 3, learning_rate: {as_yaml}}}\n"
    )
    told = await world.swarm("train", "--config", str(file), "--pool", POOL)
    check(told, "invalid-input", ("/train/learning_rate", "finite number"))
    assert everything(world.folder / "data") == before
    assert not math.isfinite(float(value))


async def raw_tool_calls(world: World, tool: str, arguments: str) -> list[dict[str, Any]]:
    """The problems that both eras give for arguments sent letter by letter."""
    return [
        (json.loads(answer)["result"].get("_meta") or {})[PROBLEM_KEY]
        for answer in await raw_answers(world, tool, arguments)
    ]


async def raw_answers(world: World, tool: str, arguments: str) -> list[str]:
    """What /mcp answers to a body written by hand, in both eras."""
    told = []
    accept = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    async with world.http(**accept) as client:
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"}}}  # fmt: skip
        opened = await client.post("/mcp", json=hello)
        legacy = {"mcp-session-id": opened.headers["mcp-session-id"],
                  "mcp-protocol-version": "2025-11-25"}  # fmt: skip
        modern = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call",
                  "mcp-name": tool}  # fmt: skip
        meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {}}  # fmt: skip
        for headers, more in ((legacy, {}), (modern, {"_meta": meta})):
            params = json.dumps({"name": tool, "arguments": "HERE", **more})
            body = f'{{"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {params}}}'
            body = body.replace('"HERE"', arguments)
            answer = await client.post("/mcp", content=body, headers=headers)
            lines = [line for line in answer.text.splitlines() if line.startswith("data: {")]
            told.append(lines[-1].removeprefix("data: ") if lines else answer.text)
    return told


DEEP = 100_000


@pytest.mark.parametrize("depth", [300, DEEP])
async def test_json_nested_too_deep_is_refused_and_the_leader_works_on(
    world: World, depth: int
) -> None:
    before = everything(world.folder / "data")
    nest = "[" * depth + "]" * depth
    for raw in (nest, f'{{"pool": "{POOL}", "config": {nest}}}'):
        async with world.http(**{"content-type": "application/json"}) as client:
            check(rest_told(await client.post("/api/v1/jobs/plan", content=raw)), "invalid-input")
            listed = await client.get("/api/v1/pools")
        assert listed.status_code == 200
        for answer in await raw_answers(world, "jobs_plan", raw):
            told = json.loads(answer)
            assert "error" in told or told["result"]["isError"], told
    for ending in ("json", "yaml"):
        file = world.folder / f"deep.{ending}"
        file.write_text(f'{{"model": {nest}}}' if ending == "json" else f"model: {nest}")
        told = await world.swarm("train", "--config", str(file), "--pool", POOL)
        check(told, "invalid-input")
    assert everything(world.folder / "data") == before


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "/pool: is missing"),
        (b"{", "is not JSON"),
        (b"[]", "one JSON object"),
        (b"null", "one JSON object"),
        (b"\xff\xfe", "is not JSON"),
        (b'{"pool": "\\ud800/x"}', "invalid JSON"),
    ],
)
async def test_a_body_that_is_no_object_is_refused(world: World, raw: bytes, said: str) -> None:
    before = everything(world.folder / "data")
    async with world.http(**{"content-type": "application/json"}) as client:
        told = rest_told(await client.post("/api/v1/pools", content=raw))
    check(told, "invalid-input", (said,))
    assert everything(world.folder / "data") == before


async def test_a_form_and_an_argument_given_twice_are_refused(world: World) -> None:
    async with world.http() as client:
        form = rest_told(await client.post("/api/v1/pools", data={"pool": "ann/x"}))
        twice = rest_told(await client.get("/api/v1/jobs?limit=1&limit=2"))
        apart = {"pool": POOL, "bucket": "other", "name": "a.txt", "content": "x"}
        two = rest_told(await client.post("/api/v1/buckets/words/files", json=apart))
    check(form, "invalid-input", ("one JSON object",))
    check(twice, "invalid-input", ("/limit: is given twice",))
    check(two, "invalid-input", ("/bucket", "the body something else"))
