"""A job's data, from its name to tokens: where the rows lie, whether they are ready, what is wrong.

Joins buckets, hub data sets and the token shop. Does not know jobs and plans nothing.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from control.datasets.buckets import Buckets, need
from control.datasets.findings import findings_of
from control.datasets.hub_data import Fetched, HubDataSets, wanted_of
from control.datasets.token_file import Measured
from control.datasets.token_shop import DataFile, Made, Making, TokenShop, Wish
from control.datasets.tokenizer_folder import TokenizerFolder
from control.store import buckets
from control.store.database import Database, Tx
from transport.api.job_config import DataConfig
from transport.api.plans import DataShape
from transport.errors import SwarmError
from transport.units import count_of, human_bytes


@dataclass(frozen=True)
class Use:
    """For what the data is looked at."""

    pool: str
    data: DataConfig
    tokenizer: TokenizerFolder
    seq_len: int


@dataclass(frozen=True)
class Looked:
    """Data as it is now."""

    shape: DataShape
    measured: Measured | None
    """None while its tokens are being made."""


@dataclass(frozen=True)
class _Found:
    """Where a job's rows lie."""

    bucket: str
    dataset: str | None
    files: tuple[DataFile, ...]


class DataSource:
    """All data that jobs of a leader may name."""

    def __init__(
        self, database: Database, store: Buckets, hub: HubDataSets, tokens: TokenShop
    ) -> None:
        self._database = database
        self._store = store
        self._hub = hub
        self._tokens = tokens

    async def look(self, use: Use, wait_s: float = 0.0) -> Looked:
        """The data's figures; what is not here yet is begun, and waited for a while.

        Raises:
            SwarmError: not-found, invalid-input for data that cannot be trained on, and what the
                hub refuses.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        found = await self._find(use, wait_s)
        if isinstance(found, DataShape):
            return Looked(found, None)
        wish = Wish(found.files, use.tokenizer, use.seq_len, use.data.held_out)
        made = await self._tokens.get(wish, max(0.0, until - loop.time()))
        if made is None:
            return Looked(_unready(found, wish, await self._tokens.progress(wish)), None)
        return Looked(_ready(found, made), made.measured)

    async def pinned(self, data: DataConfig) -> str | None:
        """The data set of a job at the commit that it is now; None when it trains on a bucket."""
        if data.bucket is not None or data.files is not None:
            return None
        return (await self._hub.resolve(wanted_of(data))).pinned

    async def _find(self, use: Use, wait_s: float) -> _Found | DataShape:
        """Where the rows lie; the data's shape when they are not here yet."""
        bucket = use.data.bucket
        if use.data.files is not None:
            raise SwarmError(
                "invalid-input",
                "/config/data: a job that reaches the leader names a bucket or a data set",
                hint="put the files into a bucket with buckets_add (`swarm train` does it for you)",
            )
        if bucket is not None:
            files = await self._database.read(lambda tx: self._files(tx, use.pool, bucket))
            return _Found(bucket, None, files)
        data = await self._hub.resolve(wanted_of(use.data))
        fetched = await self._hub.get(data, wait_s)
        if fetched is None:
            size = human_bytes(data.size_bytes or None)
            share = f"{100 * self._hub.share(data):.0f} % of {size}"
            words = f"data set {data.wanted.shown} is being fetched: {share}"
            return _shape_of(_Found("", data.pinned, ()), checked_share=0.0, waits=words)
        return _Found("", data.pinned, tuple(_hub_file(fetched, told) for told in fetched.files))

    def _files(self, tx: Tx, pool: str, bucket: str) -> tuple[DataFile, ...]:
        need(tx, pool, bucket)
        return tuple(
            DataFile(
                self._store.path(file.sha256),
                file.name,
                file.sha256,
                file.size_bytes,
                file.num_rows,
                file.kinds,
            )
            for file in buckets.files(tx, pool, bucket)
        )


def _hub_file(fetched: Fetched, told: Mapping[str, Any]) -> DataFile:
    return DataFile(
        fetched.folder / str(told["path"]),
        str(told["name"]),
        str(told["sha256"]),
        int(told["size_bytes"]),
        int(told["num_rows"]),
        dict(told["kinds"]),
        fetched.data.joined,
    )


def _shape_of(found: _Found, **figures: Any) -> DataShape:
    unknown = dict.fromkeys(
        ("tokens", "sequences", "held_out_sequences", "batches", "passes", "supervised_share")
    )
    told = {**unknown, "bucket": found.bucket, "dataset": found.dataset, **figures}
    return DataShape.model_validate(told)


def _unready(found: _Found, wish: Wish, making: Making | None) -> DataShape:
    share, rows = (making.share if making is not None else 0.0), rows_words(wish.num_rows)
    words = f"the data is being tokenized: {100 * share:.0f} % of {rows}"
    if making is not None and not making.is_begun:
        words = f"the data will be tokenized after other data: {rows}"
    return _shape_of(found, rows=wish.num_rows, checked_share=share, waits=words)


def _ready(found: _Found, made: Made) -> DataShape:
    file, lint = made.measured.file, made.told["lint"]
    return _shape_of(
        found,
        tokens=file.num_tokens,
        sequences=file.train_sequences,
        held_out_sequences=file.held_out_sequences,
        supervised_share=made.measured.supervised_share,
        rows=int(lint["rows"]),
        checked_share=1.0,
        findings=findings_of(made, [file.name for file in found.files]),
        untrusted_sample=str(lint["sample"]),
    )


def rows_words(count: int) -> str:
    """ "1.2M rows"."""
    if count >= 1_000_000:
        return f"{count / 1e6:.1f}M rows"
    return count_of(count, "row")
