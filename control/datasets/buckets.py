"""Buckets: a pool's training data, checked row by row before it is stored.

Files lie on disk under the hash of their bytes; the database says which bucket they belong to.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.clock import Clock
from control.datasets.child import Limits, run_child
from control.datasets.readers import FileRows, check_file
from control.datasets.rows import layout_of
from control.store import buckets, storage
from control.store.buckets import Bucket, BucketFile
from control.store.database import Database, Tx
from control.store.files import StoredFile, receive, settle
from transport.api.buckets import BucketRow, BucketView
from transport.api.operation import Next
from transport.errors import SwarmError, not_found
from transport.ids import RandomBytes
from transport.units import human_bytes


@dataclass(frozen=True)
class Received:
    """A data file that has been checked and lies in its place."""

    file: StoredFile
    name: str
    num_rows: int
    kinds: dict[str, int]


CHILDREN = 2  # at once, that check and preview
IN_A_THREAD = 4_000_000
"""Text up to this size is checked beside the event loop; more, and tables, in a child process."""


@dataclass(frozen=True)
class BucketTerms:
    """What data files may take."""

    limit_bytes: int
    """Of one file."""
    owner_bytes: int
    """Of all that an owner's pools keep on the leader."""
    check: Limits


class Buckets:
    """The data of all pools."""

    def __init__(
        self, folder: Path, terms: BucketTerms, clock: Clock, random_bytes: RandomBytes
    ) -> None:
        self._folder = folder
        self._terms = terms
        self._clock = clock
        self._random_bytes = random_bytes
        self._turn = asyncio.Semaphore(CHILDREN)
        self._reserved: dict[object, tuple[str, int]] = {}
        """Upload -> (owner, bytes that have come)."""
        self.settling = asyncio.Lock()
        """Held while files get their place or lose it."""

    def path(self, sha256: str) -> Path:
        """Where a data file lies."""
        return self._folder / sha256

    @asynccontextmanager
    async def receiving(
        self, pool: str, name: str, chunks: AsyncIterator[bytes], database: Database
    ) -> AsyncIterator[Received]:
        """Stream a file in, check every row, and give it its place while the caller commits.

        Whoever refuses the file, nothing of it is left, unless a bucket holds the same bytes. Its
        bytes are reserved of the owner's storage as they come, until the commit counts them.

        Raises:
            SwarmError: invalid-input naming the wrong line, too-large, storage-full.
        """
        beside = self._folder / f"{self._random_bytes(8).hex()}.part"
        upload, owner = object(), storage.owner_of(pool)
        used = await database.read(lambda tx: storage.used_bytes(tx, owner))
        try:
            counted = self._counted(upload, (owner, used), chunks)
            file = await receive(counted, beside, self._terms.limit_bytes, name=name)
            told = await self._checked(beside, name, file.size_bytes)
            target = self.path(file.sha256)
            stored = StoredFile(target, file.size_bytes, file.sha256)
            # One at a time, or a refusal could take the bytes of another upload that is let in.
            async with self.settling:
                await asyncio.to_thread(settle, beside, target)
                try:
                    yield Received(stored, name, told.num_rows, told.kinds)
                except BaseException:
                    if not await database.read(lambda tx: buckets.holds(tx, file.sha256)):
                        await asyncio.to_thread(target.unlink, missing_ok=True)
                    raise
        finally:
            self._reserved.pop(upload, None)
            beside.unlink(missing_ok=True)

    async def _counted(
        self, upload: object, account: tuple[str, int], chunks: AsyncIterator[bytes]
    ) -> AsyncIterator[bytes]:
        """The bytes of an upload, refused as soon as they pass the owner's limit."""
        owner, used = account
        size = 0
        async for chunk in chunks:
            size += len(chunk)
            self._reserved[upload] = (owner, size)
            reserved = sum(more for one, more in self._reserved.values() if one == owner)
            if used + reserved > self._terms.owner_bytes:
                raise storage.full(owner, used, size, self._terms.owner_bytes)
            yield chunk

    async def _checked(self, path: Path, name: str, size_bytes: int) -> FileRows:
        """Every row of a file that has been received."""
        if size_bytes <= IN_A_THREAD and name.endswith((".jsonl", ".txt", ".csv")):
            return await asyncio.to_thread(check_file, path, name)
        asked = {"task": "check", "path": str(path), "name": name}
        async with self._turn:
            told = await run_child(asked, self._terms.check)
        return FileRows(int(told["num_rows"]), dict(told["kinds"]))

    def sweep(self, known: set[str]) -> None:
        """Remove what an earlier life left: unfinished uploads, files of removed buckets.

        Args:
            known: data files that some bucket holds.
        """
        for path in self._folder.glob("*.part"):
            path.unlink(missing_ok=True)
        for path in self._folder.glob("*.gone"):
            if path.stem in known:
                path.rename(self.path(path.stem))
            else:
                path.unlink(missing_ok=True)

    def set_aside(self, hashes: list[str]) -> None:
        """Rename files whose bucket is being removed: a crash shows whether it was."""
        for sha256 in hashes:
            with contextlib.suppress(FileNotFoundError):
                self.path(sha256).rename(self._gone(sha256))

    def bring_back(self, hashes: list[str]) -> None:
        """Undo set_aside."""
        for sha256 in hashes:
            with contextlib.suppress(FileNotFoundError):
                self._gone(sha256).rename(self.path(sha256))

    def forget(self, hashes: list[str]) -> None:
        """Delete what was set aside."""
        for sha256 in hashes:
            self._gone(sha256).unlink(missing_ok=True)

    def _gone(self, sha256: str) -> Path:
        return self._folder / f"{sha256}.gone"

    async def preview(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The first rows of some files, by a child process."""
        async with self._turn:
            return await run_child({"task": "preview", **asked}, self._terms.check)

    def create(self, tx: Tx, pool: str, bucket: str) -> BucketView:
        """Make an empty bucket.

        Raises:
            SwarmError: conflict when the name is taken.
        """
        if buckets.find(tx, pool, bucket) is not None:
            raise SwarmError(
                "conflict",
                f"there is already a bucket {bucket!r} in {pool}",
                hint="add to it with buckets_add, or choose another name",
            )
        buckets.add(tx, Bucket(pool, bucket, self._clock.now()))
        return view(tx, pool, bucket)

    def add(self, tx: Tx, pool: str, bucket: str, received: Received) -> BucketView:
        """Put a received file into a bucket; the same file under the same name is there already.

        Raises:
            SwarmError: not-found; conflict when the name holds another file.
        """
        need(tx, pool, bucket)
        files = buckets.files(tx, pool, bucket)
        known = {file.name: file for file in files}.get(received.name)
        if known is not None and known.sha256 != received.file.sha256:
            raise SwarmError(
                "conflict",
                f"bucket {bucket!r} already holds another file {received.name!r}",
                hint="give the new one another name",
            )
        if known is None:
            _refuse_mixture(bucket, files, received)
            self._refuse_full(tx, pool, received)
            buckets.add_file(
                tx,
                BucketFile(
                    pool,
                    bucket,
                    received.name,
                    received.file.sha256,
                    received.file.size_bytes,
                    received.num_rows,
                    received.kinds,
                    self._clock.now(),
                ),
            )
        return view(tx, pool, bucket)

    def _refuse_full(self, tx: Tx, pool: str, received: Received) -> None:
        """What was free when the file began to come may be taken by now."""
        owner, limit = storage.owner_of(pool), self._terms.owner_bytes
        used, size = storage.used_bytes(tx, owner), received.file.size_bytes
        if used + size > limit:
            raise storage.full(owner, used, size, limit)


def _refuse_mixture(bucket: str, files: list[BucketFile], received: Received) -> None:
    """Refuse rows that cannot be trained on together with those of the bucket."""
    kinds = {kind for file in files for kind in file.kinds}
    if {layout_of(kind) for kind in kinds} <= {layout_of(kind) for kind in received.kinds}:
        return
    raise SwarmError(
        "conflict",
        f"bucket {bucket!r} holds {' and '.join(sorted(kinds))}; the rows of {received.name} are "
        f"{' and '.join(sorted(received.kinds))}",
        hint="put them into a bucket of their own",
    )


def need(tx: Tx, pool: str, bucket: str) -> Bucket:
    """A bucket by name.

    Raises:
        SwarmError: not-found.
    """
    found = buckets.find(tx, pool, bucket)
    if found is None:
        raise not_found("bucket", bucket, hint="list them with buckets_list")
    return found


def view(tx: Tx, pool: str, bucket: str) -> BucketView:
    """A bucket as it is shown."""
    row, kinds = _sum(tx, need(tx, pool, bucket))
    plan = Next(operation="jobs_plan", arguments={"pool": pool}, why="plan a run on this bucket")
    return BucketView(
        summary=f"Bucket {bucket} holds {row.rows} rows in {row.files} files, "
        f"{human_bytes(row.size_bytes)}.",
        next=[plan] if row.rows else [],
        kinds=kinds,
        **row.model_dump(),
    )


def rows(tx: Tx) -> list[BucketRow]:
    """All buckets of all pools as lines of a list."""
    return [_sum(tx, bucket)[0] for bucket in buckets.every(tx)]


def _sum(tx: Tx, bucket: Bucket) -> tuple[BucketRow, list[str]]:
    files = buckets.files(tx, bucket.pool, bucket.bucket)
    row = BucketRow(
        pool=bucket.pool,
        bucket=bucket.bucket,
        files=len(files),
        rows=sum(file.num_rows for file in files),
        size_bytes=sum(file.size_bytes for file in files),
        created_at=bucket.created_at,
    )
    return row, sorted({kind for file in files for kind in file.kinds})
