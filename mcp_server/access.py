"""Who may come in: Host and Origin first, then tokens, fellows' credentials and sessions.

Three classes of secret, each good at its own doors only. Secrets are compared by the leader as
hashes; scopes are checked where operations run, not here.
"""

import ipaddress
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_server.office import Caller, Office
from mcp_server.problems import problem_response
from mcp_server.sessions import COOKIES, Sessions
from transport.errors import SwarmError
from transport.lives import LIFE_HEADER, is_life

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
FELLOW_PREFIX = "/fellow/v1"
FELLOW_CREDENTIAL = "swn_"
MAX_SECRET = 256
FAILURES_AT_ONCE = 10
FAILURE_EVERY_S = 6.0
BUCKETS_KEPT = 4096


@dataclass(frozen=True)
class Names:
    """The names under which this leader is rightly addressed."""

    hosts: frozenset[str] = frozenset()
    """Beside loopback: host or host:port, lower case."""

    def knows(self, host: str) -> bool:
        """Whether a Host header names this leader. Loopback names are good with any port:
        a rebinding attacker's page cannot make a browser send them."""
        host = host.lower()
        return host in self.hosts or _without_port(host) in LOOPBACK_NAMES

    @classmethod
    def of(cls, public_url: str | None, more: tuple[str, ...] = ()) -> "Names":
        """From the configured public URL and addresses of this machine (with or without port)."""
        netloc = urlsplit(public_url).netloc.lower() if public_url else ""
        return cls(frozenset(name for name in (netloc, _without_port(netloc), *more) if name))


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class HostGuard:
    """In front of everything: a foreign Host is 421, a foreign Origin 403."""

    def __init__(self, app: ASGIApp, names: Names) -> None:
        self.app = app
        self.names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        refusal = self.refuse(Headers(scope=scope))
        if refusal is None:
            await self.app(scope, receive, send)
            return
        status, error = refusal
        response = problem_response(error)
        response.status_code = status
        await response(scope, receive, send)

    def refuse(self, headers: Headers) -> tuple[int, SwarmError] | None:
        """Status and reason for a request that is not for this leader or from another site."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self.names.knows(hosts[0]):
            return 421, SwarmError(
                "forbidden",
                "this leader is not known under the name you asked for",
                hint="use the address it prints at its start, or name yours with --public URL",
            )
        origin = headers.get("origin")
        if origin is not None and not self._is_own(origin, hosts[0]):
            return 403, SwarmError(
                "forbidden",
                "a page of another site may not call this leader",
                hint="open the console at the leader's own address",
            )
        return None

    def _is_own(self, origin: str, host: str) -> bool:
        parts = urlsplit(origin)
        return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()


@dataclass
class FailureBuckets:
    """Counts refused secrets of an address: ten at once, then one in six seconds."""

    levels: dict[str, tuple[float, float]] = field(default_factory=dict)
    """address -> (failures left, at which monotonic second)."""

    def spend(self, address: str, now: float) -> float:
        """Count one failure. Returns 0, or the seconds to wait when there were too many."""
        left, then = self.levels.pop(address, (float(FAILURES_AT_ONCE), now))
        left = min(FAILURES_AT_ONCE, left + (now - then) / FAILURE_EVERY_S)
        if len(self.levels) >= BUCKETS_KEPT:
            self.levels.pop(next(iter(self.levels)))
        if left < 1:
            self.levels[address] = (left, now)
            return (1 - left) * FAILURE_EVERY_S
        self.levels[address] = (left - 1, now)
        return 0.0


class Reception:
    """Finds out who a request comes from."""

    def __init__(self, office: Office, sessions: Sessions) -> None:
        self.office = office
        self.sessions = sessions
        self.failures = FailureBuckets()

    async def caller(self, request: Request) -> Caller:
        """The caller by bearer token or, for a browser, by its session.

        Raises:
            SwarmError: unauthenticated, rate-limited, or forbidden for a write by a cookie alone.
        """
        secret = bearer(request.headers)
        if secret is not None:
            known = not secret.startswith(FELLOW_CREDENTIAL)
            caller = await self.office.caller(secret) if known else None
            if caller is None:
                self.refuse(request, "this access token is not valid here")
            return caller
        cookie = next((request.cookies[name] for name in COOKIES if name in request.cookies), None)
        if cookie is None:
            raise SwarmError(
                "unauthenticated",
                "this needs an access token",
                hint="send Authorization: Bearer TOKEN (the CLI: --token-file FILE), "
                "or sign in by a link from `swarm signin`",
            )
        token_id = self.sessions.token_id(cookie, time.time())
        signed_in = await self.office.caller_by_id(token_id) if token_id else None
        if signed_in is None:
            self.refuse(request, "this browser's session has ended")
        if request.method not in ("GET", "HEAD") and request.headers.get("origin") is None:
            raise SwarmError(
                "forbidden",
                "a change by a browser's session must say which page it comes from",
                hint="use the console, or an access token",
            )
        return signed_in

    async def fellow(self, request: Request) -> str:
        """The fellow_id of a fellow's credential. Access tokens are worth nothing here."""
        secret = bearer(request.headers)
        fellow_id = (
            await self.office.fellow(secret)
            if secret is not None and secret.startswith(FELLOW_CREDENTIAL)
            else None
        )
        if fellow_id is None:
            self.refuse(request, "this fellow's credential is not valid here")
        life = request.headers.get(LIFE_HEADER, "")
        await self.office.admit(fellow_id, life if is_life(life) else "")
        return fellow_id

    def refuse(self, request: Request, message: str) -> NoReturn:
        """Count a refused secret against its sender's address, and say so."""
        self.count_failure(request)
        raise SwarmError("unauthenticated", message, hint="make one with `swarm tokens create`")

    def count_failure(self, request: Request) -> None:
        """Count a refused secret; rate-limited when its sender had too many of them.

        A good secret is never held back: whoever shares the address keeps working.
        """
        address = request.client.host if request.client else "?"
        wait_s = self.failures.spend(address, time.monotonic())
        if wait_s > 0:
            raise SwarmError(
                "rate-limited",
                f"too many refused secrets from this address; wait {wait_s:.0f} s",
                hint="check the token before trying again",
                facts={"retry_after_s": wait_s},
            )


def bearer(headers: Mapping[str, str]) -> str | None:
    """The bearer secret of a request; None when there is none."""
    kind, _, secret = headers.get("authorization", "").partition(" ")
    secret = secret.strip()
    if kind.lower() != "bearer" or not secret:
        return None
    return secret[:MAX_SECRET]
