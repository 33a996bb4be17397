"""The fellow daemon: beats, hears what it should do, keeps its workers to that, passes on reports.

Composes the parts and runs their loops. Its leader may be away at any time: workers go on, reports
wait on disk. Does not know what a stage computes.
"""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agents.fellow.attempts import Attempts
from agents.fellow.envelope import SAMPLE_S, Envelopes
from agents.fellow.exporter import EXPORT, Exporter, ExportSetting
from agents.fellow.forkserver_client import WarmLauncher
from agents.fellow.identity import Identity, OneDaemon
from agents.fellow.inventory import Inventory, Places, address_towards, read_offers
from agents.fellow.launcher import Launcher, PlainLauncher
from agents.fellow.leader_link import LeaderLink
from agents.fellow.link_tests import LinkTests, Place, measure_leader
from agents.fellow.listening import listening
from agents.fellow.outbox import Backoff, Outbox
from agents.fellow.probe import PROBE, measure, prove
from agents.fellow.referee import REFERENCE, Referee, RefereeSetting
from agents.fellow.spool import Spool
from agents.fellow.supervisor import Supervisor, WorkerSetting
from agents.fellow.turn import measuring_turn
from agents.fellow.worker import PATIENCE, Patience
from transport.beats import shortened
from transport.cards import PROTOCOL, CardReport, Heartbeat
from transport.errors import SwarmError
from transport.lives import TWO_DAEMONS
from transport.orders import DesiredState, MeasureOrder
from transport.pinning import split_pin

# Workers get 5 s, unsent reports 2 s: the whole stays below the 10 s that a service gets to stop.
_FLUSH_S = 2.0
_WARM_S = 60.0
_TURN_S = 90.0

log = logging.getLogger("swarm.fellow")


@dataclass(frozen=True)
class DaemonSetting:
    """How this machine's daemon runs."""

    state_folder: Path
    cache_folder: Path
    listen_address: str = ""
    """"" = the address on the way to the leader; or ADDRESS:PORT."""
    announce: tuple[str, ...] = ()
    """ADDRESS:PORT in front of a router or proxy, which neighbours dial instead."""
    is_warm: bool = True
    """Whether a process with torch loaded is kept ready."""
    launcher: Launcher | None = None
    """Starts the workers; None = a forkserver, or plain processes when not warm."""
    probe: tuple[str, ...] = PROBE
    export: tuple[str, ...] = EXPORT
    reference: tuple[str, ...] = REFERENCE
    patience: Patience = PATIENCE


@dataclass
class Seen:
    """What was last heard from the leader."""

    revision: int = 0
    heard_at: float = 0.0
    """Monotonic time at which the state in force arrived."""
    measured: set[str] = field(default_factory=set)
    """Tokens of measurements that were carried out."""
    is_measuring: bool = False
    told: Heartbeat | None = None
    """The last whole heartbeat that the leader has taken."""


