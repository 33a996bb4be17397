"""REST: arguments in paths, queries and bodies; refusals as problem documents."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mcp_server import rest
from tests.unit.mcp_server.twin import House, sample, stored, until
from transport.api.jobs import JobsPlan, JobView
from transport.errors import SwarmError


async def test_an_answer_is_the_operation_s_own_json(house: House) -> None:
    async with house.client("swt_reader") as client:
        response = await client.get("/api/v1/jobs/j-aaaaaaaa")
    assert response.status_code == 200
    assert JobView.model_validate_json(response.content).job_id == "j-aaaaaaaa"
    assert house.twin.asked[0].arguments == {"job_id": "j-aaaaaaaa"}


async def test_a_query_string_becomes_typed_values(house: House) -> None:
    async with house.client("swt_reader") as client:
        response = await client.get("/api/v1/jobs?limit=7&state=running&pool=ann/lab")
    assert response.status_code == 200
    assert house.twin.asked[0].arguments == {"limit": 7, "state": "running", "pool": "ann/lab"}


@pytest.mark.parametrize(
    ("query", "pointer"),
    [("limt=7", "/limt"), ("limit=many", "/limit"), ("limit=1&limit=2", "/limit")],
)
async def test_a_wrong_query_is_named(house: House, query: str, pointer: str) -> None:
    async with house.client("swt_reader") as client:
        response = await client.get(f"/api/v1/jobs?{query}")
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["detail"].startswith(pointer)
    assert house.twin.asked == []


async def test_an_unknown_argument_names_the_nearest(house: House) -> None:
    async with house.client("swt_admin") as client:
        response = await client.post("/api/v1/pools", json={"pol": "ann/lab"})
    problem = response.json()
    assert (problem["status"], problem["code"]) == (422, "invalid-input")
    assert problem["detail"] == (
        "/pool: is missing; /pol: there is no such argument (did you mean 'pool'?)"
    )
    assert problem["hint"] == "correct the arguments named above"


async def test_a_path_and_a_body_that_disagree_are_refused(house: House) -> None:
    async with house.client("swt_trainer") as client:
        response = await client.post(
            "/api/v1/jobs/j-aaaaaaaa/cancel", json={"job_id": "j-bbbbbbbb"}
        )
    assert response.json()["detail"].startswith("/job_id:")


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b"1", b'{"pool": NaN}', b"[" * 100_000, b"\xff", b'{"pool": 1e999}'],
    ids=lambda body: repr(body[:12]),
)
async def test_a_body_that_is_no_object_is_refused_in_one_sentence(
    house: House, body: bytes
) -> None:
    async with house.client("swt_admin", **{"content-type": "application/json"}) as client:
        response = await client.post("/api/v1/pools", content=body)
    assert (response.status_code, response.json()["code"]) == (422, "invalid-input")


async def test_a_form_of_another_site_is_no_way_in(house: House) -> None:
    async with house.client("swt_admin") as client:
        response = await client.post("/api/v1/pools", data={"pool": "ann/lab"})
    assert response.json()["code"] == "invalid-input"
    assert house.twin.asked == []


async def test_json_past_the_limit_is_refused_without_being_read(house: House) -> None:
    body = b'{"pool": "' + b"a" * rest.MAX_JSON + b'"}'
    async with house.client("swt_admin", **{"content-type": "application/json"}) as client:
        response = await client.post("/api/v1/pools", content=body)
    assert (response.status_code, response.json()["code"]) == (413, "too-large")


async def test_an_upload_is_handed_on_as_a_stream(house: House) -> None:
    async with house.client(
        "swt_trainer", **{"content-type": "application/octet-stream"}
    ) as client:
        response = await client.post(
            "/api/v1/buckets/kjv/files?pool=ann/lab&name=a.jsonl", content=b"x" * 300_000
        )
    assert response.status_code == 200
    assert house.twin.uploads == [b"x" * 300_000]
    assert house.twin.asked[0].arguments == {
        "pool": "ann/lab", "bucket": "kjv", "name": "a.jsonl",
    }  # fmt: skip


async def test_an_upload_as_a_form_is_refused(house: House) -> None:
    async with house.client("swt_trainer") as client:
        response = await client.post(
            "/api/v1/buckets/kjv/files?pool=ann/lab", files={"file": b"text"}
        )
    assert "not a form" in response.json()["detail"]


async def test_a_busy_leader_says_when_to_come_back(house: House) -> None:
    house.twin.failure = SwarmError("unavailable", "starting", facts={"retry_after_s": 7})
    async with house.client("swt_reader") as client:
        response = await client.get("/api/v1/pools")
    assert (response.status_code, response.headers["retry-after"]) == (503, "7")


async def test_a_mistake_of_ours_keeps_its_words_in_the_log(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.twin.failure = RuntimeError("the secret is swordfish")
    async with house.client("swt_reader") as client:
        response = await client.get("/api/v1/pools")
    problem = response.json()
    assert (response.status_code, problem["code"]) == (500, "internal")
    assert "swordfish" not in response.text
    assert problem["facts"]["log_id"] in {getattr(r, "log_id", "") for r in caplog.records}


async def test_no_such_address_and_a_wrong_method_are_problems_too(house: House) -> None:
    async with house.client("swt_reader") as client:
        missing = await client.get("/api/v1/nothing")
        wrong = await client.patch("/api/v1/jobs")
        odd = await client.post("/api/v1/models//files")
    assert (odd.status_code, odd.json()["code"]) == (404, "not-found")
    assert (missing.status_code, missing.json()["code"]) == (404, "not-found")
    assert (wrong.status_code, wrong.json()["status"]) == (405, 405)
    assert wrong.headers["allow"]


async def test_a_change_goes_on_although_its_caller_hangs_up(house: House) -> None:
    house.twin.hold = asyncio.Event()
    async with house.client("swt_admin") as client:
        asking = asyncio.create_task(client.post("/api/v1/pools", json={"pool": "ann/lab"}))
        await until(lambda: bool(house.twin.asked))
        asking.cancel()
        await asyncio.wait({asking}, timeout=5)
    doing = [task for task in asyncio.all_tasks() if task.get_name() == "pools_create"]
    house.twin.hold.set()
    done, late = await asyncio.wait(doing, timeout=5)
    assert (len(done), late) == (1, set())
    assert done.pop().exception() is None


async def test_a_trained_adapter_s_file_is_fetched_by_range(house: House, tmp_path: Path) -> None:
    house.twin.files["adapter_model.safetensors"] = stored(tmp_path / "a", b"0123456789")
    async with house.client("swt_reader", range="bytes=2-4") as client:
        response = await client.get("/api/v1/jobs/j-aaaaaaaa/adapter/adapter_model.safetensors")
        other = await client.get("/api/v1/jobs/j-aaaaaaaa/adapter/secrets.txt")
    assert (response.status_code, response.content) == (206, b"234")
    assert other.json()["code"] == "not-found"


async def test_records_are_fetched_as_json_lines(house: House, tmp_path: Path) -> None:
    house.twin.files["records.jsonl"] = stored(tmp_path / "r", b'{"step": 1}\n')
    async with house.client("swt_reader") as client:
        response = await client.get("/api/v1/jobs/j-aaaaaaaa/records.jsonl")
    assert json.loads(response.text) == {"step": 1}
    assert response.headers["content-type"].startswith("application/jsonl")


async def test_a_download_asks_first_whether_the_caller_may_see_the_job(house: House) -> None:
    house.twin.failure = SwarmError("not-found", "there is no job here")
    async with house.client("swt_reader") as client:
        response = await client.get("/api/v1/jobs/j-aaaaaaaa/records.jsonl")
    assert response.status_code == 404


async def test_a_job_file_in_a_body_is_checked_to_its_leaves(house: House) -> None:
    ask = sample(JobsPlan)
    ask["config"]["train"]["step"] = 3
    async with house.client("swt_reader") as client:
        response = await client.post("/api/v1/jobs/plan", json=ask)
    assert response.json()["detail"].startswith("/config/train/step:")
    assert response.json()["hint"] == "did you mean 'steps'?"


async def test_others_are_answered_while_an_upload_is_slow(house: House) -> None:
    go_on = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b"first"
        await go_on.wait()
        yield b" last"

    headers = {"content-type": "application/octet-stream"}
    async with house.client("swt_trainer", **headers) as client:
        uploading = asyncio.create_task(
            client.post("/api/v1/buckets/kjv/files?pool=ann/lab", content=slowly())
        )
        await until(lambda: bool(house.twin.asked))
        answers = [(await client.get("/api/v1/jobs")).status_code for _ in range(20)]
        assert not uploading.done()
        go_on.set()
        response = await asyncio.wait_for(uploading, 5)
    assert answers == [200] * 20
    assert response.status_code == 200
    assert house.twin.uploads == [b"first last"]
