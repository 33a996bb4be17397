"""Arguments that are wrong: unknown, misspelt, missing, of a wrong type, out of range.

Made from the declarations, so that a new operation or a new argument is tried by itself.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.flow.open_leader import JOB, POOL
from tests.flow.refusals import World, check, everything, put
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
    "model": "local:tiny",
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


def leaves(
    schema: dict[str, Any], root: dict[str, Any], path: str = ""
) -> Iterator[tuple[str, Any]]:
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


def arguments() -> Iterator[Any]:
    """(operation, path, a wrong value) for every argument of every operation, and every setting."""
    for name, operation in OPERATIONS.items():
        if name == "jobs_submit":  # the same job file as jobs_plan
            continue
        schema = operation.asks.model_json_schema()
        for path, told in leaves(schema, schema):
            for number, value in enumerate(beyond(told)):
                yield pytest.param(name, path, value, id=f"{name}{path}-{number}")


@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_value_out_of_range_is_refused_by_its_place(world: World, name: str) -> None:
    before = everything(world.data)
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
    assert everything(world.data) == before


def test_every_number_of_a_job_file_has_a_range_or_a_reason() -> None:
    schema = JobConfig.model_json_schema()
    limits = ("minimum", "exclusiveMinimum", "enum", "const")
    open_ended = [
        path
        for path, told in leaves(schema, schema)
        if told.get("type") in ("number", "integer") and not any(one in told for one in limits)
    ]
    assert open_ended == []


async def test_a_value_that_is_of_none_of_its_types_is_told_once_with_all_of_them(
    world: World,
) -> None:
    for path, value, said in (
        ("/train/batch_size", 0, "/train/batch_size: input should be 'auto' or greater than"),
        (
            "/train/batch_size",
            "big",
            "/train/batch_size: input should be 'auto' or a valid integer",
        ),
        ("/model/quantization", {"bits": 3}, "/model/quantization/bits: input should be 4 or 8"),
        ("/model/quantization", {}, "/model/quantization/bits: is missing"),
        ("/model/quantization", 4, "/model/quantization: input should be 'auto' or 'none' or"),
    ):
        ask = {"pool": POOL, "config": put(JOB, path, value)}
        problem = await world.refused("jobs_plan", ask, "invalid-input", said, but=("cli",))
        assert [one["pointer"] for one in problem["facts"]["errors"]] == [
            "/config" + said.partition(":")[0]
        ]


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
        (
            ["fellows", "list", "--pool", "NOT A POOL"],
            "/pool: should be a pool's name as owner/pool",
        ),
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
    before = everything(world.data)
    check(await world.swarm(*words), "invalid-input", (said,))
    assert everything(world.data) == before
