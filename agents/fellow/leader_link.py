"""The fellow's own requests to its leader, counted byte by byte.

One method for each route of the fellow API. Does not decide when to ask or what to do with an
answer; every failure is a SwarmError.
"""

import asyncio
import json
import ssl
from collections.abc import Sequence
from types import TracebackType
from typing import Self, TypeVar

import httpx2
from pydantic import BaseModel

from agents.addresses import is_loopback
from agents.answers import problem, unreachable
from agents.fellow.spool import Line
from transport.beats import ShortBeat
from transport.cards import PROTOCOL, Heartbeat
from transport.errors import SwarmError
from transport.lives import LIFE_HEADER, new_life
from transport.orders import DesiredState
from transport.pinning import split_pin, trust
from transport.reports import JoinAsk, Joined, ReportsTaken

A = TypeVar("A", bound=BaseModel)

_HELD_S = 25.0  # the leader answers a held request within this
_TIMEOUT = httpx2.Timeout(10.0)
_BEAT_TIMEOUT = httpx2.Timeout(5.0)
"""A heartbeat on a connection that is dead is given up, and another sent, before the leader takes
the fellow for silent.
"""
_HELD_TIMEOUT = httpx2.Timeout(10.0, read=_HELD_S + 15.0)


class LeaderLink:
    """A connection pool to one leader, with the fellow's credential once it has joined."""

    def __init__(self, address: str, credential: str | None = None) -> None:
        self.url, self._pin = split_pin(address)
        self.sent_bytes = 0
        self.received_bytes = 0
        self._headers = {"User-Agent": "swarm-fellow", "Accept": "application/json"}
        # Made anew at each start: by it the leader tells a restart from a copied disk.
        self._headers[LIFE_HEADER] = new_life()
        if credential:
            self._headers["Authorization"] = f"Bearer {credential}"
        self._turn = asyncio.Lock()
        self._client = self._open(verify=True) if self._pin is None else None
        """None while the leader's key has not been looked at."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close()

    async def join(self, ask: JoinAsk) -> Joined:
        """Ask to join; the same question again is the same join."""
        return await self._ask(Joined, "POST", "/join", ask.model_dump_json())

    async def heartbeat(self, beat: Heartbeat) -> DesiredState:
        """Say how this machine is; hear what it should do."""
        told = beat.model_dump_json()
        return await self._ask(DesiredState, "POST", "/heartbeat", told, _BEAT_TIMEOUT)

    async def short_beat(self, beat: ShortBeat) -> DesiredState:
        """The same, where the leader knows the rest.

        Raises:
            SwarmError: conflict when it does not; unreachable.
        """
        told = beat.model_dump_json()
        return await self._ask(DesiredState, "POST", "/beat", told, _BEAT_TIMEOUT)

    async def orders(self, since: int) -> DesiredState:
        """Wait up to 25 s for a desired state newer than `since`."""
        path = f"/orders?since={since}"
        return await self._ask(DesiredState, "GET", path, None, _HELD_TIMEOUT)

    async def reports(self, fellow_id: str, lines: Sequence[Line]) -> ReportsTaken:
        """Hand over reports; answered after the leader's commit."""
        # The lines are ReportBatch's own JSON, written once when the reports were made.
        body = (
            f'{{"protocol":{PROTOCOL},"fellow_id":{json.dumps(fellow_id)},"reports":['
            + ",".join(line.text for line in lines)
            + "]}"
        )
        return await self._ask(ReportsTaken, "POST", "/reports", body)

    async def receive(self, size: int) -> None:
        """Have the leader send so many bytes: what a measurement asks for."""
        await self._exchange("GET", f"/measure?bytes={size}", None, _HELD_TIMEOUT)

    async def give(self, size: int) -> None:
        """Send the leader so many bytes."""
        await self._exchange("POST", "/measure", "0" * size)

    async def _ask(
        self,
        answers: type[A],
        method: str,
        path: str,
        body: str | None,
        timeout: httpx2.Timeout = _TIMEOUT,
    ) -> A:
        return _read(answers, await self._exchange(method, path, body, timeout), self.url)

    async def _exchange(
        self, method: str, path: str, body: str | None, timeout: httpx2.Timeout = _TIMEOUT
    ) -> bytes:
        client = self._client or await self._look()
        request = client.build_request(
            method,
            path,
            content=None if body is None else body.encode(),
            headers={} if body is None else {"Content-Type": "application/json"},
            timeout=timeout,
        )
        try:
            response = await client.send(request)
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            if self._pin is not None and isinstance(error, httpx2.ConnectError):
                await self._close()  # its certificate may be a new one of the same key
            raise unreachable(self.url, error) from None
        self.sent_bytes += _size(request.headers) + len(body or "")
        self.received_bytes += _size(response.headers) + len(response.content)
        if response.status_code >= 400:
            raise problem(response.status_code, response.content)
        return response.content

    async def _look(self) -> httpx2.AsyncClient:
        """See whether the leader holds the pinned key, and trust that alone from now on."""
        assert self._pin is not None
        async with self._turn:
            if self._client is None:
                try:
                    trusted = await asyncio.to_thread(trust, self.url, self._pin)
                except OSError as error:
                    raise unreachable(self.url, error) from None
                self._client = self._open(trusted)
            return self._client

    def _open(self, verify: ssl.SSLContext | bool) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            base_url=self.url + "/fellow/v1",
            headers=self._headers,
            timeout=_TIMEOUT,
            verify=verify,
            # A proxy of the environment never stands between two processes of one machine.
            trust_env=not is_loopback(self.url),
            limits=httpx2.Limits(max_connections=4, keepalive_expiry=60.0),
        )

    async def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def _size(headers: httpx2.Headers) -> int:
    """Bytes of a message's head, nearly: names, values and their separators."""
    return 40 + sum(len(name) + len(value) + 4 for name, value in headers.raw)


def _read(answers: type[A], content: bytes, url: str) -> A:
    try:
        return answers.model_validate_json(content)
    except ValueError:
        raise SwarmError(
            "internal",
            f"what answers at {url} does not speak this fellow's language",
            hint="check the address; leader and fellow may be too many versions apart",
        ) from None
