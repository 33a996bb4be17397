"""Tickets: what a stage shows a relay so that it is joined with exactly its neighbour.

A ticket is a host name, because that is what SOCKS5 can dial: hex of pool, session, side, expiry
and a MAC over them. The relay keeps the key and nothing more, so a ticket is good again after a
broken connection and after a restart of the relay. Whoever copies a ticket can disturb a link, and
no more: CURVE runs end to end inside.
"""

import hashlib
import hmac
import re
import struct
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

from transport.errors import SwarmError

RELAY_PORT: Final = 7421
KEY_BYTES: Final = 32
MAX_TICKET_CHARS: Final = 128
TICKET_S: Final = 30 * 86_400.0
"""How long after an attempt's start its tickets are good."""
_VERSION: Final = 1
_BODY: Final = struct.Struct(">B4s16sBQ")
_MAC_BYTES: Final = 16
_KEY: Final = re.compile(r"[0-9a-f]{64}")


class Side(IntEnum):
    """Which end of a boundary shows the ticket."""

    DIALS = 0
    """The stage before the boundary."""
    ANSWERS = 1


@dataclass(frozen=True, slots=True)
class Ticket:
    """Who wants to be joined with whom, as far as a relay needs to know: tags, no names."""

    pool: bytes
    """4 bytes: whose limits count."""
    session: bytes
    """16 bytes: of one boundary of one attempt."""
    side: Side
    expires_at: int
    """Unix seconds, on the leader's clock."""


def ticket_for(pool: str, link: str, side: Side, expires_at: float) -> Ticket:
    """The ticket of one end of a link.

    Args:
        link: names job, attempt and boundary, the same for both ends.
    """
    return Ticket(_tag(pool, 4), _tag(link, 16), side, int(expires_at))


def _tag(text: str, size: int) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=size).digest()


def write_ticket(key: bytes, ticket: Ticket) -> str:
    """The ticket as the host name that a stage dials through the relay."""
    body = _BODY.pack(_VERSION, ticket.pool, ticket.session, ticket.side, ticket.expires_at)
    return (body + _mac(key, body)).hex()


def read_ticket(key: bytes, text: str, now: float) -> Ticket | None:
    """The ticket in a host name; None for anything that the holder of the key did not write, or
    that has expired. Never raises.
    """
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        return None
    body, mac = raw[: _BODY.size], raw[_BODY.size :]
    if len(body) != _BODY.size or not hmac.compare_digest(_mac(key, body), mac):
        return None
    version, pool, session, side, expires_at = _BODY.unpack(body)
    if version != _VERSION or side not in (0, 1) or now > expires_at:
        return None
    return Ticket(pool, session, Side(side), expires_at)


def _mac(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key, b"swarm relay ticket\0" + body, "sha256")[:_MAC_BYTES]


def read_key(path: Path) -> bytes:
    """The key that a leader and its relay share: 64 hex digits in a file.

    Raises:
        SwarmError: invalid-input when the file cannot be read as one.
    """
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        text = ""
        why = type(error).__name__
    else:
        why = f"{len(text)} characters"
    if not _KEY.fullmatch(text):
        raise SwarmError(
            "invalid-input",
            f"the relay's key file {path} does not hold 64 hex digits ({why})",
            hint="`swarm relay --key-file FILE` makes one where there is none; copy that file",
        )
    return bytes.fromhex(text)
