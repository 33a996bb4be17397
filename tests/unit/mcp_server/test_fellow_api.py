"""The fellows' door, over real HTTP."""

import asyncio
import hashlib
from pathlib import Path

import httpx2
import pytest

from control.jobs.results import StageKey
from mcp_server import fellow_api
from tests.unit.mcp_server.twin import (
    COPY,
    CREDENTIAL,
    FELLOW,
    IDLE,
    INVITE,
    House,
    sample,
    stored,
    until,
)
from transport.cards import Heartbeat, MachineReport
from transport.lives import LIFE_HEADER, TWO_DAEMONS
from transport.orders import DesiredState
from transport.reports import JoinAsk, ReportBatch

ADAPTER = "/fellow/v1/jobs/j-aaaaaaaa/attempts/1/stages/2/adapter"
JSON = {"content-type": "application/json"}


def beat(**given: object) -> dict[str, object]:
    """A small heartbeat."""
    return sample(Heartbeat, protocol=1, fellow_id=FELLOW, **given) | {
        "machine": sample(MachineReport, hostname="box")
    }


async def test_a_machine_joins_with_its_invite_in_the_body(house: House) -> None:
    ask = sample(JoinAsk, protocol=1, invite=INVITE, credential_sha256="0" * 64)
    async with house.client() as client:
        response = await client.post("/fellow/v1/join", json=ask)
    assert response.json() == {"fellow_id": FELLOW, "pool": "ann/lab", "heartbeat_s": 5.0}


async def test_guessing_invites_is_slowed(house: House) -> None:
    ask = sample(JoinAsk, protocol=1, invite="swi_" + "x" * 40)
    async with house.client() as client:
        told = [(await client.post("/fellow/v1/join", json=ask)).status_code for _ in range(12)]
    assert told == [404] * 10 + [429] * 2


async def test_a_heartbeat_is_answered_with_the_desired_state(house: House) -> None:
    async with house.client(CREDENTIAL) as client:
        response = await client.post("/fellow/v1/heartbeat", json=beat(news="of a later version"))
    assert DesiredState.model_validate_json(response.content) == IDLE
    assert house.twin.beats[0].machine.hostname == "box"


async def test_a_fellow_speaks_for_itself_only(house: House) -> None:
    async with house.client(CREDENTIAL) as client:
        other = await client.post("/fellow/v1/heartbeat", json=beat() | {"fellow_id": "f-bbbbbbbb"})
    assert other.json()["code"] == "forbidden"
    assert house.twin.beats == []


async def test_a_protocol_that_is_too_old_is_named_with_both_numbers(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fellow_api, "PROTOCOL", 3)
    async with house.client(CREDENTIAL) as client:
        response = await client.post("/fellow/v1/heartbeat", json=beat())
    assert response.status_code == 409
    assert response.json()["facts"] == {"protocol": 1, "leader_protocol": 3}


async def test_orders_are_held_until_they_are_newer(house: House) -> None:
    async with house.client(CREDENTIAL) as client:
        asking = asyncio.create_task(client.get("/fellow/v1/orders?since=3"))
        done, _ = await asyncio.wait({asking}, timeout=0.2)
        house.twin.desired = IDLE.model_copy(update={"revision": 4})
        house.twin.order.set()
        response = await asyncio.wait_for(asking, 5)
    assert done == set()
    assert response.json()["revision"] == 4


async def test_orders_that_are_newer_already_are_answered_at_once(house: House) -> None:
    async with house.client(CREDENTIAL) as client:
        response = await client.get("/fellow/v1/orders?since=2")
        wrong = await client.get("/fellow/v1/orders?since=soon")
    assert response.json()["revision"] == 3
    assert wrong.json()["code"] == "invalid-input"


async def test_a_held_request_ends_when_the_leader_closes(house: House) -> None:
    async with house.client(CREDENTIAL) as client:
        asking = asyncio.create_task(client.get("/fellow/v1/orders?since=3"))
        await asyncio.wait({asking}, timeout=0.1)
        house.doors.closing.set()
        response = await asyncio.wait_for(asking, 5)
    assert (response.status_code, response.json()["code"]) == (503, "unavailable")


async def test_reports_are_taken_and_counted(house: House) -> None:
    log = {"kind": "log", "job_id": "j-aaaaaaaa", "attempt": 1, "stage": 0, "at": 1.0,
           "level": "info", "text": "hello"}  # fmt: skip
    batch = sample(ReportBatch, protocol=1, fellow_id=FELLOW) | {
        "reports": [{"sequence": 7, "report": log}]
    }
    async with house.client(CREDENTIAL) as client:
        response = await client.post("/fellow/v1/reports", json=batch)
    assert response.json() == {"committed": 7, "refused": []}
    assert house.twin.batches[0].reports[0].report.kind == "log"


