"""A leader's address as a person writes it, checked; nothing is asked of the network.

Loads no HTTP, so that the command line's help costs nothing.
"""

import ipaddress
from urllib.parse import urlsplit

from transport.errors import SwarmError
from transport.pinning import split_pin, with_pin

_URL_HINT = "write it like http://127.0.0.1:7420 or https://leader.example.org"


def leader_url(text: str) -> str:
    """A leader's address without a trailing slash; "#pin=HEX" stays where it is told.

    Raises:
        SwarmError: invalid-input when it is no http(s) address, or holds a user name or a query.
    """
    address, pin = split_pin(text.strip())
    try:
        parts = urlsplit(address)
        _ = parts.port
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SwarmError(
            "invalid-input", f"{address[:200]!r} is not a leader's address", hint=_URL_HINT
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise SwarmError(
            "invalid-input",
            "a leader's address holds no user name and no query",
            hint=_URL_HINT,
        )
    return with_pin(address.rstrip("/"), pin)


def is_loopback(url: str) -> bool:
    """Whether a leader's address is this same machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
