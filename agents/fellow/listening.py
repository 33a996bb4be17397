"""Where a fellow's stages listen, and what neighbours are told to dial.

Usually a stage listens on a free port of this machine's addresses. Behind a router or proxy that
passes one port on, it listens on that port, and neighbours are told the address in front.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from agents.fellow.interfaces import more_addresses
from transport.candidates import told_endpoint
from transport.errors import SwarmError

_HINT = "write it like 192.168.1.20:7500, or [fd00::20]:7500"


@dataclass(frozen=True)
class Listening:
    """What every stage of this machine is told of its sockets."""

    address: str
    port: int = 0
    """0 = a free one."""
    more: tuple[str, ...] = ()
    """Other addresses to listen on, where that can be."""
    announced: tuple[str, ...] = ()
    """What neighbours are told to dial instead: "tcp://HOST:PORT"."""


def listening(listen: str, announce: Sequence[str], default_address: str) -> Listening:
    """From `--listen` and `--announce`.

    Args:
        listen: "", an address, or ADDRESS:PORT.
        announce: each ADDRESS:PORT.
        default_address: of this machine, when none is named; its others are listened on too.

    Raises:
        SwarmError: invalid-input for what is no address, or an announced one without a port that
            stages always listen on.
    """
    if not listen and not announce:
        return Listening(default_address, more=more_addresses(default_address))
    address, port = _split(listen) if listen else (default_address, 0)
    if announce and not port:
        raise SwarmError(
            "invalid-input",
            "--announce needs a port that stages always listen on",
            hint="name it, like --listen 192.168.1.20:7500",
        )
    told = []
    for one in announce:
        host, number = _split(one)
        if not number:
            raise SwarmError("invalid-input", f"--announce {one[:80]!r} has no port", hint=_HINT)
        told.append(told_endpoint(host, number))
    # An address that the owner names is the only one.
    return Listening(address, port, announced=tuple(told))


def _split(text: str) -> tuple[str, int]:
    """(address, port); port 0 when there is none."""
    try:
        return str(ipaddress.ip_address(text)), 0
    except ValueError:
        host, _, port = text.rpartition(":")
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise ValueError(port)
    except ValueError:
        raise SwarmError(
            "invalid-input", f"{text[:80]!r} is no IP address and port", hint=_HINT
        ) from None
    return str(address), int(port)