async def test_a_message_that_is_too_large_is_refused(house: House) -> None:
    async with house.client(CREDENTIAL, **JSON) as client:
        response = await client.post(
            "/fellow/v1/heartbeat", content=b" " * (fellow_api.MAX_MESSAGE + 1)
        )
    assert (response.status_code, response.json()["code"]) == (413, "too-large")


async def test_an_adapter_is_streamed_and_checked(house: House) -> None:
    content = bytes(range(256)) * 4000
    digest = hashlib.sha256(content).hexdigest()
    async with house.client(CREDENTIAL, **{"x-content-sha256": digest}) as client:
        first = await client.put(ADAPTER, content=content)
        again = await client.put(ADAPTER, content=content)
    assert (first.status_code, again.status_code) == (204, 204)
    assert house.twin.adapters == {StageKey(FELLOW, "j-aaaaaaaa", 1, 2): content}


async def test_an_adapter_that_is_not_what_was_promised_is_refused(house: House) -> None:
    async with house.client(CREDENTIAL, **{"x-content-sha256": "0" * 64}) as client:
        wrong = await client.put(ADAPTER, content=b"else")
        stale = await client.put(ADAPTER.replace("attempts/1", "attempts/2"), content=b"late")
    async with house.client(CREDENTIAL) as client:
        silent = await client.put(ADAPTER, content=b"else")
    assert [r.json()["code"] for r in (wrong, stale, silent)] == [
        "invalid-input", "conflict", "invalid-input",
    ]  # fmt: skip
    assert house.twin.adapters == {}


@pytest.mark.parametrize(
    "path", ["attempts/x/stages/0", "attempts/1/stages/-", "attempts/1/stages/ "]
)
async def test_a_path_that_names_no_stage_is_refused(house: House, path: str) -> None:
    async with house.client(CREDENTIAL, **{"x-content-sha256": "0" * 64}) as client:
        response = await client.put(f"/fellow/v1/jobs/j-aaaaaaaa/{path}/adapter", content=b"")
    assert response.json()["code"] == "invalid-input"


async def test_a_token_file_is_read_by_range(house: House, tmp_path: Path) -> None:
    digest = "a" * 64
    house.twin.files[digest] = stored(tmp_path / "tokens", b"0123456789")
    async with house.client(CREDENTIAL) as client:
        part = await client.get(f"/fellow/v1/tokens/{digest}", headers={"range": "bytes=3-5"})
        missing = await client.get(f"/fellow/v1/tokens/{'b' * 64}")
        hostile = await client.get("/fellow/v1/tokens/..%2F..%2Fleader.db")
    assert (part.status_code, part.content) == (206, b"345")
    assert part.headers["etag"] == f'"{digest}"'
    assert missing.json()["code"] == "not-found"
    assert hostile.status_code in (404, 422)


async def test_a_hung_up_upload_leaves_the_leader_well(house: House) -> None:
    async def half() -> object:
        yield b"x" * 100_000
        raise ConnectionError

    async with house.client(CREDENTIAL, **{"x-content-sha256": "0" * 64}) as client:
        with pytest.raises((ConnectionError, httpx2.HTTPError)):
            await client.put(ADAPTER, content=half())  # type: ignore[arg-type]
        assert (await client.get("/healthz")).text == "ok\n"
    assert house.twin.adapters == {}


async def test_a_held_request_ends_at_once_when_its_sender_hangs_up(house: House) -> None:
    async with house.client(CREDENTIAL) as client:
        asking = asyncio.create_task(client.get("/fellow/v1/orders?since=3"))
        await until(lambda: house.twin.held == 1)
        asking.cancel()
        await until(lambda: house.twin.held == 0)


async def test_a_second_daemon_with_the_same_credential_is_refused_at_every_route(
    house: House,
) -> None:
    batch = sample(ReportBatch, protocol=1, fellow_id=FELLOW)
    async with house.client(CREDENTIAL, **{LIFE_HEADER: COPY}) as client:
        told = [
            await client.post("/fellow/v1/heartbeat", json=beat()),
            await client.get("/fellow/v1/orders?since=2"),
            await client.post("/fellow/v1/reports", json=batch),
        ]
    assert {one.status_code for one in told} == {409}
    assert {one.json()["facts"]["reason"] for one in told} == {TWO_DAEMONS}
    assert (house.twin.beats, house.twin.batches) == ([], [])


async def test_a_life_that_is_no_life_is_taken_for_none(house: House) -> None:
    async with house.client(CREDENTIAL, **{LIFE_HEADER: "c" * 99}) as client:
        assert (await client.post("/fellow/v1/heartbeat", json=beat())).status_code == 200
