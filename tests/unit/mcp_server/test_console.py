"""The console's files and the headers of every answer."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mcp_server.console import CSP, FOLDER
from tests.unit.mcp_server.twin import House, open_house


@pytest.fixture
async def furnished(tmp_path: Path) -> AsyncIterator[House]:
    """A house whose console has two files."""
    folder = tmp_path / "console"
    (folder / "js").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html><title>Swarm</title>")
    (folder / "js" / "main.js").write_text("export const a = 1;")
    (tmp_path / "secret.txt").write_text("not for browsers")
    async with open_house(tmp_path, folder) as house:
        yield house


async def test_the_console_is_served_with_strict_headers(furnished: House) -> None:
    async with furnished.client() as browser:
        page, script = await browser.get("/"), await browser.get("/js/main.js")
    assert page.text.startswith("<!doctype html>")
    assert script.headers["content-type"].startswith("text/javascript")
    for answer in (page, script):
        assert answer.headers["content-security-policy"] == CSP
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-cache"
    assert "unsafe" not in CSP


async def test_the_console_s_own_addresses_lead_to_its_page(furnished: House) -> None:
    async with furnished.client() as browser:
        for path in ("/training", "/pools/ann/attic/training", "/training/"):
            answer = await browser.get(path)
            assert answer.text.startswith("<!doctype html>"), path
        for path in ("/pools/ann/training", "/pools/a/b/c/training", "/pools/A%2F../b/training"):
            assert (await browser.get(path)).status_code == 404, path


async def test_a_file_that_has_not_changed_is_not_sent_again(furnished: House) -> None:
    async with furnished.client() as browser:
        first = await browser.get("/js/main.js")
        again = await browser.get("/js/main.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_nothing_outside_the_console_s_folder_is_served(furnished: House) -> None:
    async with furnished.client() as browser:
        for path in ("/../secret.txt", "/%2e%2e/secret.txt", "/js/..%2F..%2Fsecret.txt", "/js"):
            answer = await browser.get(path)
            assert answer.status_code in (404, 307), path
            assert "browsers" not in answer.text


async def test_every_answer_carries_the_headers_refusals_too(house: House) -> None:
    async with house.client() as client:
        answers = [
            await client.get("/healthz"),
            await client.get("/api/v1/jobs"),
            await client.get("/nothing"),
            await client.get("/healthz", headers={"host": "evil.example"}),
        ]
    assert [answer.status_code for answer in answers] == [200, 401, 404, 421]
    assert all(answer.headers["content-security-policy"] == CSP for answer in answers)
    assert all(answer.headers["x-content-type-options"] == "nosniff" for answer in answers)


def test_the_console_is_found_beside_the_rooms(root: Path) -> None:
    assert root / "static_console" == FOLDER


async def test_health_version_and_metrics(house: House) -> None:
    house.twin.answers["cluster_status"] = {"ready": 3, "card_total_bytes": None}
    async with house.client("swt_reader") as client:
        health, ready = await client.get("/healthz"), await client.get("/readyz")
        version, metrics = await client.get("/version"), await client.get("/metrics")
        house.doors.closing.set()
        closing = await client.get("/readyz")
    assert (health.text, ready.text, closing.status_code) == ("ok\n", "ready\n", 503)
    assert version.json()["protocol"] == 1
    assert 'swarm_fellows{state="ready"} 3.0' in metrics.text
    assert 'swarm_card_bytes{kind="total"}' not in metrics.text  # unknown is never 0
