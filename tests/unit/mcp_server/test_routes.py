"""The route table: every address is known, and every address has its guard."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from starlette.routing import Route

from mcp_server import access
from mcp_server.app import Doors, build_app
from mcp_server.sessions import Sessions
from tests.unit.mcp_server.twin import CREDENTIAL, House, Twin, sample
from transport.api.catalog import OPERATIONS
from transport.api.operation import SCOPES, Operation

# Addresses that are no operation and no fellow's: exactly these twelve, and the console's files.
TWELVE = {
    "/mcp",
    "/api/v1/events",
    "/api/v1/openapi.json",
    "/api/v1/jobs/{job_id}/adapter/{file}",
    "/api/v1/jobs/{job_id}/merged/{file}",
    "/api/v1/jobs/{job_id}/records.jsonl",
    "/api/v1/jobs/{job_id}/snapshots/{step}/{stage}",
    "/signin",
    "/healthz",
    "/readyz",
    "/version",
    "/metrics",
}
CONSOLE = "/{path:path}"
OPEN = {"/api/v1/openapi.json", "/healthz", "/readyz", "/version", CONSOLE, "/fellow/v1/join"}
"""Addresses that ask for no secret in a header; a join shows its invite in the body."""
READ = {"/api/v1/events", "/metrics", *(path for path in TWELVE if path.startswith("/api/v1/jobs"))}
SECRETS = {"nobody": None, "read": "swt_reader", "train": "swt_trainer", "admin": "swt_admin",
           "fellow": CREDENTIAL, "revoked": "swt_revoked"}  # fmt: skip


@dataclass(frozen=True)
class Address:
    """A route and one of its methods."""

    path: str
    method: str
    operation: Operation | None

    @property
    def example(self) -> str:
        """The path with its fields filled in."""
        fields = {"job_id": "j-aaaaaaaa", "fellow_id": "f-aaaaaaaa", "token_id": "t-aaaaaaaa",
                  "digest": "0" * 64, "attempt": "1", "stage": "0", "step": "1"}  # fmt: skip
        return re.sub(r"{(\w+)(?::path)?}", lambda m: fields.get(m[1], "x"), self.path)


def addresses() -> Iterator[Address]:
    """Every route of the application, by method."""
    app = build_app(Doors(Twin(), Sessions(b"k" * 32)))
    for route in app.routes:
        assert isinstance(route, Route), route
        operation = OPERATIONS.get(route.name)
        for method in sorted((route.methods or {"POST"}) - {"HEAD"}):
            yield Address(route.path, method, operation)


ALL = list(addresses())
IDS = [f"{address.method} {address.path}" for address in ALL]


def test_every_route_is_an_operation_a_fellow_s_or_one_of_twelve() -> None:
    rest = {a.path for a in ALL if a.operation is None and not a.path.startswith("/fellow/v1/")}
    assert rest == TWELVE | {CONSOLE}
    assert len(TWELVE) == 12


def test_every_operation_has_its_declared_route() -> None:
    declared = {(o.name, "/api/v1" + o.path, o.method) for o in OPERATIONS.values()}
    assert {(a.operation.name, a.path, a.method) for a in ALL if a.operation} == declared


def test_no_two_operations_share_an_address() -> None:
    shapes = [(a.method, re.sub(r"{\w+}", "{}", a.path)) for a in ALL if a.operation]
    assert len(shapes) == len(set(shapes))


def expected(address: Address, who: str) -> str:
    """in, unauthenticated or forbidden."""
    if address.path in OPEN or (address.path, address.method) == ("/signin", "GET"):
        return "in"
    if address.path.startswith("/fellow/v1"):
        return "in" if who == "fellow" else "unauthenticated"
    if who not in SCOPES:
        return "unauthenticated"
    needed = address.operation.scope if address.operation else "read"
    return "in" if SCOPES.index(who) >= SCOPES.index(needed) else "forbidden"


@pytest.mark.parametrize("who", SECRETS)
async def test_each_secret_opens_the_doors_of_its_scope_and_no_other(
    house: House, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "FAILURES_AT_ONCE", 1000)
    told = {}
    async with house.client(SECRETS[who]) as client:
        for address in ALL:
            body, query = _body(address), _query(address)
            asking = client.stream(address.method, address.example, json=body, params=query)
            async with asking as response:  # a live stream has no end to wait for
                told[f"{address.method} {address.path}"] = _outcome(response.status_code)
            house.twin.asked.clear()
    assert told == {f"{a.method} {a.path}": expected(a, who) for a in ALL}


def _body(address: Address) -> dict[str, object] | None:
    if address.operation is None or address.method != "POST":
        return None
    inside = re.findall(r"{(\w+)}", address.path)
    return {k: v for k, v in sample(address.operation.asks).items() if k not in inside}


def _query(address: Address) -> dict[str, str] | None:
    """What a destroying operation asks for beside its path: without it nobody gets to the door."""
    if address.operation is None or address.method != "DELETE":
        return None
    asked = _body(Address(address.path, "POST", address.operation)) or {}
    return {name: str(value) for name, value in asked.items()}


def _outcome(status: int) -> str:
    return {401: "unauthenticated", 403: "forbidden"}.get(status, "in")


def test_the_scope_of_each_read_address_is_read() -> None:
    scopes = {a.operation.scope for a in ALL if a.operation and a.operation.method == "GET"}
    assert scopes <= {"read", "admin"}
    assert READ <= TWELVE
