"""Browser sessions: a one-time link becomes a signed cookie that stands for an access token's id.

The cookie holds no secret of anyone: it dies with the token, and with its own date.
"""

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass, field
from pathlib import Path

LINK_LIVES_S = 600.0
SESSION_LIVES_S = 7 * 86_400.0
LINKS_KEPT = 64
COOKIES = ("__Host-swarm", "swarm_session")
"""The first only over HTTPS; browsers refuse that name without Secure."""


@dataclass
class Sessions:
    """Makes and reads sign-in codes and session cookies.

    Args:
        key: 32 random bytes, kept on the leader's disk so that sessions survive a restart.
    """

    key: bytes
    _codes: dict[str, tuple[str, float]] = field(default_factory=dict)
    """SHA-256 of a code -> (token_id, until)."""

    def link_code(self, token_id: str, now: float) -> str:
        """A code that signs a browser in once, within ten minutes."""
        self._codes = {k: v for k, v in self._codes.items() if v[1] > now}
        while len(self._codes) >= LINKS_KEPT:
            self._codes.pop(next(iter(self._codes)))
        code = secrets.token_urlsafe(32)
        self._codes[_digest(code)] = (token_id, now + LINK_LIVES_S)
        return code

    def redeem(self, code: str, now: float) -> str | None:
        """The token_id of a code, once; None when it is unknown, used or late."""
        token_id, until = self._codes.pop(_digest(code), ("", 0.0))
        return token_id if until > now else None

    def cookie(self, token_id: str, now: float) -> str:
        """A session cookie's value."""
        told = json.dumps([token_id, now + SESSION_LIVES_S]).encode()
        return f"{_text(told)}.{_text(self._sign(told))}"

    def token_id(self, cookie: str, now: float) -> str | None:
        """Whose session a cookie is; None when it is not ours or has ended."""
        try:
            told, signature = (_bytes(part) for part in cookie.split("."))
            if not hmac.compare_digest(signature, self._sign(told)):
                return None
            token_id, until = json.loads(told)
        except (ValueError, binascii.Error):
            return None
        return str(token_id) if until > now else None

    def _sign(self, told: bytes) -> bytes:
        return hmac.digest(self.key, b"session\0" + told, "sha256")


def session_key(folder: Path) -> bytes:
    """The key of this leader's sessions, made at its first start. 32 bytes, mode 0600."""
    path = folder / "session.key"
    try:
        key = path.read_bytes()
        if len(key) == 32:
            return key
    except FileNotFoundError:
        pass
    folder.mkdir(parents=True, exist_ok=True)
    key = secrets.token_bytes(32)
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(key)
    return key


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
