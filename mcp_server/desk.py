"""Puts the leader behind the port of the doors, and makes the doors from its settings."""

import hmac
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from control.jobs.exports import Piece
from control.jobs.results import StageKey
from control.leader import Leader
from control.operations.call import Call
from control.settings import Settings
from control.snapshots.keeper import SnapshotKey
from control.store.files import StoredFile, receive, write_whole
from control.store.tokens import Token
from mcp_server.access import Names, is_loopback
from mcp_server.app import Doors
from mcp_server.office import Caller, Changed, Promise, Question, ShownModel
from mcp_server.sessions import Sessions, session_key
from transport.api.operation import Answer
from transport.beats import ShortBeat
from transport.cards import Heartbeat
from transport.errors import SwarmError
from transport.orders import DesiredState
from transport.reports import JoinAsk, Joined, ReportBatch, ReportsTaken

OWNER_TOKEN = "owner.token"  # noqa: S105 - a file's name


class Desk:
    """The leader as its doors see it."""

    def __init__(self, leader: Leader) -> None:
        self.leader = leader

    async def run(self, question: Question) -> Answer:
        """Run an operation."""
        caller = question.caller
        call = Call(
            caller.token_id,
            caller.scope,
            caller.pools,
            upload=question.upload,
            progress=question.progress,
        )
        return await self.leader.run(question.operation, call, question.arguments)

    async def caller(self, secret: str) -> Caller | None:
        """Whose access token this is."""
        return _caller(self.leader.caller(secret))

    async def caller_by_id(self, token_id: str) -> Caller | None:
        """The same by id."""
        return _caller(self.leader.caller_by_id(token_id))

    async def fellow(self, credential: str) -> str | None:
        """Whose credential this is."""
        return self.leader.fellow(credential)

    async def admit(self, fellow_id: str, life: str) -> None:
        """Refuse a second daemon that speaks for a fellow."""
        self.leader.admit(fellow_id, life)

    async def join(self, ask: JoinAsk) -> Joined:
        """Let a machine in."""
        return await self.leader.join(ask)

    async def heartbeat(self, fellow_id: str, beat: Heartbeat) -> DesiredState:
        """Take a heartbeat."""
        return self.leader.heartbeat(fellow_id, beat)

    async def short_beat(self, fellow_id: str, beat: ShortBeat) -> DesiredState:
        """Take one that leaves out what was told before."""
        return self.leader.short_beat(fellow_id, beat)

    async def wait_orders(self, fellow_id: str, since: int, timeout_s: float) -> DesiredState:
        """The desired state, once it is newer or the time is over."""
        return await self.leader.wait_orders(fellow_id, since, timeout_s)

    async def take_reports(self, fellow_id: str, batch: ReportBatch) -> ReportsTaken:
        """Store reports."""
        return await self.leader.take_reports(fellow_id, batch)

    async def take_adapter(
        self, key: StageKey, chunks: AsyncIterator[bytes], promised_sha256: str
    ) -> None:
        """Receive a stage's trained tensors, compare them with their promise, keep them."""
        await self.leader.admit_adapter(key)
        target = self.leader.incoming / f"adapter-{secrets.token_hex(8)}"
        limit = self.leader.office.settings.max_adapter_bytes
        file = await receive(chunks, target, limit, name="the adapter")
        try:
            if not hmac.compare_digest(file.sha256, promised_sha256):
                raise SwarmError(
                    "invalid-input",
                    f"the {file.size_bytes} bytes that arrived are not those that were promised",
                    hint="send the file again",
                )
            await self.leader.take_adapter(key, file)
        finally:
            target.unlink(missing_ok=True)

    async def take_snapshot(
        self, key: SnapshotKey, chunks: AsyncIterator[bytes], promised: Promise
    ) -> None:
        """Receive a stage's saved state into room reserved for it, compare, check and keep it."""
        target = self.leader.incoming / f"snapshot-{secrets.token_hex(8)}"
        saved = self.leader.office.snapshots
        async with saved.reserved(key, promised.size_bytes):
            try:
                file = await receive(chunks, target, promised.size_bytes, name="the saved state")
                if (file.sha256, file.size_bytes) != (promised.sha256, promised.size_bytes):
                    raise SwarmError(
                        "invalid-input",
                        f"the {file.size_bytes} bytes that arrived are not the"
                        f" {promised.size_bytes} that were promised",
                        hint="send the file again",
                    )
                await self.leader.take_snapshot(key, file)
            except SwarmError as error:
                if error.code == "storage-full":
                    await saved.note_paused(key.job_id, error)
                raise
            finally:
                target.unlink(missing_ok=True)

    async def snapshot_for(self, fellow_id: str, key: SnapshotKey) -> StoredFile | None:
        """A saved file, for a fellow whose order goes on from it."""
        orders = await self.leader.wait_orders(fellow_id, -1, 0.0)
        for told in orders.stages:
            resume = told.order.resume
            if told.order.job_id != key.job_id or resume is None:
                continue
            if (resume.attempt, resume.step) != (key.attempt, key.step):
                continue
            for one in resume.files:
                if one.stage == key.stage:
                    name = (key.attempt, key.step)
                    path = self.leader.office.snapshots.path(key.job_id, name, key.stage)
                    return StoredFile(path, one.size_bytes, one.digest)
        return None

    async def snapshot_file(self, job_id: str, step: int, stage: int) -> StoredFile | None:
        """A stage's file of a step that counts as saved."""
        return await self.leader.office.snapshots.file(job_id, step, stage)

    async def token_file(self, fellow_id: str, digest: str) -> StoredFile | None:
        """A token file, for a fellow that has an order for it: a pool's data stays in the pool."""
        orders = await self.leader.wait_orders(fellow_id, -1, 0.0)
        if all(stage.order.tokens.digest != digest for stage in orders.stages):
            return None
        return self.leader.token_file(digest)

    async def model(self, fellow_id: str, name: str) -> ShownModel | None:
        """A finished checkpoint of the model store."""
        stored = await self.leader.model(name)
        if stored is None:
            return None
        folder = self.leader.model_folder(name)
        files = {
            file: StoredFile(folder / file, int(told["size_bytes"]), str(told["sha256"]))
            for file, told in stored.files.items()
        }
        return ShownModel(stored.revision, files)

    async def adapter_file(self, job_id: str, name: str) -> StoredFile | None:
        """One file of a job's result."""
        return await self.leader.adapter_file(job_id, name)

    async def merged_file(self, job_id: str, name: str) -> StoredFile | None:
        """One file of a job's whole checkpoint."""
        return await self.leader.office.exports.file(job_id, name)

    async def export_trained(self, fellow_id: str, export_id: str) -> StoredFile:
        """What an export is made of."""
        return await self.leader.office.exports.trained(fellow_id, export_id)

    async def take_export_piece(
        self, fellow_id: str, export_id: str, piece: Piece, chunks: AsyncIterator[bytes]
    ) -> None:
        """Append a piece of an export's file."""
        await self.leader.office.exports.take(fellow_id, export_id, piece, chunks)

    async def finish_export(
        self,
        fellow_id: str,
        export_id: str,
        files: Mapping[str, tuple[int, str]],
        licence: str | None,
    ) -> None:
        """End an export."""
        await self.leader.office.exports.finish(fellow_id, export_id, files, licence)

    async def records_file(self, job_id: str) -> Path | None:
        """A job's steps as JSON lines."""
        return self.leader.records_file(job_id)

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[AsyncIterator[Changed]]:
        """What moves from now on."""
        async with self.leader.events.subscribe() as events:
            yield (Changed(event.topic, event.pool, event.job_id) async for event in events)


def _caller(token: Token | None) -> Caller | None:
    return Caller(token.token_id, token.name, token.scope, token.pools) if token else None


async def doors_for(leader: Leader, settings: Settings) -> Doors:
    """The doors of a leader, and its owner's token in a file for the programs of this machine."""
    secret = await leader.local_token()
    write_whole(settings.data / OWNER_TOKEN, secret.encode(), mode=0o600)
    sessions = Sessions(session_key(settings.data / "state"))
    names = Names.of(settings.public_url, (*settings.allowed_hosts, *_own_addresses(settings)))
    return Doors(Desk(leader), sessions, names, settings.public_url)


def _own_addresses(settings: Settings) -> list[str]:
    """Addresses of this machine under which others may dial it, when it listens for others."""
    if is_loopback(settings.host):
        return []
    import psutil  # noqa: PLC0415 - most leaders listen on loopback and start sooner without it

    every = [one.address for card in psutil.net_if_addrs().values() for one in card]
    found = every if settings.host in ("0.0.0.0", "::") else [settings.host]  # noqa: S104
    plain = [f"[{one}]" if ":" in one else one for one in found if "%" not in one]
    return [name for one in plain for name in (one.lower(), f"{one.lower()}:{settings.port}")]
