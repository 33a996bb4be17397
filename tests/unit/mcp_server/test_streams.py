"""The live stream of a browser tab, over real HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_server import streams
from mcp_server.office import Changed
from mcp_server.streams import difference
from tests.unit.mcp_server.twin import House, sample, until
from transport.api.fellows import FellowRow
from transport.api.jobs import LogRow
from transport.errors import SwarmError

JOB = "j-aaaaaaaa"


@dataclass
class Told:
    """One event of a stream."""

    name: str = ""
    number: str = ""
    data: Any = None


@dataclass
class Tab:
    """A browser's EventSource, in little."""

    lines: AsyncIterator[str]
    heard: list[Told] = field(default_factory=list)

    async def next(self) -> Told | None:
        """The next event; None when the stream has ended."""
        told = Told()
        async with asyncio.timeout(10):
            async for line in self.lines:
                key, _, value = line.partition(": ")
                if key == "event":
                    told.name = value
                elif key == "id":
                    told.number = value
                elif key == "data":
                    told.data = json.loads(value)
                elif line == "" and told.name:
                    self.heard.append(told)
                    return told
        return None


@asynccontextmanager
async def tab(house: House, query: str = "", **headers: str) -> AsyncIterator[Tab]:
    async with (
        house.client("swt_reader", **headers) as client,
        client.stream("GET", f"/api/v1/events{query}") as response,
    ):
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Tab(response.aiter_lines())


async def listening(house: House) -> None:
    """Wait until the stream watches for changes."""
    await until(lambda: bool(house.twin.listeners))


def fellow(step: int) -> dict[str, Any]:
    """One row of a fellow at a step."""
    return sample(FellowRow, step=step)


async def test_a_tab_is_told_everything_first_and_then_what_changed(house: House) -> None:
    house.twin.answers["fellows_list"] = {"fellows": [fellow(1)]}
    async with tab(house) as one:
        first = await one.next()
        await listening(house)
        house.twin.answers["fellows_list"] = {"fellows": [fellow(2)]}
        house.twin.tell(Changed("fellows", "ann/lab"))
        second = await one.next()
    assert first is not None
    assert second is not None
    assert first.name == "snapshot"
    assert first.data["fellows"][0]["step"] == 1
    assert sorted(first.data) == ["cluster", "fellows", "jobs"]
    assert second.name == "fellows"
    assert (second.data["changed"][0]["step"], second.data["gone"]) == (2, [])
    assert int(second.number) > int(first.number)


