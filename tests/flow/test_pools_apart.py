"""A token of one pool sees and touches nothing of another, at any door; fellows neither."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx2
import pytest
from huggingface_hub import hf_hub_download

from tests.flow.open_leader import JOB, OTHER, POOL, OpenLeader, join_fellow, open_leader
from tests.unit.mcp_server.test_streams import Tab

TINY = ("config.json", "model.safetensors")


@pytest.fixture(scope="module")
async def world(
    tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> AsyncIterator[OpenLeader]:
    async with open_leader(tmp_path_factory.mktemp("leader")) as leader:
        yield leader


@pytest.fixture(scope="module")
async def stranger(world: OpenLeader) -> str:
    """An admin's token of the other pool only."""
    made = await world.post("/tokens", name="other", scope="admin", pools=[OTHER])
    return str(made["secret"])


def touches(world: OpenLeader) -> list[tuple[str, str, dict[str, Any] | None]]:
    """Every way to look at or change the first pool."""
    job, fellow = world.job_id, world.fellows["job"]
    return [
        ("GET", f"/api/v1/cluster?pool={POOL}", None),
        ("GET", f"/api/v1/fellows?pool={POOL}", None),
        ("GET", f"/api/v1/fellows/{fellow}", None),
        ("POST", f"/api/v1/fellows/{fellow}/measure", {}),
        ("DELETE", f"/api/v1/fellows/{fellow}", None),
        ("GET", f"/api/v1/jobs?pool={POOL}", None),
        ("GET", f"/api/v1/jobs/{job}", None),
        ("GET", f"/api/v1/jobs/{job}/wait?timeout_s=0", None),
        ("GET", f"/api/v1/jobs/{job}/logs", None),
        ("GET", f"/api/v1/jobs/{job}/records", None),
        ("GET", f"/api/v1/jobs/{job}/records.jsonl", None),
        ("GET", f"/api/v1/jobs/{job}/adapter/adapter_model.safetensors", None),
        ("POST", f"/api/v1/jobs/{job}/cancel", {}),
        ("POST", "/api/v1/jobs/plan", {"pool": POOL, "config": JOB}),
        ("POST", "/api/v1/jobs", {"pool": POOL, "config": JOB, "unpinned": True}),
        ("POST", "/api/v1/buckets", {"pool": POOL, "bucket": "mine"}),
        ("POST", "/api/v1/buckets/words/files", {"pool": POOL, "content": "x"}),
        ("GET", f"/api/v1/buckets?pool={POOL}", None),
        ("GET", f"/api/v1/models/{job}/export", None),
        ("GET", f"/api/v1/models?pool={POOL}", None),
        ("POST", "/api/v1/invites", {"pool": POOL}),
        ("GET", f"/api/v1/events?pool={POOL}", None),
        ("GET", f"/api/v1/events?job_id={job}", None),
        # A token never makes one that sees more than itself.
        ("POST", "/api/v1/tokens", {"name": "more", "pools": [POOL]}),
    ]


async def test_another_pool_s_things_are_not_there(world: OpenLeader, stranger: str) -> None:
    told = {}
    async with world.http(stranger) as client:
        for method, path, body in touches(world):
            response = await client.request(method, path, json=body)
            told[f"{method} {path}"] = response.json()["code"]
    refused = {"not-found", "forbidden"}
    assert {what: code for what, code in told.items() if code not in refused} == {}


async def test_lists_without_a_pool_show_one_s_own_only(world: OpenLeader, stranger: str) -> None:
    async with world.http(stranger) as client:
        text = "".join(
            [
                (await client.get(f"/api/v1/{what}")).text
                for what in ("pools", "fellows", "jobs", "buckets", "models", "cluster", "tokens")
            ]
        )
    assert OTHER in text
    assert POOL not in text
    assert world.job_id not in text


async def test_a_token_made_by_a_token_sees_no_more_than_it(
    world: OpenLeader, stranger: str
) -> None:
    async with world.http(stranger) as client:
        made = await client.post("/api/v1/tokens", json={"name": "all", "scope": "read"})
    if made.status_code == 200:  # made, but never for every pool
        async with world.http(made.json()["secret"]) as client:
            seen = (await client.get("/api/v1/pools")).json()["pools"]
        assert POOL not in {pool["pool"] for pool in seen}
    else:
        assert made.json()["code"] in ("forbidden", "not-found")


async def test_a_fellow_downloads_the_stored_model_with_the_hub_s_own_client(
    world: OpenLeader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    _, credential = await join_fellow(world, OTHER)
    async with world.http() as client:
        (row,) = (await client.get("/api/v1/models")).json()["models"]

    def download(name: str) -> Path:
        return Path(
            hf_hub_download(
                "local/tiny",
                name,
                revision=row["revision"],
                endpoint=f"{world.url}/fellow/v1/hub",
                token=credential,
                cache_dir=tmp_path / "cache",
            )
        )

    for name in TINY:
        path = await anyio.to_thread.run_sync(download, name)
        assert path.read_bytes() == (world.folder / "tiny" / name).read_bytes()


async def test_a_live_stream_tells_that_a_machine_joined(world: OpenLeader) -> None:
    async with (
        world.http() as client,
        client.stream("GET", f"/api/v1/events?pool={OTHER}") as response,
    ):
        tab = Tab(response.aiter_lines())
        first = await tab.next()
        assert first is not None
        assert first.name == "snapshot"
        fellow_id, _ = await join_fellow(world, OTHER)
        heard: list[str] = []
        while fellow_id not in heard:
            told = await tab.next()
            assert told is not None
            if told.name == "fellows":
                heard += [row["fellow_id"] for row in told.data["changed"]]


async def test_a_removed_fellow_is_shut_out_at_once(world: OpenLeader) -> None:
    fellow_id, credential = await join_fellow(world, OTHER)
    async with world.http(credential) as fellow, world.http() as owner:
        before = await fellow.get("/fellow/v1/orders?since=-1")
        await owner.delete(f"/api/v1/fellows/{fellow_id}")
        after = await fellow.get("/fellow/v1/orders?since=-1")
    assert (before.status_code, after.status_code) == (200, 401)


async def test_an_invite_works_for_one_machine_and_again_for_the_same(world: OpenLeader) -> None:
    invite = (await world.post("/invites", pool=OTHER))["secret"]
    ask = {"protocol": 1, "invite": invite, "hostname": "box", "version": "1"}
    async with httpx2.AsyncClient(base_url=world.url) as nobody:
        first, again, other = [
            await nobody.post("/fellow/v1/join", json=ask | {"credential_sha256": digit * 64})
            for digit in ("a", "a", "b")
        ]
    assert first.json() == again.json()
    assert (other.status_code, other.json()["code"]) == (404, "not-found")
