"""The blind relay: joins two stages that cannot reach each other, and sees ciphertext only.

    python -m transport.relay_server --key-file FILE [--host 0.0.0.0] [--port 7421]

Speaks the small part of SOCKS5 that `transport.porter` uses. The host name in a CONNECT is a ticket
(`transport.relay`); the answer is held back until the other side of the same session has come, and
from then on bytes are passed on, a block at a time, no faster than they are taken. It never parses
what it passes on and keeps no state: after a restart both ends dial again with the same tickets.
Source: RFC 1928 (SOCKS5).
"""

import argparse
import asyncio
import json
import logging
import os
import resource
import secrets
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from transport.errors import SwarmError
from transport.relay import (
    KEY_BYTES,
    MAX_TICKET_CHARS,
    RELAY_PORT,
    Side,
    Ticket,
    read_key,
    read_ticket,
)

log = logging.getLogger("swarm.relay")

BLOCK_BYTES: Final = 64 * 1024
SOCKET_BUFFER_BYTES: Final = 1 << 20
"""Of the kernel, per connection and direction; its own tuning goes to several MB."""
MEMORY_BYTES: Final = 256_000_000
LAST_WORDS_S: Final = 1.0
_GREETING: Final = b"\x05\x00"
_ALLOWED: Final = b"\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00"
_REFUSED: Final = b"\x05\x02\x00\x01\x00\x00\x00\x00\x00\x00"
_NO_METHOD: Final = b"\x05\xff"
_DOMAIN: Final = 3


@dataclass(frozen=True, slots=True)
class Limits:
    """What a relay bears. Past a limit the newcomer is closed; nobody who is joined is."""

    handshake_s: float = 10.0
    """From accepting to a ticket."""
    pairing_s: float = 60.0
    """From a ticket to its partner; ends at the pairing."""
    strangers: int = 256
    """Connections that have shown no ticket yet."""
    strangers_of_one_address: int = 64
    sessions: int = 512
    """Joined or waiting, of all pools."""
    sessions_of_one_pool: int = 64


@dataclass(slots=True)
class Counts:
    """What happened since the start."""

    accepted: int = 0
    refused: int = 0
    joined: int = 0
    passed_bytes: int = 0


