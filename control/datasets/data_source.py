"""A job's data, from its name to tokens: where the rows lie, whether they are ready, what is wrong.

Joins buckets and the token shop. Does not know jobs and plans nothing.
"""

from dataclasses import dataclass

from control.datasets.buckets import Buckets, need
from control.datasets.findings import findings_of
from control.datasets.token_file import Measured
from control.datasets.token_shop import DataFile, Making, TokenShop, Wish
from control.datasets.tokenizer_folder import TokenizerFolder
from control.store import buckets
from control.store.database import Database, Tx
from transport.api.job_config import DataConfig
from transport.api.plans import DataShape
from transport.errors import SwarmError


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


class DataSource:
    """All data that jobs of a leader may name."""

    def __init__(self, database: Database, store: Buckets, tokens: TokenShop) -> None:
        self._database = database
        self._store = store
        self._tokens = tokens

    async def look(self, use: Use, wait_s: float = 0.0) -> Looked:
        """The data's figures; what is not made yet is begun, and waited for a while.

        Raises:
            SwarmError: not-found, invalid-input for data that cannot be trained on.
        """
        bucket = use.data.bucket
        if bucket is None:
            raise SwarmError(
                "invalid-input",
                "/config/data: a job that reaches the leader names a bucket",
                hint="put the files into a bucket with buckets_add (`swarm train` does it for you)",
            )
        files = await self._database.read(lambda tx: self._files(tx, use.pool, bucket))
        wish = Wish(files, use.tokenizer, use.seq_len, use.data.held_out)
        made = await self._tokens.get(wish, wait_s)
        if made is None:
            making = await self._tokens.progress(wish)
            return Looked(_unready(bucket, wish, making), None)
        file, lint = made.measured.file, made.told["lint"]
        shape = DataShape(
            bucket=bucket,
            tokens=file.num_tokens,
            sequences=file.train_sequences,
            held_out_sequences=file.held_out_sequences,
            batches=None,
            passes=None,
            supervised_share=made.measured.supervised_share,
            rows=int(lint["rows"]),
            checked_share=1.0,
            findings=findings_of(made),
            untrusted_sample=str(lint["sample"]),
        )
        return Looked(shape, made.measured)

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


def _unready(bucket: str, wish: Wish, making: Making | None) -> DataShape:
    rows = wish.num_rows
    share = making.share if making is not None else 0.0
    words = f"the data is being tokenized: {100 * share:.0f} % of {rows_words(rows)}"
    return DataShape(
        bucket=bucket,
        tokens=None,
        sequences=None,
        held_out_sequences=None,
        batches=None,
        passes=None,
        supervised_share=None,
        rows=rows,
        checked_share=share,
        waits=words,
    )


def rows_words(count: int) -> str:
    """ "1.2M rows"."""
    if count >= 1_000_000:
        return f"{count / 1e6:.1f}M rows"
    return f"{count:,} row{'' if count == 1 else 's'}"
