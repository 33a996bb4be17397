"""CURVE key pairs: who a stage is on its links.

A worker makes its pair when it starts and forgets it when it ends. Only the public half is ever
sent; the secret half is in no file, log line or repr.
"""

import re
from dataclasses import dataclass, field

import zmq

from transport.errors import SwarmError

# Z85 (ZeroMQ RFC 32): 32 bytes are 40 of these symbols.
_Z85_KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")


@dataclass(frozen=True, slots=True)
class KeyPair:
    """One CURVE25519 key pair in Z85 text."""

    public: str
    secret: str = field(repr=False)


def new_key_pair() -> KeyPair:
    """A fresh pair from the system's random source."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode("ascii"), secret.decode("ascii"))


def check_public_key(text: str) -> str:
    """The key itself, if it is one.

    Raises:
        SwarmError: invalid-input; not 40 symbols of Z85, or not 32 bytes when decoded.
    """
    # libzmq's own decoder takes some texts whose groups of five exceed 32 bits.
    if _Z85_KEY.fullmatch(text) and all(_fits(text[at : at + 5]) for at in range(0, 40, 5)):
        return text
    raise SwarmError(
        "invalid-input",
        f"a stage's public key must be 40 symbols of Z85, not {len(text)} symbols like these",
        hint="use the key that the stage reported when it was bound",
    )


_SYMBOLS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def _fits(group: str) -> bool:
    """Whether five symbols are four bytes."""
    value = 0
    for symbol in group:
        value = value * 85 + _SYMBOLS.index(symbol)
    return value < 2**32