class Daemon:
    """One fellow's outer process."""

    def __init__(self, identity: Identity, setting: DaemonSetting) -> None:
        assert identity.has_joined
        self._identity = identity
        self._setting = setting
        self._seen = Seen()
        self._stop = asyncio.Event()
        self._first_answer = asyncio.Event()
        self._beat_now = asyncio.Event()
        self._warm = asyncio.Event()
        self._failure: SwarmError | None = None
        self._measuring: asyncio.Task[None] | None = None
        doors = listening(
            setting.listen_address, setting.announce, address_towards(identity.leader)
        )
        self._places = Places(setting.cache_folder, doors.address)
        self._inventory = Inventory(
            read_offers(identity.cards), identity.fellow_id, identity.shown_name, self._places
        )
        self._link = LeaderLink(identity.leader, identity.credential)
        self._spool = Spool(setting.state_folder / "reports")
        self._outbox = Outbox(self._spool, self._link, identity.fellow_id)
        self._launcher = setting.launcher or (
            WarmLauncher() if setting.is_warm else PlainLauncher()
        )
        self._supervisor = Supervisor(
            self._launcher,
            Attempts(setting.state_folder),
            WorkerSetting(
                leader_url=split_pin(identity.leader)[0],
                leader_token=identity.credential,
                leader_pin=split_pin(identity.leader)[1],
                cache_folder=setting.cache_folder,
                work_folder=setting.state_folder / "work",
                listening=doors,
                patience=setting.patience,
            ),
            self._outbox.put,
        )
        relay_host = urlsplit(identity.leader).hostname or ""
        self._tests = LinkTests(Place(doors, relay_host), self._beat_now.set)
        exporting = ExportSetting(
            leader_url=split_pin(identity.leader)[0],
            leader_token=identity.credential,
            leader_pin=split_pin(identity.leader)[1],
            cache_folder=setting.cache_folder,
            work_folder=setting.state_folder / "work",
            command=setting.export,
        )
        self._exporter = Exporter(exporting, self._outbox.put)
        self._envelopes = Envelopes(self._supervisor.pids_on)
        self._referee = Referee(
            RefereeSetting(
                leader_url=split_pin(identity.leader)[0],
                leader_token=identity.credential,
                leader_pin=split_pin(identity.leader)[1],
                cache_folder=setting.cache_folder,
                command=setting.reference,
            ),
            self._outbox.put,
        )
        # A card that is free again is told at once: the next job may wait for it.
        self._supervisor.on_change = self._beat_now.set

    def stop(self) -> None:
        """End soon: stop the workers, send what can be sent."""
        self._stop.set()

    async def run(self) -> None:
        """Run until `stop`.

        Raises:
            SwarmError: unauthenticated when the leader no longer knows this fellow.
        """
        loops = [
            asyncio.create_task(work, name=name)
            for name, work in (
                ("heartbeat", self._guard(self._heartbeats)),
                ("orders", self._guard(self._orders)),
                ("reports", self._guard(self._reports)),
                ("warm-up", self._warm_up()),
                ("samples", self._guard(self._samples)),
            )
        ]
        log.info(
            "fellow runs",
            extra={"fellow_id": self._identity.fellow_id, "leader": self._identity.leader},
        )
        try:
            await self._stop.wait()
        finally:
            await self._end(loops)
        if self._failure is not None:
            raise self._failure

    async def _end(self, loops: "list[asyncio.Task[None]]") -> None:
        """Everything down, within 10 s."""
        heartbeat, orders, reports, warm_up, samples = loops
        await _cancel(
            [heartbeat, orders, warm_up, samples, *([self._measuring] if self._measuring else [])]
        )
        reason = "the fellow was stopped on its own machine"
        if self._failure is not None:
            reason = self._failure.message
        await self._exporter.close()
        await self._referee.close()
        await self._supervisor.close(reason)
        if self._failure is None:
            await self._outbox.flush(_FLUSH_S)
        await _cancel([reports])
        self._spool.close()
        await self._link.__aexit__(None, None, None)
        log.info("fellow ended", extra={"unsent_reports": len(self._spool)})

    async def _warm_up(self) -> None:
        if not isinstance(self._launcher, WarmLauncher) or not self._inventory.can_train:
            self._warm.set()
            if self._setting.launcher is None and self._inventory.can_train:
                self._inventory.proofs.take(await prove(self._setting.probe))
                self._beat_now.set()
            return
        try:
            await self._launcher.warm_up()
            self._inventory.proofs.take(await self._launcher.prove())
            self._beat_now.set()
        except SwarmError as error:
            log.warning("no warm process", extra={"why": error.message})
        finally:
            self._warm.set()

    async def _guard(self, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """A loop must not die unseen: a mistake of ours ends the daemon with its reason."""
        try:
            await loop()
        except Exception as error:
            log.error("a loop of the daemon failed", exc_info=error)
            self._fatal(SwarmError("internal", f"the fellow daemon failed: {type(error).__name__}"))

    def _fatal(self, error: SwarmError) -> None:
        if error.code == "unauthenticated":
            error = SwarmError(
                "unauthenticated",
                f"the leader at {self._identity.leader} no longer knows this fellow"
                f" ({self._identity.fellow_id})",
                hint="it was removed from its pool: join again with a new invite (`swarm join`)",
            )
        self._failure = self._failure or error
        self._stop.set()

    async def _heartbeats(self) -> None:
        backoff = Backoff()
        while True:
            pause_s = self._identity.heartbeat_s
            try:
                asked_at = time.monotonic()
                self._beat_now.clear()
                self._take(await self._tell(await self._beat()), asked_at)
                self._envelopes.taken()
                self._first_answer.set()
                backoff.succeeded()
            except SwarmError as error:
                if error.code == "unauthenticated" or error.facts.get("reason") == TWO_DAEMONS:
                    return self._fatal(error)
                pause_s = backoff.pause_s()
                _tell_away(error, "heartbeat")
            try:
                async with asyncio.timeout(pause_s):
                    await self._beat_now.wait()
            except TimeoutError:
                pass

    async def _samples(self) -> None:
        try:
            while True:
                await asyncio.sleep(SAMPLE_S)
                await asyncio.to_thread(self._envelopes.sample)
        finally:
            self._envelopes.close()

    async def _tell(self, beat: Heartbeat) -> DesiredState:
        """Tell the leader how this machine is, in short where it knows the rest."""
        short = shortened(beat, self._seen.told)
        try:
            if short is not None:
                return await self._link.short_beat(short)
        except SwarmError as error:
            if error.code not in ("conflict", "not-found"):
                raise
        state = await self._link.heartbeat(beat)
        self._seen.told = beat
        return state

    async def _orders(self) -> None:
        """Held requests beside the heartbeat: a change of orders arrives at once."""
        await self._first_answer.wait()
        backoff = Backoff()
        while True:
            asked_at = time.monotonic()
            try:
                self._take(await self._link.orders(self._seen.revision), asked_at)
                backoff.succeeded()
            except SwarmError as error:
                if error.code == "unauthenticated":
                    return self._fatal(error)
                await asyncio.sleep(backoff.pause_s())

    async def _reports(self) -> None:
        # Not before the leader has said what it has: after a restart most of it is there already.
        await self._first_answer.wait()
        await self._outbox.run(self._fatal)

    def _take(self, state: DesiredState, asked_at: float) -> None:
        """Take the leader's word, unless a newer one came while this was on its way.

        A lower revision that was asked for later counts: the leader may have been put back.
        """
        self._outbox.committed(state.reports_committed)
        if state.revision < self._seen.revision and asked_at < self._seen.heard_at:
            return
        self._seen.revision, self._seen.heard_at = state.revision, time.monotonic()
        self._supervisor.want(state.stages)
        self._exporter.want(state.export)
        self._referee.want(state.reference)
        if state.measure is not None:
            if state.measure.token not in self._seen.measured:
                self._begin_measuring(state.measure)
            self._tests.take(state.measure)

    async def _beat(self) -> Heartbeat:
        machine, cards = await asyncio.to_thread(self._look)
        supervisor = self._supervisor
        return Heartbeat(
            protocol=PROTOCOL,
            fellow_id=self._identity.fellow_id,
            machine=machine,
            cards=cards,
            stages=supervisor.statuses()[:16],
            measuring=self._seen.is_measuring,
            probes=list(self._tests.ends.values()),
            loads=self._envelopes.lap(cards),
            sent_bytes=self._link.sent_bytes,
            received_bytes=self._link.received_bytes,
            pipeline_sent_bytes=supervisor.sent_bytes,
            pipeline_received_bytes=supervisor.received_bytes,
        )

    def _look(self) -> "tuple[Any, list[CardReport]]":
        pids = self._supervisor.pids()
        return self._inventory.machine(), self._inventory.cards(self._supervisor.held_bytes, pids)

    def _begin_measuring(self, order: MeasureOrder) -> None:
        if self._measuring is None or self._measuring.done():
            self._seen.measured.add(order.token)
            self._measuring = asyncio.create_task(self._measure(order), name="measure")

    async def _measure(self, order: MeasureOrder) -> None:
        self._seen.is_measuring = True
        self._beat_now.set()
        try:
            if order.leader:
                self._outbox.put(await measure_leader(self._link, order.token))
            for test in order.links:
                tested = await self._tests.run(test, order.token)
                if test.dials:
                    self._outbox.put(tested)
            if not order.cards:
                return
            # A process that still loads torch takes from the card what the figure would then lack.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._warm.wait(), _WARM_S)
            async with measuring_turn(_TURN_S):
                _, cards = await asyncio.to_thread(self._look)
                for card in cards:
                    told = await measure(card, order.token, self._setting.probe)
                    self._inventory.speeds[card.index] = told.speeds
                    self._outbox.put(told)
        finally:
            self._seen.is_measuring = False
            self._beat_now.set()


async def serve(identity: Identity, setting: DaemonSetting) -> None:
    """Run a daemon until SIGTERM or SIGINT.

    Raises:
        SwarmError: conflict when one runs here already; unauthenticated when the leader removed it.
    """
    with OneDaemon(setting.state_folder):
        daemon = Daemon(identity, setting)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, daemon.stop)
        await daemon.run()


async def _cancel(tasks: "list[asyncio.Task[None]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _tell_away(error: SwarmError, what: str) -> None:
    log.warning("leader away", extra={"code": error.code, "why": error.message, "what": what})
