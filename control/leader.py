"""The leader: all parts put together, the loops that run by themselves, and what its doors ask.

Makes nothing up: clock, random bytes and the data folder are passed in. Knows no web.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from control.clock import Clock, SystemClock, system_random_bytes, wait_for_event
from control.datasets.bucket_removal import known_files
from control.datasets.buckets import Buckets, BucketTerms
from control.datasets.child import Limits
from control.datasets.data_source import DataSource
from control.datasets.hub import Hub
from control.datasets.hub_data import FetchTerms, HubDataSets
from control.datasets.model_store import ModelStore
from control.datasets.token_shop import TokenShop
from control.fellows.credentials import Credentials
from control.fellows.invites import Invites, InviteTerms
from control.fellows.registry import Registry, Timing
from control.fellows.secret_text import leader_key, relay_key
from control.fellows.vanished import LOOK_S
from control.jobs.exports import Exports, ExportTools
from control.jobs.lifecycle import Jobs, Tools
from control.jobs.planner import PlanTerms, PoolPlanner, Sources
from control.jobs.relaying import relay_terms
from control.jobs.results import Results, StageKey
from control.jobs.verifying import Verifications, VerifyTools
from control.operations.call import Call, run
from control.operations.office import Office
from control.operations.registry import handlers
from control.records.events import Events
from control.records.job_files import JobFiles
from control.settings import Settings
from control.snapshots.keeper import SnapshotKey, Snapshots, SnapshotTerms
from control.store import fellows, link_figures, plans, requests
from control.store.buckets import StoredModel
from control.store.database import Database
from control.store.files import StoredFile, only_leader
from control.store.tokens import Token
from transport.api.operation import Answer, Operation
from transport.beats import ShortBeat
from transport.cards import Heartbeat
from transport.errors import SwarmError
from transport.ids import RandomBytes
from transport.orders import DesiredState
from transport.reports import (
    ExportFailed,
    JoinAsk,
    Joined,
    ReferenceFailed,
    ReferenceTrained,
    ReportBatch,
    ReportsTaken,
)

log = logging.getLogger(__name__)

REQUESTS_KEPT_S = 7 * 86_400.0
HOUSEKEEPING_S = 60.0
SCHEDULE_REST_S = 0.5
SWEEPS_A_BEAT = 5


class Leader:
    """One leader on one data folder. Make it with open(); close() ends it."""

    def __init__(self, office: Office, tokens: TokenShop, stack: contextlib.AsyncExitStack) -> None:
        self.office = office
        self.tokens = tokens
        self._stack = stack
        self._loops: list[asyncio.Task[None]] = []

    @classmethod
    async def open(
        cls,
        settings: Settings,
        clock: Clock | None = None,
        random_bytes: RandomBytes = system_random_bytes,
    ) -> "Leader":
        """Open the data folder, read what is stored, go on with what was running.

        Raises:
            SwarmError: conflict when another leader holds the folder or a newer Swarm wrote it.
        """
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(only_leader(settings.data))
            database = await Database.open(settings.data / "leader.db")
            stack.push_async_callback(database.close)
            office, tokens = compose(settings, clock or SystemClock(), random_bytes, database)
            leader = cls(office, tokens, stack.pop_all())
        try:
            await leader.load()
        except BaseException:
            await leader.close()
            raise
        return leader

    def start(self) -> None:
        """Begin the loops that run by themselves."""
        self._loops = [
            asyncio.create_task(self._sweep_loop(), name="sweep"),
            asyncio.create_task(self._vanished_loop(), name="vanished"),
            asyncio.create_task(self._every(self.office.exports.turn), name="exports"),
            asyncio.create_task(self._every(self.office.verifications.turn), name="verify"),
            asyncio.create_task(self._every(self.office.jobs.keep_ready), name="ready plans"),
            asyncio.create_task(self._schedule_loop(), name="schedule"),
            asyncio.create_task(self._housekeeping_loop(), name="housekeeping"),
        ]

    async def close(self) -> None:
        """End the loops and what is being made; everything accepted is stored already."""
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        self._loops = []
        try:
            await self.tokens.close()
            await self.office.datasets.close()
            await self.office.jobs.close()
            await self.office.credentials.flush_uses()
        finally:
            await self._stack.aclose()

    # --- what people ask ---------------------------------------------------------------------

    @property
    def events(self) -> Events:
        """What moves."""
        return self.office.events

    @property
    def incoming(self) -> Path:
        """Where unfinished uploads lie, on the disk that will keep them."""
        folder = self.office.settings.data / "incoming"
        with contextlib.suppress(OSError):  # whoever writes there says what is wrong with the disk
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    async def run(self, operation: Operation, call: Call, raw: Mapping[str, Any]) -> Answer:
        """Do what is asked; see control.operations.call.run."""
        return await run(self.office, operation, call, raw)

    def caller(self, secret: str) -> Token | None:
        """Whose access token this is; None when unknown, revoked or expired."""
        return self.office.credentials.find(secret)

    def caller_by_id(self, token_id: str) -> Token | None:
        """The same by id."""
        return self.office.credentials.find_by_id(token_id)

    async def local_token(self) -> str:
        """The secret of this machine's own user, an admin of all pools."""
        return await self.office.credentials.local()

    async def adapter_file(self, job_id: str, name: str) -> StoredFile | None:
        """One file of a job's result."""
        return await self.office.results.file(job_id, name)

    def records_file(self, job_id: str) -> Path | None:
        """A job's steps as JSON lines."""
        path = self.office.files.records_path(job_id)
        return path if path.is_file() else None

    # --- what fellows ask --------------------------------------------------------------------

    def fellow(self, credential: str) -> str | None:
        """The fellow of a credential; None when unknown or removed."""
        return self.office.registry.authenticate(credential)

    def admit(self, fellow_id: str, life: str) -> None:
        """Refuse a second daemon that speaks for a fellow; see control.fellows.lives."""
        self.office.registry.admit(fellow_id, life)

    async def join(self, ask: JoinAsk) -> Joined:
        """Let a machine in."""
        return await self.office.invites.join(ask, self.office.clock, self.office.random_bytes)

    def heartbeat(self, fellow_id: str, beat: Heartbeat) -> DesiredState:
        """Take a heartbeat; answer with all that the fellow should be doing."""
        return self.office.registry.beat(fellow_id, beat)

    def short_beat(self, fellow_id: str, beat: ShortBeat) -> DesiredState:
        """The same for a heartbeat that leaves out what was told before."""
        return self.office.registry.short_beat(fellow_id, beat)

    async def wait_orders(self, fellow_id: str, since: int, timeout_s: float) -> DesiredState:
        """The same as soon as its revision is above `since`, or when the time is over."""
        return await self.office.registry.wait_orders(fellow_id, since, timeout_s)

    async def take_reports(self, fellow_id: str, batch: ReportBatch) -> ReportsTaken:
        """Store reports for good; finished although the sender hangs up."""
        # First, so that a report that is stored is never one that was not acted upon.
        for numbered in batch.reports:
            if isinstance(numbered.report, ExportFailed):
                await self.office.exports.fail(fellow_id, numbered.report)
            if isinstance(numbered.report, ReferenceTrained | ReferenceFailed):
                await self.office.verifications.take(fellow_id, numbered.report)
        taking = asyncio.ensure_future(self.office.jobs.take_reports(fellow_id, batch))
        taking.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(taking)

    async def admit_adapter(self, key: StageKey) -> None:
        """Refuse an upload that is not this fellow's stage of the running attempt."""
        await self.office.results.admit(key)

    async def take_adapter(self, key: StageKey, file: StoredFile) -> None:
        """Keep a received file of trained tensors."""
        await self.office.results.take(key, file)

    async def take_snapshot(self, key: SnapshotKey, file: StoredFile) -> None:
        """Keep a received saved state."""
        await self.office.jobs.take_snapshot(key, file)

    def token_file(self, digest: str) -> StoredFile | None:
        """A token file by its digest."""
        return self.tokens.find(digest)

    async def model(self, name: str) -> StoredModel | None:
        """A model of the store; its files lie in model_folder(name)."""
        return await self.office.models.find(name)

    def model_folder(self, name: str) -> Path:
        """Where the files of a stored model lie."""
        return self.office.models.folder(name)

    # --- by itself ---------------------------------------------------------------------------

    async def load(self) -> None:
        """Read what is stored, and go on with what was running. Part of open()."""
        handlers()
        await asyncio.to_thread(_drop_unfinished, self.incoming)
        files, made = await self.office.database.read(known_files)
        await asyncio.to_thread(self.office.buckets.sweep, files)
        await asyncio.to_thread(self.tokens.sweep, made)
        await asyncio.to_thread(self.office.datasets.sweep)
        await self.office.credentials.load()
        stored, speeds = await self.office.database.read(
            lambda tx: (fellows.every(tx), fellows.speeds(tx))
        )
        self.office.registry.take_link_figures(await self.office.database.read(link_figures.every))
        for fellow in stored:
            self.office.registry.add(fellow)
        for (fellow_id, card_index), figures in speeds.items():
            self.office.registry.take_speeds(fellow_id, card_index, figures)
        await self.office.snapshots.load()
        await self.office.jobs.load()
        await self.office.exports.turn()
        await self.office.verifications.turn()

    async def _sweep(self) -> None:
        registry = self.office.registry
        for fellow_id in registry.sweep():
            silent = registry.silent_s(registry.get(fellow_id))
            why = f"went offline ({silent:.0f} s without a heartbeat)"
            await self.office.jobs.lose_fellow(fellow_id, why)
        await self.office.jobs.look_for_stuck()

    async def _every(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self.office.clock.wait(self.office.settings.heartbeat_s)
            await _guarded(work)

    async def _sweep_loop(self) -> None:
        """More often than fellows beat: silence is noticed when it is long enough, not later."""
        while True:
            await self.office.clock.wait(self.office.settings.heartbeat_s / SWEEPS_A_BEAT)
            await _guarded(self._sweep)

    async def _vanished_loop(self) -> None:
        """Look closely while somebody with work has stopped asking for its orders."""
        registry = self.office.registry
        while True:
            await registry.vanished.noted.wait()
            registry.vanished.noted.clear()
            while registry.vanished.may_be_gone(registry.every()):
                await self.office.clock.wait(LOOK_S)
                await _guarded(self._lose_vanished)

    async def _lose_vanished(self) -> None:
        for gone in self.office.registry.find_vanished():
            await self.office.jobs.lose_fellow(gone.fellow_id, gone.why)

    async def _schedule_loop(self) -> None:
        registry = self.office.registry
        while True:
            await wait_for_event(
                registry.heard, self.office.settings.heartbeat_s, self.office.clock
            )
            registry.heard.clear()
            await _guarded(self.office.jobs.schedule)
            # Fifty fellows tell something new ten times a second; planning need not follow each.
            await self.office.clock.wait(SCHEDULE_REST_S)

    async def _housekeeping_loop(self) -> None:
        while True:
            await self.office.clock.wait(HOUSEKEEPING_S)
            await _guarded(self._keep_house)

    async def _keep_house(self) -> None:
        now = self.office.clock.now()
        await self.office.credentials.flush_uses()
        await self.office.snapshots.expire()
        await self.office.database.write(
            lambda tx: (
                requests.drop_before(tx, now - REQUESTS_KEPT_S),
                plans.drop_expired(tx, now),
            )
        )


def _drop_unfinished(folder: Path) -> None:
    """Uploads that an earlier life did not finish: their senders send them again."""
    for path in folder.glob("*"):
        with contextlib.suppress(OSError):
            path.unlink()


async def _guarded(work: Callable[[], Awaitable[None]]) -> None:
    """A loop outlives one bad turn."""
    try:
        await work()
    except SwarmError as error:  # known, such as a full disk: the next turn tries again
        log.error("a background turn failed: %s", error.message, extra={"code": error.code})
    except Exception:
        log.exception("a background turn failed")


def compose(
    settings: Settings, clock: Clock, random_bytes: RandomBytes, database: Database
) -> tuple[Office, TokenShop]:
    """Build all parts of a leader on an open database."""
    data = settings.data
    events, files = Events(), JobFiles(data / "jobs")
    timing = Timing(settings.heartbeat_s, settings.offline_after_s)
    registry = Registry(clock, timing, events.publish)
    key = leader_key(data / "state", random_bytes)
    terms = InviteTerms(settings.invite_minutes * 60, settings.heartbeat_s)
    models = ModelStore(database, data / "models", settings.max_model_file_bytes, clock)
    limits = Limits(settings.tokenize_memory_bytes, settings.tokenize_seconds)
    terms_of_data = BucketTerms(settings.max_upload_bytes, settings.storage_limit_bytes, limits)
    buckets = Buckets(data / "buckets", terms_of_data, clock, random_bytes)
    tokens = TokenShop(database, data / "tokens", limits, clock)
    tokens.on_moved = registry.heard.set
    fetching = FetchTerms(settings.max_dataset_bytes, limits.memory_bytes)
    datasets = HubDataSets(data / "datasets", fetching, clock)
    datasets.on_moved = registry.heard.set
    source = DataSource(database, buckets, datasets, tokens)
    plan_terms = PlanTerms(settings.plan_hours * 3600, settings.submit_wait_s)
    planner = PoolPlanner(database, registry, Sources(models, Hub(clock), source), plan_terms)
    results = Results(database, files, settings.max_adapter_bytes)
    saved = Snapshots(database, clock, SnapshotTerms(files.folder, settings.storage_limit_bytes))
    tools = Tools(
        database,
        registry,
        planner,
        events,
        files,
        results,
        saved,
        clock,
        random_bytes,
        relay_terms(settings, relay_key(key)),
        auto_replace=settings.auto_replace,
    )
    exporting = ExportTools(database, registry, results, files, clock, random_bytes, events.publish)
    life = Jobs(tools)
    verifying = VerifyTools(
        database,
        registry,
        planner,
        files,
        lambda digest: tokens.find(digest) is not None,
        life.follow,
        clock,
        random_bytes,
    )
    office = Office(
        settings=settings,
        clock=clock,
        random_bytes=random_bytes,
        database=database,
        events=events,
        registry=registry,
        invites=Invites(database, registry, key, terms),
        credentials=Credentials(database, clock, random_bytes, key),
        buckets=buckets,
        tokens=tokens,
        datasets=datasets,
        models=models,
        planner=planner,
        jobs=life,
        results=results,
        exports=Exports(exporting),
        verifications=Verifications(verifying),
        snapshots=saved,
        files=files,
        relay_key=relay_key(key),
    )
    return office, tokens
