"""Asks a leader over REST: one call for every declared operation, the same SwarmError back.

Knows the routes from the declarations alone. Tries again where that cannot do harm: a read, or a
change that carries a request_id, which every change sent from here does.
"""

import hashlib
import json
import random
import ssl
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx2

from agents.addresses import is_loopback, leader_url
from agents.answers import problem, unreachable
from transport.api.operation import Answer, Ask, Change, Operation
from transport.errors import SwarmError
from transport.pinning import split_pin, trust

API = "/api/v1"
_TRIES = 4
_BLOCK = 1 << 20
# Refused at once when nothing listens: whoever asked wants to know now.
_BROKEN = (httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError, httpx2.ReadTimeout)

A = TypeVar("A", bound=Answer)
Progress = Callable[[int], None]


class Client:
    """A connection to one leader with one access token."""

    def __init__(self, url: str, token: str | None = None, timeout_s: float = 30.0) -> None:
        self.url, pin = split_pin(leader_url(url))
        self._timeout_s = timeout_s
        headers = {"User-Agent": "swarm-cli", "Accept": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._http = httpx2.Client(
            base_url=self.url,
            headers=headers,
            timeout=httpx2.Timeout(timeout_s, connect=min(timeout_s, 5.0)),
            trust_env=not is_loopback(self.url),
            # Reading all root certificates takes 20 ms, which clear text has no use for.
            verify=self._trust(pin) if pin else self.url.startswith("https:"),
        )

    def _trust(self, pin: str) -> ssl.SSLContext:
        try:
            return trust(self.url, pin)
        except OSError as error:
            raise unreachable(self.url, error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    def call(self, operation: Operation[A], ask: Ask) -> A:
        """Carry an operation out.

        Raises:
            SwarmError: the leader's refusal, or unreachable.
        """
        return self.read(operation, self.call_raw(operation, ask))

    def call_raw(self, operation: Operation, ask: Ask) -> bytes:
        """The same, with the answer's JSON as it came."""
        values = _values(ask)
        path = _path(operation, values)
        held_s = float(values.get("timeout_s") or 0.0)
        if operation.method == "POST":
            body = json.dumps(values).encode()
            return self._send(_Request("POST", path, body=body, held_s=held_s))
        return self._send(_Request(operation.method, path, _query(values), held_s=held_s))

    def upload_raw(
        self, operation: Operation, ask: Ask, file: Path, progress: Progress | None = None
    ) -> bytes:
        """The same as `upload`, with the answer's JSON as it came.

        Args:
            progress: called with the number of bytes of each block that was handed over.
        """
        values = _values(ask)
        path = _path(operation, values)
        request = _Request("POST", path, _query(values), file=file, progress=progress)
        return self._send(request)

    def upload(
        self, operation: Operation[A], ask: Ask, file: Path, progress: Progress | None = None
    ) -> A:
        """Carry out an operation whose upload field is the bytes of a file.

        Raises:
            SwarmError: the leader's refusal, or unreachable.
        """
        return self.read(operation, self.upload_raw(operation, ask, file, progress))

    def read(self, operation: Operation[A], answer: bytes) -> A:
        """An answer's JSON as its model."""
        try:
            return operation.answers.model_validate_json(answer)
        except ValueError:
            raise SwarmError(
                "internal",
                f"the leader at {self.url} answers {operation.name} in a way not known here",
                hint="leader and command line differ in version: update the older, or use --json",
            ) from None

    def sign_in_link(self) -> str:
        """A link that signs one browser in, once."""
        told = json.loads(self._send(_Request("POST", "/signin", can_repeat=False)))
        return str(told["url"])

    def get(self, path: str) -> bytes:
        """GET an address that is no operation (health, version)."""
        return self._send(_Request("GET", path))

    def fetch(self, path: str, target: Path, progress: Progress | None = None) -> str:
        """Write a file of the leader's to `target`, whole or not at all.

        Returns:
            SHA-256 of what was written, hex.
        """
        digest = hashlib.sha256()
        part = target.with_name(target.name + ".part")
        try:
            with self._stream(path) as response, part.open("wb") as file:
                if response.status_code >= 400:
                    raise problem(response.status_code, response.read())
                for block in response.iter_bytes(_BLOCK):
                    digest.update(block)
                    file.write(block)
                    if progress:
                        progress(len(block))
            part.replace(target)
        except httpx2.TransportError as error:
            raise unreachable(self.url, error) from None
        finally:
            part.unlink(missing_ok=True)
        return digest.hexdigest()

    def _stream(self, path: str) -> "AbstractContextManager[httpx2.Response]":
        return self._http.stream("GET", path)

    def _send(self, request: "_Request") -> bytes:
        for attempt in range(1, _TRIES + 1):
            is_last = attempt == _TRIES or not request.can_repeat
            try:
                response = self._once(request)
            except (httpx2.TransportError, httpx2.DecodingError) as error:
                if is_last or not isinstance(error, _BROKEN):
                    raise unreachable(self.url, error) from None
                time.sleep(_pause_s(attempt, None))
                continue
            if response.status_code < 400:
                return response.content
            if is_last or response.status_code not in (429, 503):
                raise problem(response.status_code, response.content)
            time.sleep(_pause_s(attempt, response.headers.get("retry-after")))
        raise AssertionError("the last try returns or raises")

    def _once(self, request: "_Request") -> httpx2.Response:
        limit_s = self._timeout_s + request.held_s
        return self._http.request(
            request.method,
            request.path,
            params=request.query,
            content=request.content(),
            headers=request.headers(),
            timeout=httpx2.Timeout(limit_s, connect=min(self._timeout_s, 5.0)),
        )


@dataclass(frozen=True)
class _Request:
    """One request, which may have to be made again."""

    method: str
    path: str
    query: Mapping[str, str] | None = None
    body: bytes | None = None
    file: Path | None = None
    progress: Progress | None = None
    held_s: float = 0.0
    """How long the leader may hold the answer back."""
    can_repeat: bool = True

    def content(self) -> "bytes | Iterator[bytes] | None":
        """The body, from its beginning."""
        return self.body if self.file is None else _blocks(self.file, self.progress)

    def headers(self) -> dict[str, str]:
        """What the body is, and how long a file is: too large a one is refused unsent."""
        if self.file is not None:
            size = str(self.file.stat().st_size)
            return {"Content-Type": "application/octet-stream", "Content-Length": size}
        return {} if self.body is None else {"Content-Type": "application/json"}


def _values(ask: Ask) -> dict[str, Any]:
    """What crosses: the arguments that were given, and a request_id for every change."""
    values = ask.model_dump(mode="json", exclude_unset=True)
    if isinstance(ask, Change) and not values.get("request_id"):
        values["request_id"] = uuid.uuid4().hex
    return values


def _path(operation: Operation, values: dict[str, Any]) -> str:
    """The operation's address; what stands in it is taken out of the values."""
    path = operation.path
    for name in list(values):
        if f"{{{name}}}" in path:
            path = path.replace(f"{{{name}}}", quote(str(values.pop(name)), safe=""))
    return API + path


def _query(values: Mapping[str, Any]) -> dict[str, str]:
    words = {True: "true", False: "false"}
    return {
        name: words[value] if isinstance(value, bool) else str(value)
        for name, value in values.items()
        if value is not None
    }


def _blocks(file: Path, progress: Progress | None) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while block := opened.read(_BLOCK):
            yield block
            if progress:
                progress(len(block))


def _pause_s(attempt: int, told: str | None) -> float:
    """What the leader asked for, at most 5 s; else doubling from 0.2 s, spread."""
    if told and told.isascii() and told.isdigit():
        return min(5.0, float(told))
    return 0.2 * float(2**attempt) * random.uniform(0.5, 1.0)  # noqa: S311 - guards nothing