async def test_what_moves_between_the_snapshot_and_the_stream_is_told(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.twin.answers["fellows_list"] = {"fellows": [fellow(1)]}
    read = streams.Tab.snapshot

    async def then_something_moves(self: streams.Tab) -> streams.Row:
        told = await read(self)
        house.twin.answers["fellows_list"] = {"fellows": [fellow(2)]}
        house.twin.tell(Changed("fellows", "ann/lab"))
        return told

    monkeypatch.setattr(streams.Tab, "snapshot", then_something_moves)
    async with tab(house) as one:
        first = await one.next()
        second = await one.next()
    assert first is not None
    assert second is not None
    assert first.data["fellows"][0]["step"] == 1
    assert (second.name, second.data["changed"][0]["step"]) == ("fellows", 2)


async def test_many_changes_at_once_are_one_event(house: House) -> None:
    async with tab(house) as one:
        await one.next()
        await listening(house)
        house.twin.asked.clear()
        house.twin.answers["fellows_list"] = {"fellows": [fellow(2)]}
        for _ in range(500):
            house.twin.tell(Changed("fellows", "ann/lab"))
        told = await one.next()
        read = [question.operation.name for question in house.twin.asked]
    assert told is not None
    assert told.data["changed"][0]["step"] == 2
    assert read.count("fellows_list") == 1


async def test_a_change_that_shows_nothing_new_is_not_told(house: House) -> None:
    async with tab(house) as one:
        await one.next()
        await listening(house)
        house.twin.tell(Changed("fellows", "ann/lab"))
        house.twin.answers["jobs_list"] = {"omitted": 0}
        house.twin.answers["cluster_status"] = {"words": "3 fellows ready"}
        house.twin.tell(Changed("jobs", "ann/lab"))
        told = await one.next()
    assert told is not None
    assert (told.name, told.data["words"]) == ("cluster", "3 fellows ready")


async def test_a_tab_of_one_pool_hears_nothing_of_another(house: House) -> None:
    async with tab(house, "?pool=ann/lab") as one:
        await one.next()
        await listening(house)
        house.twin.answers["fellows_list"] = {"fellows": [fellow(5)]}
        house.twin.asked.clear()
        house.twin.tell(Changed("fellows", "bob/lab"))
        house.twin.tell(Changed("fellows", "ann/lab"))
        await one.next()
    assert {question.arguments["pool"] for question in house.twin.asked} == {"ann/lab"}


async def test_log_lines_go_on_from_the_cursor_in_the_event_s_id(house: House) -> None:
    line = sample(LogRow, untrusted_text="loss is nan")
    house.twin.answers["jobs_logs"] = {"lines": [line], "cursor": "c7"}
    async with tab(house, f"?job_id={JOB}&stage=0") as one:
        first = await one.next()
        await listening(house)
        house.twin.answers["jobs_logs"] = {"lines": [line], "cursor": "c8"}
        house.twin.tell(Changed("logs", "ann/lab", JOB))
        second = await one.next()
    assert first is not None
    assert second is not None
    assert first.data["job"]["job_id"] == JOB
    assert (first.number.partition(":")[2], second.number.partition(":")[2]) == ("c7", "c8")
    assert second.data["lines"][0]["untrusted_text"] == "loss is nan"
    house.twin.asked.clear()
    async with tab(house, f"?job_id={JOB}", **{"last-event-id": second.number}) as again:
        await again.next()
    (logs,) = [one for one in house.twin.asked if one.operation.name == "jobs_logs"]
    assert logs.arguments["cursor"] == "c8"


async def test_log_lines_of_another_job_are_not_read(house: House) -> None:
    async with tab(house) as one:
        await one.next()
        await listening(house)
        house.twin.asked.clear()
        house.twin.tell(Changed("logs", "ann/lab", JOB))
        house.twin.answers["fellows_list"] = {"fellows": [fellow(5)]}
        house.twin.tell(Changed("fellows", "ann/lab"))
        await one.next()
    assert "jobs_logs" not in {question.operation.name for question in house.twin.asked}


async def test_a_stream_ends_when_the_leader_closes(house: House) -> None:
    async with tab(house) as one:
        await one.next()
        await listening(house)
        house.doors.closing.set()
        assert await one.next() is None


async def test_a_stream_ends_with_its_token(house: House) -> None:
    async with tab(house) as one:
        await one.next()
        await listening(house)
        del house.twin.callers["swt_reader"]
        house.twin.tell(Changed("jobs", "ann/lab"))
        told = await one.next()
        assert told is not None
        assert told.name == "ended"
        assert await one.next() is None


async def test_a_job_that_one_may_not_see_is_refused_before_the_stream_begins(
    house: House,
) -> None:
    async with house.client("swt_reader") as client:
        wrong = await client.get("/api/v1/events?job=1")
        house.twin.failure = SwarmError("not-found", "no such job")
        missing = await client.get(f"/api/v1/events?job_id={JOB}")
        stranger = await client.get("/api/v1/events", headers={"authorization": "Bearer swt_x"})
    assert (wrong.status_code, missing.status_code, stranger.status_code) == (422, 404, 401)


async def test_more_streams_than_the_leader_serves_are_refused(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAX_STREAMS", 1)
    async with tab(house) as one:
        await one.next()
        async with house.client("swt_reader") as client:
            refused = await client.get("/api/v1/events")
    assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")


ROWS = st.dictionaries(st.integers(0, 5), st.integers(0, 3)).map(
    lambda d: [{"key": str(k), "value": v} for k, v in d.items()]
)


@given(ROWS, ROWS)
def test_a_difference_laid_over_what_was_gives_what_is(
    before: list[dict[str, Any]], now: list[dict[str, Any]]
) -> None:
    change = difference(before, now, "key") or {"changed": [], "gone": []}
    rows = {row["key"]: row for row in before if row["key"] not in change["gone"]}
    rows |= {row["key"]: row for row in change["changed"]}
    assert rows == {row["key"]: row for row in now}
