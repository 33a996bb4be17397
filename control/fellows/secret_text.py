"""Secrets that the leader hands out: derived from its own key, so that none has to be stored.

At rest there is only the SHA-256 of each. A repeated request gets the same secret again.
"""

import base64
import hashlib
import hmac
from pathlib import Path

from control.store.files import write_whole
from transport.ids import RandomBytes

TOKEN_PREFIX = "swm_"  # noqa: S105 - a prefix for people and leak scanners, not a secret
INVITE_PREFIX = "swi_"


def leader_key(folder: Path, random_bytes: RandomBytes) -> bytes:
    """The leader's own key, made at its first start: 32 bytes, mode 0600."""
    path = folder / "leader.key"
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        key = b""
    if len(key) != 32:
        key = random_bytes(32)
        write_whole(path, key, mode=0o600)
    return key


def relay_key(key: bytes) -> bytes:
    """What the leader shares with the relay that it starts: 32 bytes from its own key."""
    return hmac.digest(key, b"relay", "sha256")


def derive(key: bytes, prefix: str, name: str) -> str:
    """The secret of one invite or token: 256 bits as text."""
    raw = hmac.digest(key, f"{prefix}\0{name}".encode(), "sha256")
    return prefix + base64.urlsafe_b64encode(raw).decode().rstrip("=")


def sha256_text(secret: str) -> str:
    """What is stored of a secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
