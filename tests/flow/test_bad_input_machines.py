"""Machines, plans and people: what does not fit, does not exist, is not theirs or is over."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.flow.open_leader import JOB, OTHER, POOL
from tests.flow.refusals import ERAS, World, check, everything, rest_told, run_swarm
from tests.flow.refusing_leaders import join_ready

pytestmark = pytest.mark.usefixtures("told_where")

SMALL, EMPTY = "ann/small", "ann/empty"
DAY_S = 86_400.0


async def plan(world: World, pool: str, **changes: Any) -> dict[str, Any]:
    """What jobs_plan answers."""
    return await world.post("/jobs/plan", pool=pool, config=JOB | changes)


async def make_pool(world: World, pool: str) -> None:
    """A pool with the bucket that the job names."""
    await world.post("/pools", pool=pool)
    await world.post("/buckets", pool=pool, bucket="words")
    text = "the word was with all of them " * 200
    await world.post("/buckets/words/files", pool=pool, name="a.txt", content=text)


@pytest.mark.parametrize(
    ("pool", "card_bytes", "said"),
    [(EMPTY, None, ("0 with a usable card, 1 needed",)), (SMALL, 400_000, ("MB", "free"))],
)
async def test_a_pool_that_is_too_small_gets_a_plan_with_numbers_and_a_job_that_waits(
    world: World, pool: str, card_bytes: int | None, said: tuple[str, ...]
) -> None:
    await make_pool(world, pool)
    if card_bytes is not None:
        await join_ready(world, pool, card_bytes)
    before = everything(world.data)
    ask = {"pool": pool, "config": JOB}
    for face in ERAS:
        told = (await world.tools[face].call_tool("jobs_plan", ask)).structured_content
        assert told is not None
        assert (told["fits"], told["plan_id"]) == (False, None)
    shown = await plan(world, pool)
    assert not shown["fits"]
    assert [word for word in said if word not in shown["reason"]] == [], shown["reason"]
    assert shown["next"][0]["arguments"]["unpinned"] is True
    file = world.folder / "job.json"
    file.write_text(json.dumps(JOB))
    code, out, _ = await run_swarm("plan", "--config", str(file), "--pool", pool, "--json")
    assert (code, json.loads(out)["reason"]) == (3, shown["reason"])
    assert everything(world.data) == before

    job = await world.post("/jobs", **ask, unpinned=True)
    assert (job["state"], job["reason"], job["stages"]) == ("pending", shown["reason"], [])
    code, out, _ = await run_swarm("train", "--config", str(file), "--pool", pool, "--json")
    assert (code, json.loads(out)["state"]) == (3, "pending")


CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "workers": ({"min_workers": 3, "max_workers": 2}, "max_workers 2 is below min_workers 3"),
    "parts": (
        {"train": {"steps": 1, "batch_size": 8, "micro_batches": 3}},
        "train.micro_batches 3 does not divide train.batch_size 8",
    ),
    "order": ({"layer_index": [3, 2]}, "layer_index must rise from one boundary to the next"),
    "twice": ({"layer_index": [2, 2]}, "layer_index must rise from one boundary to the next"),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
async def test_settings_that_contradict_each_other_are_refused(world: World, case: str) -> None:
    changes, said = CONTRADICTIONS[case]
    ask = {"pool": POOL, "config": JOB | changes}
    await world.refused("jobs_plan", ask, "invalid-input", said, but=("cli",))
    file = world.folder / "job.json"
    file.write_text(json.dumps(ask["config"]))
    check(await world.swarm("plan", "--config", str(file)), "invalid-input", (said,))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layer_index": [5]}, ("layer_index", "at layer 5", "last layer is 1")),
        ({"layer_index": [1], "max_workers": 1}, ("layer_index",)),
        ({"min_workers": 2}, ("1 with a usable card, 2 needed",)),
        ({"min_workers": 3}, ("3 stages are more", "one layer each of 2")),
        ({"min_workers": 40}, ("40",)),
    ],
)
async def test_pins_that_this_pool_cannot_meet_are_answered_with_the_reason(
    world: World, changes: dict[str, Any], said: tuple[str, ...]
) -> None:
    async with world.http() as client:
        asked = {"pool": POOL, "config": JOB | changes}
        answer = await client.post("/api/v1/jobs/plan", json=asked)
    told = answer.json()
    reason = told["reason"] if answer.status_code == 200 else told["detail"]
    assert told.get("fits") is False or told["code"] in ("invalid-input", "cannot-fit"), told
    assert [word for word in said if word not in reason] == [], told


async def test_cards_that_do_not_exist_are_refused_with_those_that_do(world: World) -> None:
    ask = {"pool": POOL, "config": JOB | {"exclude_cards": ["none"]}}
    said = "/config/exclude_cards/0: should be a card as fellow_id:index"
    await world.refused("jobs_plan", ask, "invalid-input", said)
    ask = {"pool": POOL, "config": JOB | {"exclude_cards": ["f-zzzzzzzz:0"]}}
    words = ("f-zzzzzzzz:0, which is not a card of this pool", f"{world.fellows['only']}:0")
    await world.refused("jobs_plan", ask, "invalid-input", *words)
    await world.refused("jobs_submit", ask | {"unpinned": True}, "invalid-input", *words)


async def test_a_plan_that_is_not_this_pools_is_not_found(world: World) -> None:
    shown = await plan(world, POOL)
    assert shown["fits"], shown["reason"]
    foreign = {"pool": OTHER, "config": JOB, "plan_id": shown["plan_id"]}
    said = f"there is no plan {shown['plan_id']!r} here"
    await world.post("/buckets", pool=OTHER, bucket="words")
    await world.post("/buckets/words/files", pool=OTHER, name="a.txt", content="the word " * 2000)
    await world.refused("jobs_submit", foreign, "not-found", said, "plan again with jobs_plan")
    unknown = {"pool": POOL, "config": JOB, "plan_id": "0123456789abcdef"}
    await world.refused("jobs_submit", unknown, "not-found", "no plan '0123456789abcdef'")


async def test_a_plan_with_another_config_or_none_at_all_is_refused(world: World) -> None:
    shown = await plan(world, POOL)
    other = JOB | {"train": {"steps": 4}}
    ask = {"pool": POOL, "config": other, "plan_id": shown["plan_id"]}
    await world.refused("jobs_submit", ask, "conflict", "was made for another config")
    neither = {"pool": POOL, "config": JOB}
    said = "give plan_id or unpinned: true, and not both"
    await world.refused("jobs_submit", neither, "invalid-input", said)
    both = {**neither, "plan_id": shown["plan_id"], "unpinned": True}
    await world.refused("jobs_submit", both, "invalid-input", said)


async def test_a_plan_that_is_older_than_a_day_is_expired(world: World) -> None:
    shown = await plan(world, POOL)
    ask = {"pool": POOL, "config": JOB, "plan_id": shown["plan_id"]}
    world.clock.ahead_s += DAY_S + 1
    said = f"plan {shown['plan_id']} is older than it may be"
    await world.refused("jobs_submit", ask, "expired", said, "plan again with jobs_plan")


async def test_a_cursor_that_no_list_gave_is_expired(world: World) -> None:
    ask = {"pool": POOL, "cursor": "yesterday"}
    await world.refused("jobs_list", ask, "expired", "'yesterday' is not one of this list")


async def test_an_invite_that_is_wrong_used_or_over_lets_nobody_in(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, late = [(await world.post("/invites", pool=POOL))["secret"] for _ in range(2)]
    await join_with(world, used, "a" * 64)
    world.clock.ahead_s += 3601
    fresh = (await world.post("/invites", pool=POOL))["secret"]
    before = everything(world.data)
    said = "this invite is not valid: it is unknown, used or older than its hour"
    bad = {"unknown": "swi_" + "x" * 40, "used": used, "late": late, "cut": fresh[:-1]}
    for number, (_, secret) in enumerate(bad.items()):
        told = rest_told(await join_with(world, secret, f"{number}" * 64))
        check(told, "not-found", (said, "swarm invite"))
    monkeypatch.setenv("SWARM_INVITE", bad["late"])
    state = tmp_path / "state"
    told = await world.swarm("join", world.url, "--card", "cpu:1GB", "--state", str(state), "-q")
    check(told, "not-found", (said,))
    assert everything(world.data) == before


async def join_with(world: World, secret: str, digest: str) -> Any:
    """What the fellows' door answers to an invite."""
    ask = {"protocol": 1, "invite": secret, "credential_sha256": digest, "hostname": "box",
           "version": "0.1.0"}  # fmt: skip
    async with world.http() as client:
        return await client.post("/fellow/v1/join", json=ask)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["join", "ftp://x", "--card", "cpu:1GB"], "'ftp://x' is not a leader's address"),
        (["join", "not a url", "--card", "cpu:1GB"], "is not a leader's address"),
        (["join", "http://u:p@x", "--card", "cpu:1GB"], "holds no user name"),
        (["join", "http://x:99999", "--card", "cpu:1GB"], "is not a leader's address"),
        (["join", "URL", "--card", "cpu:0GB"], "'cpu:0GB' asks for"),
        (["join", "URL", "--card", "cpu:999999GB"], "'cpu:999999GB' asks for"),
        (["join", "URL", "--card", "cpu:-1GB"], "has no size such as 4GB"),
        (["join", "URL", "--card", "tpu:4GB"], "'tpu:4GB' is not a card"),
        (["join", "URL", "--card", "cpu:1GB:0"], "names no thread"),
        (["join", "URL", "--card", ""], "'' is not a card"),
        (["join", "URL", "--card", "cpu:1GB", "--invite-file", "/no/such"], "cannot be read"),
        (["join", "URL", "--card", "cpu:1GB", "--name", " "], "' ' is no name of a machine"),
        (["join", "URL", "--card", "cpu:1GB", "--name", "a\nb"], "is no name of a machine"),
        (["join", "URL", "--card", "cpu:1GB", "--name", "x" * 61], "is no name of a machine"),
        (["join"], "Missing argument 'URL'"),
    ],
)
async def test_a_join_with_a_wrong_word_is_refused_before_anything_is_asked(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.setenv("SWARM_INVITE", "swi_" + "x" * 40)
    state = tmp_path / "state"
    at = [world.url if word == "URL" else word for word in words]
    before = everything(world.data)
    told = await world.swarm(*at, "--state", str(state))
    check(told, "invalid-input", (said,))
    assert everything(world.data) == before
    assert not (state / "identity.json").exists()
