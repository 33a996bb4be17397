"""Who this machine is in its pool: its name, its own credential, and which leader it obeys.

One small file in the state folder, readable by its owner only. The credential is made here and
never leaves except as a bearer token; the leader keeps its SHA-256.
"""

import fcntl
import hashlib
import json
import os
import secrets
import socket
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

import platformdirs

from agents.log_lines import clean
from transport.errors import SwarmError

_FILE = "identity.json"


@dataclass(frozen=True)
class Identity:
    """A machine that has asked to join, or has joined (`fellow_id` is then set)."""

    leader: str
    credential: str
    invite_sha256: str
    cards: tuple[str, ...]
    fellow_id: str = ""
    pool: str = ""
    heartbeat_s: float = 5.0
    name: str = ""
    """What people call this machine; empty = as its system does."""

    @property
    def shown_name(self) -> str:
        """What plans and tables call it."""
        return clean(self.name or socket.gethostname(), 200) or "unnamed"

    @property
    def has_joined(self) -> bool:
        """Whether the leader has said yes."""
        return self.fellow_id != ""

    @property
    def credential_sha256(self) -> str:
        """What the leader is shown at joining."""
        return sha256(self.credential)

    def joined(self, fellow_id: str, pool: str, heartbeat_s: float) -> "Identity":
        """The same machine after the leader has said yes."""
        return replace(self, fellow_id=fellow_id, pool=pool, heartbeat_s=heartbeat_s)


def default_state_folder() -> Path:
    """Where a fellow keeps its name, its unsent reports and its workers' folders."""
    told = os.environ.get("SWARM_FELLOW_STATE")
    return Path(told) if told else platformdirs.user_state_path("swarm") / "fellow"


def sha256(secret: str) -> str:
    """Hex digest of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def new_credential() -> str:
    """A bearer token of this machine's own: "swn_" and 256 random bits."""
    return "swn_" + secrets.token_urlsafe(32)


def prepare(
    folder: Path, leader: str, invite: str, cards: tuple[str, ...], name: str = ""
) -> Identity:
    """The identity to ask with: the one already on disk when it asked with this same invite.

    It is on disk before the leader hears of it, so that a lost answer can be asked for again.
    """
    kept = load(folder)
    digest = sha256(invite)
    name = name or (kept.name if kept is not None else "")
    if kept is not None and (kept.leader, kept.invite_sha256) == (leader, digest):
        identity = replace(kept, cards=cards or kept.cards, name=name)
    else:
        identity = Identity(leader, new_credential(), digest, cards, name=name)
    save(folder, identity)
    return identity


def load(folder: Path) -> Identity | None:
    """The identity in a state folder; None when there is none.

    Raises:
        SwarmError: conflict when the file is there and cannot be read as one.
    """
    path = folder / _FILE
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        return Identity(**{**told, "cards": tuple(told["cards"])})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SwarmError(
            "conflict",
            f"{path} cannot be read as this machine's identity ({type(error).__name__})",
            hint="move the file away and join again with a new invite",
        ) from None


def save(folder: Path, identity: Identity) -> None:
    """Write the identity whole or not at all, readable by its owner only."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_private(folder / _FILE, json.dumps(asdict(identity), indent=1))


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically and durably; mode 0600."""
    fresh = path.with_name(path.name + ".new")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a new or replaced name in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class OneDaemon:
    """Holds a state folder for one process; a second daemon on it is refused."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "daemon.lock"
        self._handle: int | None = None

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise SwarmError(
                "conflict",
                f"a fellow already runs on {self._path.parent}",
                hint="stop it first, or give this one a folder of its own with --state",
            ) from None
        self._handle = handle
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
