"""Who may come in: names, origins, tokens, sessions, and too many refusals."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from mcp_server.access import FAILURES_AT_ONCE, FailureBuckets, HostGuard, Names, is_loopback
from mcp_server.sessions import LINK_LIVES_S, SESSION_LIVES_S, Sessions, session_key
from tests.unit.mcp_server.twin import CREDENTIAL, House

EVERYWHERE = ("/", "/healthz", "/mcp", "/api/v1/jobs", "/fellow/v1/orders", "/signin", "/nothing")


@pytest.mark.parametrize("path", EVERYWHERE)
async def test_a_foreign_host_is_refused_in_front_of_everything(house: House, path: str) -> None:
    for host in ("evil.example", "evil.example:7420", "127.0.0.1.evil.example", "localhost.", ""):
        async with house.client("swt_admin", host=host) as client:
            response = await client.get(path)
        assert response.status_code == 421, host


@pytest.mark.parametrize("path", EVERYWHERE)
async def test_a_foreign_origin_is_refused_in_front_of_everything(house: House, path: str) -> None:
    port = house.url.rpartition(":")[2]
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", f"ftp://127.0.0.1:{port}"):
        async with house.client("swt_admin", origin=origin) as client:
            response = await client.get(path)
        assert response.status_code == 403, origin


async def test_the_leader_s_own_origin_is_welcome(house: House) -> None:
    async with house.client("swt_admin", origin=house.url) as client:
        response = await client.post("/api/v1/pools", json={"pool": "ann/lab"})
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("pool.example", True), ("pool.example:8443", True), ("POOL.example:8443", True),
        ("pool.example:1", False), ("192.168.1.5:7420", True), ("192.168.1.5", False),
        ("localhost:99", True), ("[::1]:7420", True), ("[::2]:7420", False), ("", False),
    ],
)  # fmt: skip
def test_a_leader_is_known_under_its_configured_names_only(host: str, known: bool) -> None:
    names = Names.of("https://pool.example:8443", ("192.168.1.5:7420",))
    assert names.knows(host) is known


def test_two_host_headers_are_one_too_many() -> None:
    async def nobody(*_: object) -> None:
        raise AssertionError

    headers = Headers(raw=[(b"host", b"localhost"), (b"host", b"localhost")])
    refusal = HostGuard(nobody, Names()).refuse(headers)
    assert refusal is not None
    assert refusal[0] == 421


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("192.168.1.5", False), ("pool.example", False)],
)  # fmt: skip
def test_only_this_machine_s_own_addresses_are_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


async def test_a_fellow_s_credential_is_worth_nothing_at_other_doors(house: House) -> None:
    async with house.client(CREDENTIAL) as client:
        assert (await client.get("/api/v1/jobs")).status_code == 401
        assert (await client.post("/signin")).status_code == 401
        assert (await client.get("/metrics")).status_code == 401


async def test_an_access_token_is_worth_nothing_at_the_fellows_door(house: House) -> None:
    async with house.client("swt_admin") as client:
        response = await client.get("/fellow/v1/orders?since=0")
    assert (response.status_code, response.json()["code"]) == (401, "unauthenticated")


async def test_a_revoked_token_stops_working_at_once(house: House) -> None:
    async with house.client("swt_reader") as client:
        before = await client.get("/api/v1/jobs")
        del house.twin.callers["swt_reader"]
        after = await client.get("/api/v1/jobs")
    assert (before.status_code, after.status_code) == (200, 401)
    assert after.headers["www-authenticate"] == 'Bearer realm="swarm"'


async def test_too_many_refused_secrets_are_slowed_but_a_good_one_is_not(house: House) -> None:
    async with house.client("swt_guess") as client:
        statuses = [(await client.get("/api/v1/jobs")).status_code for _ in range(12)]
        last = await client.get("/api/v1/jobs")
    assert statuses[:FAILURES_AT_ONCE] == [401] * FAILURES_AT_ONCE
    assert (last.status_code, last.json()["code"]) == (429, "rate-limited")
    assert 1 <= int(last.headers["retry-after"]) <= 6
    async with house.client("swt_reader") as client:
        assert (await client.get("/api/v1/jobs")).status_code == 200


@given(st.lists(st.floats(0, 100), max_size=60))
def test_no_address_gets_more_than_ten_refusals_and_one_each_six_seconds(
    pauses: list[float],
) -> None:
    buckets, now, answered = FailureBuckets(), 0.0, 0
    for pause in pauses:
        now += pause
        answered += buckets.spend("a", now) == 0
    assert answered <= FAILURES_AT_ONCE + now / 6 + 1e-6


async def sign_in(house: House, secret: str = "swt_admin") -> str:
    """The session cookie of a browser that used a fresh link."""
    async with house.client(secret) as client:
        link = (await client.post("/signin")).json()["url"]
    async with house.client() as browser:
        answer = await browser.get(link)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    told = answer.headers["set-cookie"]
    assert "HttpOnly" in told
    assert "SameSite=strict" in told
    assert "Secure" not in told  # plain loopback: a browser would drop a Secure cookie
    return str(told.partition(";")[0])


async def test_a_sign_in_link_works_once(house: House) -> None:
    async with house.client("swt_admin") as client:
        link = (await client.post("/signin")).json()["url"]
    async with house.client() as browser:
        first, second = await browser.get(link), await browser.get(link)
    assert (first.status_code, second.status_code) == (303, 404)
    assert "set-cookie" not in second.headers


async def test_a_signed_in_browser_reads_and_writes_from_its_own_page_only(house: House) -> None:
    cookie = await sign_in(house)
    async with house.client(cookie=cookie) as browser:
        assert (await browser.get("/api/v1/jobs")).status_code == 200
        blind = await browser.post("/api/v1/pools", json={"pool": "ann/lab"})
        own = await browser.post(
            "/api/v1/pools", json={"pool": "ann/lab"}, headers={"origin": house.url}
        )
    assert (blind.status_code, own.status_code) == (403, 200)


async def test_a_session_opens_neither_mcp_nor_the_fellows_door_nor_another_link(
    house: House,
) -> None:
    headers = {"cookie": await sign_in(house), "origin": house.url}
    async with house.client(**headers) as browser:
        assert (await browser.post("/mcp", json={})).status_code == 401
        assert (await browser.get("/fellow/v1/orders")).status_code == 401
        assert (await browser.post("/signin")).status_code == 401


async def test_a_session_dies_with_its_token(house: House) -> None:
    cookie = await sign_in(house)
    del house.twin.callers["swt_admin"]
    async with house.client(cookie=cookie) as browser:
        assert (await browser.get("/api/v1/jobs")).status_code == 401


async def test_a_forged_session_is_refused(house: House) -> None:
    forged = Sessions(b"x" * 32).cookie("t-admin222", time.time())
    for value in (forged, "", ".", "a.b", "a.b.c", "%%%.%%%"):
        async with house.client(cookie=f"swarm_session={value}") as browser:
            assert (await browser.get("/api/v1/jobs")).status_code in (401, 429)


async def test_signing_out_takes_the_cookie_away(house: House) -> None:
    headers = {"cookie": await sign_in(house), "origin": house.url}
    async with house.client(**headers) as browser:
        answer = await browser.delete("/signin")
    assert answer.status_code == 204
    assert 'swarm_session=""; ' in answer.headers["set-cookie"]


def test_codes_and_sessions_end_by_themselves() -> None:
    sessions = Sessions(b"k" * 32)
    code = sessions.link_code("t-aaaaaaaa", 1000.0)
    assert sessions.redeem(code, 1000.0 + LINK_LIVES_S) is None
    cookie = sessions.cookie("t-aaaaaaaa", 1000.0)
    assert sessions.token_id(cookie, 1000.0 + SESSION_LIVES_S - 1) == "t-aaaaaaaa"
    assert sessions.token_id(cookie, 1000.0 + SESSION_LIVES_S) is None


def test_the_session_key_survives_a_restart_and_is_for_its_owner_only(tmp_path: Path) -> None:
    first, again = session_key(tmp_path / "state"), session_key(tmp_path / "state")
    assert (first, len(first)) == (again, 32)
    assert (tmp_path / "state" / "session.key").stat().st_mode & 0o777 == 0o600
