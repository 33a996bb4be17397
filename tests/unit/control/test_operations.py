"""Operations: one handler each, scopes and pools checked, a change asked for twice happens once."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from anyio.lowlevel import checkpoint

from control.operations.call import Call
from control.operations.registry import handlers
from tests.leader_twins import POOL, Pool, one_chunk, open_pool
from transport.api.catalog import OPERATIONS
from transport.errors import SwarmError

READER = Call("t-readeraa", "read")
BOUND = Call("t-boundaaa", "admin", pools=("eve/lab",))


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    async with open_pool(tmp_path) as made:
        yield made


async def refused(asked: Any) -> SwarmError:
    with pytest.raises(SwarmError) as refusal:
        await asked
    return refusal.value


def test_every_declared_operation_has_one_handler_and_no_handler_is_without_one() -> None:
    assert set(handlers()) == set(OPERATIONS)


@pytest.mark.parametrize("operation", [o.name for o in OPERATIONS.values() if o.scope != "read"])
async def test_a_reader_can_change_nothing(pool: Pool, operation: str) -> None:
    assert (await refused(pool.ask(operation, READER))).code == "forbidden"


async def test_a_wrong_argument_is_named_with_the_nearest_right_one(pool: Pool) -> None:
    error = await refused(pool.ask("jobs_list", poll=POOL))
    assert error.code == "invalid-input"
    assert "'pool'" in error.hint


@pytest.mark.parametrize(
    "operation, arguments",
    [
        ("cluster_status", {}),
        ("fellows_list", {}),
        ("invites_create", {}),
        ("buckets_list", {}),
        ("buckets_create", {"bucket": "b"}),
        ("jobs_list", {}),
        ("models_list", {}),
    ],
)
async def test_a_pool_out_of_sight_and_one_that_is_not_there_look_alike(
    pool: Pool, operation: str, arguments: dict[str, Any]
) -> None:
    hidden = await refused(pool.ask(operation, BOUND, pool=POOL, **arguments))
    absent = await refused(pool.ask(operation, pool="no/where", **arguments))
    assert (hidden.code, absent.code) == ("not-found", "not-found")
    assert hidden.message.replace(POOL, "no/where") == absent.message


async def test_a_fellow_of_another_pool_is_not_found(pool: Pool) -> None:
    fellow = await pool.add_fellow()
    error = await refused(pool.ask("fellows_get", BOUND, fellow_id=fellow.fellow_id))
    assert error.code == "not-found"
    assert (await pool.ask("fellows_list", BOUND)).fellows == []


async def test_the_same_request_again_gets_the_first_answer_and_changes_nothing(
    pool: Pool,
) -> None:
    first = await pool.ask("invites_create", pool=POOL, request_id="r1")
    again = await pool.ask("invites_create", pool=POOL, request_id="r1")
    assert again == first
    assert first.secret
    count = await pool.leader.office.database.read(
        lambda tx: tx.execute("SELECT count(*) FROM invites").fetchone()[0]
    )
    assert count == 1


async def test_fifty_equal_requests_at_once_are_one_change(pool: Pool) -> None:
    asked = (pool.ask("tokens_create", name="x", request_id="r1") for _ in range(50))
    answers = await asyncio.gather(*asked)
    assert len({answer.token_id for answer in answers}) == 1
    assert len((await pool.ask("tokens_list")).tokens) == 1


async def test_a_request_id_with_other_arguments_is_a_conflict_and_is_apart_for_each_caller(
    pool: Pool,
) -> None:
    await pool.ask("buckets_create", pool=POOL, bucket="a", request_id="r1")
    same_id = pool.ask("buckets_create", pool=POOL, bucket="b", request_id="r1")
    assert (await refused(same_id)).code == "conflict"
    other = Call("t-otheraaa", "train")
    await pool.ask("buckets_create", other, pool=POOL, bucket="b", request_id="r1")


async def test_an_upload_is_an_argument_too(pool: Pool) -> None:
    await pool.ask("buckets_create", pool=POOL, bucket="a")

    async def send(data: bytes) -> Any:
        call = Call("t-adminaaa", "admin", upload=one_chunk(data))
        asked = {"pool": POOL, "bucket": "a", "name": "a.txt", "request_id": "r1"}
        return await pool.ask("buckets_add", call, **asked)

    first = await send(b"some words")
    assert await send(b"some words") == first
    assert (await refused(send(b"other words"))).code == "conflict"


async def test_content_of_an_argument_is_replayed_as_well(pool: Pool) -> None:
    await pool.ask("buckets_create", pool=POOL, bucket="a")
    asked: dict[str, Any] = {"pool": POOL, "bucket": "a", "content": '{"text": "x"}'}
    asked["request_id"] = "r1"
    first = await pool.ask("buckets_add", **asked)
    assert await pool.ask("buckets_add", **asked) == first


async def test_a_change_is_finished_although_its_caller_goes_away(pool: Pool) -> None:
    asking = asyncio.ensure_future(pool.ask("buckets_create", pool=POOL, bucket="kept"))
    await checkpoint()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    async with asyncio.timeout(5):
        while not (await pool.ask("buckets_list")).buckets:
            await checkpoint()


async def test_no_secret_is_in_the_database(pool: Pool) -> None:
    invite = await pool.ask("invites_create", pool=POOL, request_id="a")
    token = await pool.ask("tokens_create", name="x", request_id="b")
    await pool.leader.office.database.backup(pool.settings.data / "copy.db")
    held = (pool.settings.data / "copy.db").read_bytes()
    assert invite.invite_id.encode() in held
    assert invite.secret.encode() not in held
    assert token.secret.encode() not in held


async def test_a_token_can_make_none_that_reaches_further_than_itself(pool: Pool) -> None:
    await pool.ask("pools_create", pool="eve/lab")
    assert (await refused(pool.ask("tokens_create", BOUND, name="x"))).code == "forbidden"
    wider = pool.ask("tokens_create", BOUND, name="x", pools=[POOL])
    assert (await refused(wider)).code == "not-found"
    own = await pool.ask("tokens_create", BOUND, name="x", pools=["eve/lab"])
    found = pool.leader.caller(own.secret)
    assert found is not None
    assert found.pools == ("eve/lab",)
    assert (await refused(pool.ask("pools_create", BOUND, pool="eve/two"))).code == "forbidden"


async def test_a_revoked_or_expired_token_opens_nothing_even_after_a_restart(pool: Pool) -> None:
    lasting = await pool.ask("tokens_create", name="a")
    short = await pool.ask("tokens_create", name="b", expires_days=1)
    assert pool.leader.caller(lasting.secret) is not None
    await pool.ask("tokens_revoke", token_id=lasting.token_id)
    await pool.clock.advance(86_401)
    assert pool.leader.caller(lasting.secret) is None
    assert pool.leader.caller(short.secret) is None
    await pool.reopen()
    assert pool.leader.caller(lasting.secret) is None
    states = {row.name: row.state for row in (await pool.ask("tokens_list")).tokens}
    assert states == {"a": "revoked", "b": "expired"}


@pytest.mark.parametrize(
    "online, words",
    [(0, "No fellows connected"), (1, "1 of 2 fellows online"), (2, "2 fellows ready")],
)
async def test_the_header_words_say_how_the_pool_is(pool: Pool, online: int, words: str) -> None:
    fellows = [await pool.add_fellow(), await pool.add_fellow()]
    await pool.clock.advance(16)
    for fellow in fellows[:online]:
        fellow.beat()
    pool.leader.office.registry.sweep()
    pool.leader.office.registry.sweep()
    await pool.clock.advance(9)
    for fellow in fellows[:online]:
        fellow.beat()
    await pool.clock.advance(9)
    for fellow in fellows[:online]:
        fellow.beat()
    pool.leader.office.registry.sweep()
    status = await pool.ask("cluster_status", pool=POOL)
    assert status.words == words
    assert status.card_total_bytes == (4 * 10**9 * online or None)
