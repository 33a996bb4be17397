"""Removing a bucket for good: its rows in the database, then the files that nothing else uses.

A job that waits or runs keeps its data. Token files made of removed data go with it, unless an
active stage still reads them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from control.datasets.buckets import need
from control.job_states import ACTIVE
from control.store import buckets, jobs, stages
from control.store.database import Tx
from transport.errors import SwarmError


@dataclass(frozen=True)
class Removed:
    """What may be deleted from the disk once the change is committed."""

    freed_bytes: int
    files: list[str]
    """SHA-256 of data files."""
    token_files: list[str]
    """Digests."""


def remove(tx: Tx, pool: str, bucket: str) -> Removed:
    """Take a bucket out of the database.

    Raises:
        SwarmError: not-found; conflict while a job needs it.
    """
    need(tx, pool, bucket)
    _refuse_needed(tx, pool, bucket)
    files = buckets.files(tx, pool, bucket)
    buckets.remove(tx, pool, bucket)
    gone = [file for file in files if not buckets.holds(tx, file.sha256)]
    digests, freed = _drop_tokens(tx, {file.sha256 for file in gone})
    return Removed(
        sum(file.size_bytes for file in gone) + freed, [file.sha256 for file in gone], digests
    )


def _refuse_needed(tx: Tx, pool: str, bucket: str) -> None:
    for job in jobs.in_states(tx, ("pending", *ACTIVE)):
        if (job.pool, job.config.data.bucket) == (pool, bucket):
            raise SwarmError(
                "conflict",
                f"job {job.job_id} is {job.state} and needs bucket {bucket!r}",
                hint="wait for it, or stop it with jobs_cancel",
                facts={"job_id": job.job_id},
            )


def _drop_tokens(tx: Tx, gone: set[str]) -> tuple[list[str], int]:
    """Token files made of data that is gone: (digests, bytes) of those that nobody reads."""
    used = digests_in_use(tx)
    told = {key: one for key, one in buckets.token_files(tx) if gone & set(one.get("data", []))}
    for key in told:
        buckets.drop_token_file(tx, key)
    kept = {_file(one)["digest"] for _, one in buckets.token_files(tx)} | used
    sizes = {str(_file(one)["digest"]): int(_file(one)["size_bytes"]) for one in told.values()}
    freed = {digest: size for digest, size in sizes.items() if digest not in kept}
    return sorted(freed), sum(freed.values())


def _file(told: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = told.get("file", told)
    return found


def digests_in_use(tx: Tx) -> set[str]:
    """Token files that stages of active jobs read."""
    return {
        row.work.tokens.digest
        for job in jobs.in_states(tx, ACTIVE)
        for row in stages.of_job(tx, job.job_id, job.attempt)
    }


def known_files(tx: Tx) -> tuple[set[str], set[str]]:
    """(data files, token files) that are known: what else lies there was left by a crash."""
    tokens = {str(_file(told)["digest"]) for _, told in buckets.token_files(tx)}
    return buckets.hashes(tx), tokens | digests_in_use(tx)
