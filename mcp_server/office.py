"""What the doors need of the leader: a port, so that each door can be tried against a small twin.

Knows shared words only. mcp_server.desk puts the leader behind it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from control.jobs.exports import Piece
from control.jobs.results import StageKey
from control.snapshots.keeper import SnapshotKey
from control.store.files import StoredFile
from transport.api.operation import Answer, Operation, Scope
from transport.beats import ShortBeat
from transport.cards import Heartbeat
from transport.orders import DesiredState
from transport.reports import JoinAsk, Joined, ReportBatch, ReportsTaken

Progress = Callable[[float, float | None, str], Awaitable[None]]


@dataclass(frozen=True)
class Caller:
    """A person, script or agent whose access token was good."""

    token_id: str
    name: str
    scope: Scope
    pools: tuple[str, ...] = ()
    """Pools it may see; empty = all."""


@dataclass(frozen=True)
class Question:
    """One call of one operation, free of the face it came through."""

    operation: Operation
    caller: Caller
    arguments: Mapping[str, Any]
    """JSON values, not yet checked."""
    upload: AsyncIterator[bytes] | None = None
    """The bytes of the operation's upload field, when they came as a stream."""
    progress: Progress | None = None


@dataclass(frozen=True)
class Promise:
    """What a sender says of an upload before its bytes come."""

    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class ShownModel:
    """A checkpoint folder of the leader's model store."""

    revision: str
    files: Mapping[str, StoredFile] = field(default_factory=dict)


@dataclass(frozen=True)
class Changed:
    """Something moved. Says what to look at again, not what it became."""

    topic: str
    """fellows, jobs or logs."""
    pool: str
    job_id: str | None = None


class Office(Protocol):
    """The leader, as its doors see it. Refusals are SwarmErrors."""

    async def run(self, question: Question) -> Answer:
        """Check scope and arguments, then do it."""

    async def caller(self, secret: str) -> Caller | None:
        """Whose access token this is; None when unknown, revoked or expired."""

    async def caller_by_id(self, token_id: str) -> Caller | None:
        """The same by id, for a signed-in browser."""

    async def fellow(self, credential: str) -> str | None:
        """The fellow_id of a fellow's credential; None when unknown or removed."""

    async def admit(self, fellow_id: str, life: str) -> None:
        """Let a daemon speak for a fellow. `life` is of this start of it; "" when it names none.

        Raises:
            SwarmError: conflict for a second one beside the first; unavailable while that is open.
        """

    async def join(self, ask: JoinAsk) -> Joined: ...

    async def heartbeat(self, fellow_id: str, beat: Heartbeat) -> DesiredState: ...

    async def short_beat(self, fellow_id: str, beat: ShortBeat) -> DesiredState: ...

    async def wait_orders(self, fellow_id: str, since: int, timeout_s: float) -> DesiredState:
        """The desired state, as soon as its revision is above `since` or the time is over."""

    async def take_reports(self, fellow_id: str, batch: ReportBatch) -> ReportsTaken: ...

    async def take_adapter(
        self, key: StageKey, chunks: AsyncIterator[bytes], promised_sha256: str
    ) -> None:
        """Keep a stage's trained tensors, streamed; the same bytes again change nothing.

        Refused before a byte is read when it is not this fellow's stage of the running attempt,
        and afterwards when what arrived is not what was promised.
        """

    async def take_snapshot(
        self, key: SnapshotKey, chunks: AsyncIterator[bytes], promised: Promise
    ) -> None:
        """Keep a stage's saved state of a step, streamed; the same bytes again change nothing."""

    async def snapshot_for(self, fellow_id: str, key: SnapshotKey) -> StoredFile | None:
        """A saved file, for a fellow whose order goes on from it."""

    async def snapshot_file(self, job_id: str, step: int, stage: int) -> StoredFile | None: ...

    async def token_file(self, fellow_id: str, digest: str) -> StoredFile | None: ...

    async def model(self, fellow_id: str, name: str) -> ShownModel | None: ...

    async def adapter_file(self, job_id: str, name: str) -> StoredFile | None: ...

    async def merged_file(self, job_id: str, name: str) -> StoredFile | None: ...

    async def export_trained(self, fellow_id: str, export_id: str) -> StoredFile:
        """A job's trained tensors, for the fellow that makes this export."""

    async def take_export_piece(
        self, fellow_id: str, export_id: str, piece: Piece, chunks: AsyncIterator[bytes]
    ) -> None:
        """Append a piece of a file; refused with facts["have_bytes"] where it does not fit."""

    async def finish_export(
        self,
        fellow_id: str,
        export_id: str,
        files: Mapping[str, tuple[int, str]],
        licence: str | None,
    ) -> None:
        """All files of an export are there: name -> (size_bytes, sha256)."""

    async def records_file(self, job_id: str) -> Path | None: ...

    def changes(self) -> AbstractAsyncContextManager[AsyncIterator[Changed]]:
        """Every change from now on; never blocks the leader: a slow reader loses the oldest."""