@dataclass(eq=False, slots=True)
class _End:
    """One stage's connection that has shown its ticket."""

    ticket: Ticket
    socket: socket.socket
    partner: "asyncio.Future[_End]"
    told: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it knows that it is joined: only then may bytes of the partner follow."""
    closed: asyncio.Event = field(default_factory=asyncio.Event)


class Relay:
    """Joins the two holders of a session's tickets.

    Args:
        key: the one that the tickets were written with.
        clock: unix seconds.
    """

    def __init__(
        self, key: bytes, limits: Limits | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        assert len(key) == KEY_BYTES
        self.counts = Counts()
        self._key = key
        self._limits = limits or Limits()
        self._clock = clock
        self._strangers: Counter[str] = Counter()
        self._ends: dict[tuple[bytes, Side], _End] = {}
        self._pools: Counter[bytes] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, listener: socket.socket) -> None:
        """Accept until cancelled; then everything is closed."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        try:
            while True:
                try:
                    connection, address = await loop.sock_accept(listener)
                except OSError as error:  # out of files: those that end make room
                    log.warning("cannot accept", extra={"why": str(error)})
                    await asyncio.sleep(0.1)
                    continue
                self._admit(connection, str(address[0]))
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _admit(self, connection: socket.socket, address: str) -> None:
        limits = self._limits
        self.counts.accepted += 1
        if (
            self._strangers.total() >= limits.strangers
            or self._strangers[address] >= limits.strangers_of_one_address
        ):
            self.counts.refused += 1
            connection.close()
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        self._strangers[address] += 1
        task = asyncio.get_running_loop().create_task(self._attend(connection, address))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attend(self, connection: socket.socket, address: str) -> None:
        """One connection from its first byte to its last."""
        end: _End | None = None
        try:
            try:
                ticket = await self._handshake(connection)
            finally:
                self._strangers[address] -= 1
                if not self._strangers[address]:
                    del self._strangers[address]
            end = self._enter(ticket, connection) if ticket is not None else None
            if end is None:
                self.counts.refused += 1
                return
            await self._stay(end)
        except (OSError, MemoryError) as error:
            log.debug("a connection ended", extra={"why": type(error).__name__})
        finally:
            if end is not None:
                self._leave(end)
            connection.close()

    async def _handshake(self, connection: socket.socket) -> Ticket | None:
        """Read greeting and request; None for whoever has no ticket. Reads no byte more."""
        try:
            async with asyncio.timeout(self._limits.handshake_s):
                name = await _requested_name(connection)
                ticket = read_ticket(self._key, name, self._clock()) if name else None
                if ticket is None and name is not None:
                    await asyncio.get_running_loop().sock_sendall(connection, _REFUSED)
                return ticket
        except TimeoutError:
            return None

    def _enter(self, ticket: Ticket, connection: socket.socket) -> _End | None:
        """Take a place; None when there is none. The same side again replaces its older self."""
        place = (ticket.session, ticket.side)
        older = self._ends.get(place)
        if older is not None:
            self._leave(older)
        full = len(self._ends) >= 2 * self._limits.sessions
        if full or self._pools[ticket.pool] >= 2 * self._limits.sessions_of_one_pool:
            log.warning("no room for another session", extra={"sessions": len(self._ends) // 2})
            return None
        end = _End(ticket, connection, asyncio.get_running_loop().create_future())
        self._ends[place] = end
        self._pools[ticket.pool] += 1
        other = self._ends.get((ticket.session, Side(1 - ticket.side)))
        if other is not None and not other.partner.done():
            other.partner.set_result(end)
            end.partner.set_result(other)
            self.counts.joined += 1
        return end

    def _leave(self, end: _End) -> None:
        """Give up a place; the partner's connection ends with it."""
        end.closed.set()
        place = (end.ticket.session, end.ticket.side)
        if self._ends.get(place) is not end:
            return
        del self._ends[place]
        self._pools[end.ticket.pool] -= 1
        if not self._pools[end.ticket.pool]:
            del self._pools[end.ticket.pool]
        if end.partner.done() and not end.partner.cancelled():
            end.partner.result().closed.set()

    async def _stay(self, end: _End) -> None:
        """Wait for the partner, then pass on what this end says until one of both is gone."""
        until_closed = asyncio.ensure_future(end.closed.wait())
        try:
            partner = await self._partner_of(end, until_closed)
            if partner is None:
                return
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(end.socket, _ALLOWED)
            end.told.set()
            passing = asyncio.ensure_future(self._pass_on(end, partner))
            await asyncio.wait({passing, until_closed}, return_when=asyncio.FIRST_COMPLETED)
            passing.cancel()
            await asyncio.gather(passing, return_exceptions=True)
        finally:
            until_closed.cancel()

    async def _partner_of(
        self, end: _End, until_closed: "asyncio.Future[Literal[True]]"
    ) -> "_End | None":
        """The other end; None when it does not come, or this one leaves or speaks too early."""
        loop = asyncio.get_running_loop()
        early = asyncio.ensure_future(loop.sock_recv(end.socket, 1))
        try:
            waited: set[asyncio.Future[Any]] = {early, until_closed, end.partner}
            await asyncio.wait(
                waited,
                timeout=self._limits.pairing_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            was_early = early.done()
            early.cancel()
            await asyncio.gather(early, return_exceptions=True)
        if was_early or end.closed.is_set() or not end.partner.done():
            return None
        return end.partner.result()

    async def _pass_on(self, source: _End, target: _End) -> None:
        loop = asyncio.get_running_loop()
        await target.told.wait()
        block = memoryview(bytearray(BLOCK_BYTES))
        while count := await loop.sock_recv_into(source.socket, block):
            await loop.sock_sendall(target.socket, block[:count])
            self.counts.passed_bytes += count
        # Its last words must not be lost with a connection that is closed over unread bytes.
        target.socket.shutdown(socket.SHUT_WR)
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await target.closed.wait()


async def _requested_name(connection: socket.socket) -> str | None:
    """The host name of a CONNECT; None for anything else, as early as it shows."""
    loop = asyncio.get_running_loop()
    version, count = await _exactly(connection, 2)
    if version != 5 or not 1 <= count <= 8:
        return None
    methods = await _exactly(connection, count)
    if 0 not in methods:
        await loop.sock_sendall(connection, _NO_METHOD)
        return None
    await loop.sock_sendall(connection, _GREETING)
    version, command, _, kind = await _exactly(connection, 4)
    if (version, command, kind) != (5, 1, _DOMAIN):
        await loop.sock_sendall(connection, _REFUSED)
        return None
    (length,) = await _exactly(connection, 1)
    if not 0 < length <= MAX_TICKET_CHARS:
        return None
    name = await _exactly(connection, length)
    await _exactly(connection, 2)  # the port means nothing here
    return name.decode("ascii", "replace")


async def _exactly(connection: socket.socket, count: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < count:
        more = await loop.sock_recv(connection, count - len(data))
        if not more:
            raise ConnectionResetError
        data += more
    return data


def listen(host: str, port: int) -> socket.socket:
    """A bound socket for a relay; its connections inherit bounded buffers.

    Raises:
        SwarmError: conflict when the port is in use, invalid-input when the address is not ours.
    """
    plain = host.strip("[]")
    listener = socket.socket(socket.AF_INET6 if ":" in plain else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        listener.bind((plain, port))
        listener.listen(256)
    except OSError as error:
        listener.close()
        in_use = error.errno == 98  # EADDRINUSE
        raise SwarmError(
            "conflict" if in_use else "invalid-input",
            f"the relay cannot listen on {host} port {port}: "
            + ("it is in use" if in_use else f"{error.strerror or error}"),
            hint="choose another port, or an address of this machine",
        ) from error
    return listener


def own_key(path: Path) -> bytes:
    """The key in a file, made at the first start; mode 0600.

    Raises:
        SwarmError: invalid-input; the file holds something else, or cannot be written.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_key(path)
    except OSError as error:
        raise SwarmError(
            "invalid-input",
            f"the relay's key cannot be written to {path}: {error.strerror}",
            hint="name a file in a folder that exists",
        ) from None
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(KEY_BYTES) + "\n")
    return read_key(path)


def _told_key(path: Path | None) -> bytes:
    if path is None:
        raise SwarmError(
            "invalid-input",
            "a relay needs the key that it shares with its leader",
            hint="name a file with --key-file; it is made if it is not there",
        )
    return own_key(path.expanduser())


async def _run(relay: Relay, listener: socket.socket, *, is_child: bool) -> None:
    serving = asyncio.ensure_future(relay.serve(listener))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, serving.cancel)
    if is_child:  # its leader holds the other end and says nothing on it
        loop.add_reader(0, serving.cancel)
    port = listener.getsockname()[1]
    sys.stdout.write(json.dumps({"ready": True, "port": port}) + "\n")
    sys.stdout.flush()
    with suppress(asyncio.CancelledError):
        await serving


def main(words: list[str] | None = None) -> int:
    """Run a relay until SIGTERM (as a leader's child: or until stdin ends); the exit code."""
    parser = argparse.ArgumentParser("swarm relay", description="Join stages that cannot meet.")
    parser.add_argument("--key-file", type=Path, help="shared with the leader; made if missing")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")  # noqa: S104
    parser.add_argument("--port", type=int, default=RELAY_PORT)
    parser.add_argument("--listen-fd", type=int, help=argparse.SUPPRESS)
    told = parser.parse_args(words)
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    try:
        if told.listen_fd is not None:
            key, listener = os.read(0, KEY_BYTES), socket.socket(fileno=told.listen_fd)
        else:
            key, listener = _told_key(told.key_file), listen(told.host, told.port)
    except SwarmError as error:
        sys.stderr.write(f"{error.code}: {error.message}. Next: {error.hint}\n")
        return error.exit_code
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    asyncio.run(_run(Relay(key), listener, is_child=told.listen_fd is not None))
    return 0


if __name__ == "__main__":
    sys.exit(main())
