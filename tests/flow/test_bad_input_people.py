"""Who may not: wrong, revoked and lesser tokens, pools that are not theirs, too many tries."""

import hashlib
import json

import pytest

from tests.flow.open_leader import JOB, POOL
from tests.flow.refusals import World, check, everything, rest_told
from transport.api.catalog import OPERATIONS

pytestmark = pytest.mark.usefixtures("told_where")


async def test_a_secret_that_is_no_good_opens_nothing(world: World) -> None:
    before = everything(world.data)
    for secret in ("swm_" + "x" * 43, world.revoked):
        told = await world.by_rest(OPERATIONS["pools_create"], {"pool": "ann/x"}, secret)
        check(told, "unauthenticated", ("this access token is not valid here", "swarm tokens"))
        async with world.http(secret) as client:
            said = await client.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
        check(rest_told(said), "unauthenticated")
    assert everything(world.data) == before


async def test_a_bad_token_on_the_command_line_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = everything(world.data)
    monkeypatch.setenv("SWARM_TOKEN", world.revoked)
    told = await world.swarm("pools", "create", "ann/x")
    check(told, "unauthenticated", ("this access token is not valid here",))
    monkeypatch.setenv("SWARM_TOKEN", world.reader)
    told = await world.swarm("pools", "create", "ann/x")
    check(told, "forbidden", ("needs the scope admin; this token has read",))
    monkeypatch.setenv("SWARM_TOKEN", world.elsewhere)
    told = await world.swarm("jobs", "list", "--pool", POOL)
    check(told, "not-found", (f"there is no pool {POOL!r} here",))
    assert everything(world.data) == before


@pytest.mark.parametrize("name", [n for n, op in OPERATIONS.items() if op.scope != "read"])
async def test_a_reader_changes_nothing(world: World, name: str) -> None:
    operation = OPERATIONS[name]
    before = everything(world.data)
    sample = {"token_id": "t-zzzzzzzz", "fellow_id": "f-zzzzzzzz", "job_id": "j-zzzzzzzz",
              "bucket": "words", "name": "x"}  # fmt: skip
    ask = {key: value for key, value in sample.items() if f"{{{key}}}" in operation.path}
    told = await world.by_rest(operation, ask, world.reader)
    said = f"{name} needs the scope {operation.scope}; this token has read"
    check(told, "forbidden", (said, "swarm tokens create"))
    assert everything(world.data) == before


# pools_create makes its pool.
IN_A_POOL = [
    name
    for name, operation in OPERATIONS.items()
    if "pool" in operation.asks.model_fields and name != "pools_create"
]


@pytest.mark.parametrize("name", IN_A_POOL)
async def test_a_pool_out_of_sight_is_like_one_that_is_not_there(world: World, name: str) -> None:
    operation = OPERATIONS[name]
    told = []
    more = {"bucket": "words", "name": "a.txt", "content": "x", "config": JOB, "unpinned": True}
    more |= {"model": "local:tiny"}
    ask = {key: value for key, value in more.items() if key in operation.asks.model_fields}
    for pool in (POOL, "no/where"):
        one = await world.by_rest(operation, ask | {"pool": pool}, world.elsewhere)
        check(one, "not-found", (f"there is no pool {pool!r} here",))
        told.append(json.dumps(one.problem).replace(pool, "POOL"))
    assert told[0] == told[1]


async def test_too_many_wrong_secrets_are_held_back_and_a_good_one_is_not(world: World) -> None:
    codes = []
    for number in range(14):
        secret = "swm_" + hashlib.sha256(f"{number}".encode()).hexdigest()
        told = await world.by_rest(OPERATIONS["pools_list"], {}, secret)
        codes.append(told.problem["code"])
    assert codes[-1] == "rate-limited"
    check(told, "rate-limited", ("too many refused secrets from this address; wait",))
    async with world.http() as client:
        assert (await client.get("/api/v1/pools")).status_code == 200
