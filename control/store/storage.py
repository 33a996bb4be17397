"""How much of the leader's disk an owner's pools hold: what is counted against the owner's limit.

The owner of a pool is the part of its name before the slash.
"""

from control.store.database import Tx
from transport.errors import SwarmError
from transport.units import human_bytes


def owner_of(pool: str) -> str:
    """Whose pool it is."""
    return pool.partition("/")[0]


def used_bytes(tx: Tx, owner: str) -> int:
    """Saved states and bucket files of all pools of an owner."""
    like = f"{owner}/%"  # names hold no wildcards: letters, digits and hyphens
    saved = tx.execute(
        "SELECT coalesce(sum(size_bytes), 0) FROM snapshots JOIN jobs USING (job_id)"
        " WHERE pool LIKE ?",
        (like,),
    ).fetchone()[0]
    rows = tx.execute(
        "SELECT coalesce(sum(size_bytes), 0) FROM bucket_files WHERE pool LIKE ?", (like,)
    ).fetchone()[0]
    return int(saved) + int(rows)


def full(owner: str, used: int, more: int, limit: int) -> SwarmError:
    """The refusal of what an owner's limit has no room for."""
    return SwarmError(
        "storage-full",
        f"the storage of {owner} is full: {human_bytes(used)} of {human_bytes(limit)} are used and"
        f" {human_bytes(more)} more are needed",
        hint="remove buckets that are no longer needed, or raise storage_limit_bytes at the leader",
        facts={"used_bytes": used, "needed_bytes": more, "limit_bytes": limit},
    )
