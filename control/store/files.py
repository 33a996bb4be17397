"""Files that must be whole or absent: streamed in beside their place, synced, renamed.

Blocking; called in threads. Does not know what the files mean.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transport.errors import SwarmError
from transport.units import human_bytes

CHUNK = 1 << 20


@dataclass(frozen=True)
class StoredFile:
    """A file on the leader's disk, with its digest."""

    path: Path
    size_bytes: int
    sha256: str


async def receive(
    chunks: AsyncIterator[bytes], target: Path, limit_bytes: int, *, name: str
) -> StoredFile:
    """Stream an upload to a new file, synced; written and hashed in a thread, in 1 MB pieces.

    Args:
        name: what the sender calls it, for refusals.

    Raises:
        SwarmError: too-large past the limit, storage-full. Nothing is left behind then.
    """
    digest, size = hashlib.sha256(), 0
    try:
        await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
        with await asyncio.to_thread(target.open, "wb") as handle:
            async for piece in _pieces(chunks):
                size += len(piece)
                _refuse_large(size, limit_bytes)
                await asyncio.to_thread(_take, handle, digest, piece)
            await asyncio.to_thread(_sync, handle)
    except OSError as error:
        _drop(target)
        raise disk_refusal(error, name) from error
    except BaseException:
        _drop(target)
        raise
    return StoredFile(target, size, digest.hexdigest())


def _drop(path: Path) -> None:
    path.unlink(missing_ok=True)


def _refuse_large(size: int, limit_bytes: int) -> None:
    if size > limit_bytes:
        raise SwarmError(
            "too-large",
            f"the file is larger than {human_bytes(limit_bytes)}, the most taken here",
            hint="send it in parts",
            facts={"limit_bytes": limit_bytes},
        )


async def _pieces(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    waiting = bytearray()
    async for chunk in chunks:
        waiting += chunk
        if len(waiting) >= CHUNK:
            yield bytes(waiting)
            waiting.clear()
    if waiting:
        yield bytes(waiting)


def _take(handle: Any, digest: Any, piece: bytes) -> None:
    handle.write(piece)
    digest.update(piece)


def _sync(handle: Any) -> None:
    handle.flush()
    os.fsync(handle.fileno())


def settle(source: Path, target: Path) -> None:
    """Give a synced file its name, for good."""
    target.parent.mkdir(parents=True, exist_ok=True)
    source.replace(target)
    sync_folder(target.parent)


def write_whole(target: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a small file so that it is never seen half."""
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f"{target.name}.part")
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as out:
            out.write(data)
            _sync(out)
        settle(beside, target)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise disk_refusal(error, target.name) from error


def write_lines(target: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as JSON lines, whole."""
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    write_whole(target, text.encode())


def sync_folder(folder: Path) -> None:
    """Make names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, hex."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def disk_refusal(error: OSError, name: str) -> SwarmError:
    """What a caller is told when the disk refuses."""
    if error.errno in (28, 122):  # no space left, quota exceeded
        return SwarmError(
            "storage-full",
            f"the leader's disk is full: {name} could not be stored",
            hint="free space in the leader's data folder",
        )
    return SwarmError(
        "unavailable",
        f"{name} could not be stored: {error.strerror}",
        hint="look at the leader's data folder",
    )


@contextlib.contextmanager
def only_leader(folder: Path) -> Iterator[None]:
    """Hold a data folder, so that two leaders never write the same one.

    Raises:
        SwarmError: conflict when another leader holds it; unavailable when it cannot be used.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "leader.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise SwarmError(
            "unavailable",
            f"the data folder {folder} cannot be used: {error.strerror}",
            hint="choose another with --data",
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise SwarmError(
            "conflict",
            f"another leader already uses the data folder {folder}",
            hint="stop it, or give this one its own folder with --data",
        ) from error
    try:
        yield
    finally:
        os.close(handle)
