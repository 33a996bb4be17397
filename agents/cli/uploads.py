"""Local data files become a bucket, named by their content: the same files are uploaded once.

Knows names, digests and request ids; the leader checks what is in the files.
"""

import hashlib
import re
from pathlib import Path

from agents.cli.session import Session
from agents.client import Client
from transport.api.buckets import (
    BUCKETS_ADD,
    BUCKETS_CREATE,
    BUCKETS_LIST,
    BucketsAdd,
    BucketsCreate,
    BucketsList,
)
from transport.errors import SwarmError
from transport.units import human_bytes

_ENDINGS = (".jsonl", ".txt", ".csv", ".parquet", ".npy")


def upload_files(session: Session, client: Client, pool: str, files: list[Path]) -> str:
    """Upload files as one bucket, unless they are there already; the bucket's name.

    Raises:
        SwarmError: not-found or invalid-input for a file that cannot be taken.
    """
    for file in files:
        check_data_file(file)
    digests = [_digest(file) for file in files]
    name = "files-" + hashlib.sha256(" ".join(digests).encode()).hexdigest()[:16]
    known = client.call(BUCKETS_LIST, BucketsList(pool=pool)).buckets
    have = next((b.files for b in known if (b.pool, b.bucket) == (pool, name)), None)
    if have is not None and have >= len(files):
        session.say(f"bucket {name} holds these files already")
        return name
    if have is None:
        _create(client, pool, name)
    for index, (file, digest) in enumerate(zip(files, digests)):
        session.say(f"uploading {file.name} ({human_bytes(file.stat().st_size)}) to bucket {name}")
        ask = BucketsAdd(
            pool=pool,
            bucket=name,
            name=_stored_name(index, file),
            # The same part of the same bucket again is the same upload, after a broken one too.
            request_id=f"{name}-{index}-{digest[:16]}",
        )
        client.upload(BUCKETS_ADD, ask, file)
    return name


def check_data_file(file: Path) -> None:
    """Refuse what is no data file, before anything is sent.

    Raises:
        SwarmError: not-found or invalid-input.
    """
    if not file.is_file():
        raise SwarmError(
            "not-found", f"there is no data file {str(file)!r}", hint="correct data.files"
        )
    if file.suffix not in _ENDINGS:
        raise SwarmError(
            "invalid-input",
            f"{file.name[:100]!r} ends neither in .jsonl nor in {', '.join(_ENDINGS[1:])}",
            hint="one JSON object a line, text, a table, or token ids; rename or convert the file",
        )
    if file.stat().st_size == 0:
        raise SwarmError("invalid-input", f"{file.name[:100]!r} is empty", hint="put data into it")


def _create(client: Client, pool: str, name: str) -> None:
    try:
        client.call(BUCKETS_CREATE, BucketsCreate(pool=pool, bucket=name))
    except SwarmError as error:
        if error.code != "conflict":  # made by someone who uploads the same files now
            raise


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _stored_name(index: int, file: Path) -> str:
    stem = re.sub(r"[^A-Za-z0-9._-]", "-", file.stem)[:80].lstrip(".-_") or "rows"
    return f"{index:02d}-{stem}{file.suffix}"
