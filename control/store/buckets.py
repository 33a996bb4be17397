"""Queries on buckets, token files and stored models."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from control.store.database import Tx


@dataclass(frozen=True)
class Bucket:
    """A named set of training rows in a pool."""

    pool: str
    bucket: str
    created_at: float


@dataclass(frozen=True)
class BucketFile:
    """One file of a bucket. On disk it is named by its hash."""

    pool: str
    bucket: str
    name: str
    sha256: str
    size_bytes: int
    num_rows: int
    kinds: Mapping[str, int]
    """Kind of row -> how many."""
    created_at: float


@dataclass(frozen=True)
class StoredModel:
    """A finished checkpoint folder of the model store."""

    name: str
    revision: str
    told: Mapping[str, Any]
    """family, layers, parameters."""
    files: Mapping[str, Mapping[str, Any]]
    """File -> {sha256, size_bytes}."""
    size_bytes: int
    created_at: float


def add(tx: Tx, bucket: Bucket) -> None:
    """Insert a bucket."""
    row = (bucket.pool, bucket.bucket, bucket.created_at)
    tx.execute("INSERT INTO buckets VALUES (?, ?, ?)", row)


def find(tx: Tx, pool: str, bucket: str) -> Bucket | None:
    """A bucket by pool and name."""
    row = tx.execute(
        "SELECT * FROM buckets WHERE pool = ? AND bucket = ?", (pool, bucket)
    ).fetchone()
    return Bucket(**row) if row else None


def every(tx: Tx) -> list[Bucket]:
    """All buckets, by pool and name."""
    return [Bucket(**row) for row in tx.execute("SELECT * FROM buckets ORDER BY pool, bucket")]


def files(tx: Tx, pool: str, bucket: str) -> list[BucketFile]:
    """The files of a bucket, by name."""
    rows = tx.execute(
        "SELECT * FROM bucket_files WHERE pool = ? AND bucket = ? ORDER BY name", (pool, bucket)
    )
    return [BucketFile(**{**row, "kinds": json.loads(row["kinds"])}) for row in map(dict, rows)]


def add_file(tx: Tx, file: BucketFile) -> None:
    """Insert a file of a bucket."""
    tx.execute(
        "INSERT INTO bucket_files VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            file.pool,
            file.bucket,
            file.name,
            file.sha256,
            file.size_bytes,
            file.num_rows,
            json.dumps(dict(file.kinds)),
            file.created_at,
        ),
    )


def remove(tx: Tx, pool: str, bucket: str) -> None:
    """Delete a bucket and its files' rows."""
    tx.execute("DELETE FROM bucket_files WHERE pool = ? AND bucket = ?", (pool, bucket))
    tx.execute("DELETE FROM buckets WHERE pool = ? AND bucket = ?", (pool, bucket))


def holds(tx: Tx, sha256: str) -> bool:
    """Whether any bucket of any pool holds a file with these bytes."""
    row = tx.execute("SELECT 1 FROM bucket_files WHERE sha256 = ? LIMIT 1", (sha256,)).fetchone()
    return row is not None


def put_token_file(tx: Tx, key: str, told: Mapping[str, Any], at: float) -> None:
    """Remember the token file made of some data by some tokenizer."""
    tx.execute(
        "INSERT INTO token_files VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
        " digest = excluded.digest, told = excluded.told, created_at = excluded.created_at",
        (key, told["file"]["digest"], json.dumps(dict(told)), at),
    )


def find_token_file(tx: Tx, key: str) -> dict[str, Any] | None:
    """What the tokenizer told of a file that was made before."""
    row = tx.execute("SELECT told FROM token_files WHERE cache_key = ?", (key,)).fetchone()
    return dict(json.loads(row["told"])) if row else None


def hashes(tx: Tx) -> set[str]:
    """Of all data files of all buckets."""
    return {row["sha256"] for row in tx.execute("SELECT DISTINCT sha256 FROM bucket_files")}


def token_files(tx: Tx) -> list[tuple[str, dict[str, Any]]]:
    """(key, what its making told) of every token file."""
    rows = tx.execute("SELECT cache_key, told FROM token_files ORDER BY cache_key")
    return [(row["cache_key"], dict(json.loads(row["told"]))) for row in rows]


def drop_token_file(tx: Tx, key: str) -> None:
    """Forget a token file."""
    tx.execute("DELETE FROM token_files WHERE cache_key = ?", (key,))


def put_model(tx: Tx, model: StoredModel) -> None:
    """Insert a finished model, or replace it by a new revision."""
    tx.execute("DELETE FROM models WHERE name = ?", (model.name,))
    tx.execute(
        "INSERT INTO models VALUES (?, ?, ?, ?, ?, ?)",
        (
            model.name,
            model.revision,
            json.dumps(dict(model.told)),
            json.dumps({name: dict(file) for name, file in model.files.items()}),
            model.size_bytes,
            model.created_at,
        ),
    )


def find_model(tx: Tx, name: str) -> StoredModel | None:
    """A finished model by name."""
    row = tx.execute("SELECT * FROM models WHERE name = ?", (name,)).fetchone()
    return _model(dict(row)) if row else None


def models(tx: Tx) -> list[StoredModel]:
    """All finished models, by name."""
    return [_model(dict(row)) for row in tx.execute("SELECT * FROM models ORDER BY name")]


def _model(row: dict[str, Any]) -> StoredModel:
    return StoredModel(
        **{**row, "told": json.loads(row["told"]), "files": json.loads(row["files"])}
    )
