"""Who is there: heartbeats in, desired states out. In memory; only joining is stored.

Level-triggered: the answer to each heartbeat is all that a fellow should be doing, so that a lost
or repeated message changes nothing. Does not know what a job is; it is given the assignments.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from control.clock import Clock, wait_for_event
from control.fellows.clean_text import clean_model
from control.fellows.link_board import LinkBoard
from control.fellows.link_tests import (
    FEATURE,
    MOST_PEERS,
    Prober,
    introduced,
    name_of,
    order_of,
    order_of_peer,
)
from control.fellows.lives import Lives
from control.fellows.rates import Rates, rates_between
from control.fellows.secret_text import sha256_text
from control.fellows.told import latest, matters
from control.fellows.vanished import Gone, Vanished
from control.store.fellows import StoredFellow
from control.store.link_figures import LinkFigure
from transport.beats import ShortBeat, lengthened
from transport.cards import PROTOCOL, CardLoad, CardReport, Heartbeat, Speed
from transport.errors import SwarmError, not_found
from transport.orders import (
    DesiredState,
    ExportOrder,
    MeasureOrder,
    ReferenceOrder,
    StageAssignment,
)
from transport.reports import LinkMeasured

log = logging.getLogger(__name__)

FEWEST_AT_ONCE = 2
HOLD_FIRE_S = 120.0
"""Fellows that stay silent for so long are gone, however many they are."""
MEASURE_S = 300.0  # a fellow that has not told its figures by then will not
MAX_HOLD_S = 25.0  # a held request ends before proxies give it up


@dataclass(frozen=True)
class Timing:
    """How often fellows beat, and when silence means offline."""

    heartbeat_s: float
    offline_after_s: float


@dataclass
class Member:
    """A fellow as the leader sees it now."""

    stored: StoredFellow
    revision: int
    beat: Heartbeat | None = None
    heard_at: float | None = None
    """Monotonic, of the last heartbeat since the leader's start."""
    seen_at: float | None = None
    """Unix time of the same."""
    copied_at: float | None = None
    """Unix time at which a copy of it was refused last."""
    rates: Rates | None = None
    loads: tuple[CardLoad, ...] = ()
    """How its cards were used before its last report that told any; none while it is offline."""
    online: bool = False
    assignments: tuple[StageAssignment, ...] = ()
    measure: MeasureOrder | None = None
    export: ExportOrder | None = None
    reference: ReferenceOrder | None = None
    measure_since: float = 0.0
    measured_cards: set[int] = field(default_factory=set)
    tested: set[str] = field(default_factory=set)
    """Peers whose link has been measured for the order."""
    committed: int = 0
    step: int | None = None
    loss: float | None = None
    speeds: dict[int, list[Speed]] = field(default_factory=dict)
    """Card index -> speeds measured on order, as stored."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def fellow_id(self) -> str:
        """Its id."""
        return self.stored.fellow_id

    @property
    def pool(self) -> str:
        """Its pool."""
        return self.stored.pool

    @property
    def is_measuring(self) -> bool:
        """Measures now, or has been told to."""
        return self.measure is not None or (self.beat is not None and self.beat.measuring)

    @property
    def is_training(self) -> bool:
        """Has a stage to run, or still runs one, or trains a probe in one process."""
        running = self.beat.stages if self.beat else []
        has_order = bool(self.assignments) or self.reference is not None
        return has_order or any(s.phase not in ("done", "failed") for s in running)

    def works_beside(self, job_id: str) -> bool:
        """Whether it has, or runs, something else than a stage of this job."""
        if self.reference is not None:
            return True
        told = [one.order.job_id for one in self.assignments]
        running = self.beat.stages if self.beat else []
        told += [one.job_id for one in running if one.phase not in ("done", "failed")]
        return any(one != job_id for one in told)

    def cards(self) -> list[CardReport]:
        """Its cards, each with the figure told last of every number format."""
        if self.beat is None:
            return []
        return [
            card.model_copy(update={"speeds": latest(self.speeds.get(card.index, []), card.speeds)})
            for card in self.beat.cards
        ]


class Registry:
    """All fellows of all pools."""

    def __init__(
        self, clock: Clock, timing: Timing, publish: Callable[[str, str, str], None]
    ) -> None:
        self._clock = clock
        self._timing = timing
        self._publish = publish  # topic, pool, what
        self._started_at = clock.monotonic()
        # Above every number that an earlier life of this leader gave out.
        self._revisions = itertools.count(int(clock.now() * 1000))
        self._members: dict[str, Member] = {}
        self._by_credential: dict[str, str] = {}
        self._last_sweep = clock.monotonic()
        self.link_figures: dict[tuple[str, str], LinkFigure] = {}
        """(sender, taker) -> as measured last."""
        self.links = LinkBoard()
        """How stages reach each other now."""
        self.suspects_itself = False
        """Most fellows are silent at once: nobody counts as lost for a while."""
        self.vanished = Vanished(clock)
        self.lives = Lives(clock, self.vanished, timing.offline_after_s)
        self.heard = asyncio.Event()
        """Set whenever something changed that may let a waiting job start."""

    def add(self, stored: StoredFellow) -> Member:
        """Know a fellow from now on."""
        if stored.fellow_id in self._members:
            return self._members[stored.fellow_id]
        member = Member(stored, next(self._revisions), committed=stored.reports_committed)
        self._members[stored.fellow_id] = member
        self._by_credential[stored.credential_sha256] = stored.fellow_id
        self._publish("fellows", stored.pool, "joined")
        return member

    def remove(self, fellow_id: str) -> None:
        """Forget a fellow: its credential stops working, held requests end."""
        member = self._members.pop(fellow_id)
        self._by_credential.pop(member.stored.credential_sha256, None)
        member.changed.set()
        self.vanished.forget(fellow_id)
        self.lives.forget(fellow_id)
        self._publish("fellows", member.pool, "removed")

    def authenticate(self, credential: str) -> str | None:
        """The fellow of a credential."""
        return self._by_credential.get(sha256_text(credential))

    def admit(self, fellow_id: str, life: str) -> None:
        """Let one start of a daemon speak for a fellow.

        Raises:
            SwarmError: conflict for a second one beside the first; unavailable while that is open.
        """
        try:
            self.lives.admit(fellow_id, life)
        finally:
            if fellow_id in self._members:
                self._members[fellow_id].copied_at = self.lives.copies.get(fellow_id)

    def find(self, fellow_id: str) -> Member | None:
        """A fellow by id."""
        return self._members.get(fellow_id)

    def get(self, fellow_id: str) -> Member:
        """A fellow by id.

        Raises:
            SwarmError: not-found.
        """
        member = self._members.get(fellow_id)
        if member is None:
            raise not_found("fellow", fellow_id, hint="list them with fellows_list")
        return member

    def of_pool(self, pool: str) -> list[Member]:
        """The fellows of a pool, in order of joining."""
        return [member for member in self._members.values() if member.pool == pool]

    def every(self) -> list[Member]:
        """All fellows, in order of joining."""
        return list(self._members.values())

    def beat(self, fellow_id: str, told: Heartbeat) -> DesiredState:
        """Take a heartbeat; answer with all that the fellow should be doing.

        Raises:
            SwarmError: forbidden when it speaks for another fellow; conflict for an old protocol.
        """
        member = self.get(fellow_id)
        if told.fellow_id != fellow_id:
            raise SwarmError(
                "forbidden", "a fellow can only report itself", hint="use its own credential"
            )
        now = self._clock.monotonic()
        before, was_online = member.beat, member.online
        if before is not None and member.heard_at is not None:
            member.rates = rates_between(before, told, now - member.heard_at)
        member.beat, member.heard_at, member.online = clean_model(told), now, True
        member.seen_at = self._clock.now()
        # Two reports that follow each other at once have no sample in between.
        member.loads = tuple(member.beat.loads) or member.loads
        self.links.note(member.beat)
        self._introduce(member)
        if not was_online:
            self._publish("fellows", member.pool, "online")
        if before is None or not was_online or matters(before, told):
            self.heard.set()
        self._publish("fellows", member.pool, "beat")
        return self.desired(fellow_id)

    def _introduce(self, member: Member) -> None:
        """Tell the two ends of a link test of each other, once both have said where they are."""
        for test in member.measure.links if member.measure is not None else []:
            other = self._members.get(test.peer)
            if other is None:
                continue
            ends = [Prober(one.fellow_id, one.measure, one.beat) for one in (member, other)]
            orders = introduced(*ends)
            if orders is not None:
                member.measure, other.measure = orders
                self._bump(member)
                self._bump(other)

    def short_beat(self, fellow_id: str, told: ShortBeat) -> DesiredState:
        """Take a heartbeat that leaves out what was told before.

        Raises:
            SwarmError: conflict when that is not known here; whatever `beat` raises.
        """
        whole = lengthened(told, self.get(fellow_id).beat)
        if whole is None:
            raise SwarmError(
                "conflict",
                "this leader does not know what this machine has told before",
                hint="send a whole heartbeat",
            )
        return self.beat(fellow_id, whole)

    def desired(self, fellow_id: str) -> DesiredState:
        """All that a fellow should be doing."""
        member = self.get(fellow_id)
        return DesiredState(
            protocol=PROTOCOL,
            revision=member.revision,
            stages=list(member.assignments),
            measure=member.measure,
            export=member.export,
            reference=member.reference,
            reports_committed=member.committed,
        )

    async def wait_orders(self, fellow_id: str, since: int, timeout_s: float) -> DesiredState:
        """The desired state once its revision is above `since`, or when the time is over."""
        member = self.get(fellow_id)
        deadline = self._clock.monotonic() + min(timeout_s, MAX_HOLD_S)
        if timeout_s <= 0:
            return self.desired(fellow_id)
        with self.vanished.asking(fellow_id):
            while member.revision <= since and member.fellow_id in self._members:
                left = deadline - self._clock.monotonic()
                if left <= 0 or not await wait_for_event(member.changed, left, self._clock):
                    break
        return self.desired(fellow_id)

    def assign(self, fellow_id: str, assignments: Sequence[StageAssignment]) -> None:
        """Set the stages that a fellow should run; does nothing when they are the same."""
        member = self._members.get(fellow_id)
        if member is None or member.assignments == tuple(assignments):
            return
        member.assignments = tuple(assignments)
        if not assignments:
            member.step = member.loss = None
        self._bump(member)

    def order_measure(self, fellow_id: str, token: str) -> None:
        """Have a fellow measure its cards.

        Raises:
            SwarmError: unavailable when it is offline; conflict while it trains or measures.
        """
        member = self.get(fellow_id)
        if not member.online:
            raise SwarmError(
                "unavailable", f"{fellow_id} is offline", hint="start `swarm fellow` on it"
            )
        if member.is_training:
            raise SwarmError(
                "conflict", f"{fellow_id} is training", hint="measure it when its job has ended"
            )
        if member.is_measuring:
            raise SwarmError(
                "conflict", f"{fellow_id} is measuring already", hint="read fellows_get in a moment"
            )
        peers = self._peers(member)
        # A fellow of an older version measures its cards only.
        names = [peer.fellow_id for peer in peers]
        self._measure(member, order_of(token, names, links=_tests_links(member)))
        for peer in peers:
            self._measure(peer, order_of_peer(token, fellow_id, peer.fellow_id))

    def _peers(self, member: Member) -> list[Member]:
        """The idle fellows of its pool that can measure a link with it."""
        if not _tests_links(member):
            return []
        others = (one for one in self.of_pool(member.pool) if one is not member)
        idle = [one for one in others if one.online and not (one.is_training or one.is_measuring)]
        return [one for one in idle if _tests_links(one)][:MOST_PEERS]

    def _measure(self, member: Member, order: MeasureOrder) -> None:
        member.measure = order
        member.measure_since, member.measured_cards = self._clock.monotonic(), set()
        member.tested = set()
        self._bump(member)

    def order_export(self, fellow_id: str, order: ExportOrder | None) -> None:
        """Have a fellow make an export, or none; does nothing when it is told so already."""
        member = self._members.get(fellow_id)
        if member is not None and member.export != order:
            member.export = order
            self._bump(member)

    def order_reference(self, fellow_id: str, order: ReferenceOrder | None) -> None:
        """Have a fellow train a probe in one process, or none; does nothing when told already."""
        member = self._members.get(fellow_id)
        if member is not None and member.reference != order:
            member.reference = order
            self.heard.set()
            self._bump(member)

    def take_speeds(self, fellow_id: str, card_index: int, speeds: list[Speed]) -> None:
        """Know measured figures of a card."""
        member = self._members.get(fellow_id)
        if member is not None:
            known = member.speeds.get(card_index, [])
            member.speeds[card_index] = latest(known, speeds)
            self._publish("fellows", member.pool, "measured")

    def note_measured(self, fellow_id: str, token: str, card_index: int) -> None:
        """A card has been measured as this order asked; after the last card the order ends."""
        member = self._members.get(fellow_id)
        if member is None or member.measure is None or member.measure.token != token:
            return
        member.measured_cards.add(card_index)
        self._end_measure(member)

    def note_tested(self, fellow_id: str, told: LinkMeasured) -> None:
        """A link has been measured, or could not be; after the last one the order ends."""
        member = self._members.get(fellow_id)
        if member is None or member.measure is None or member.measure.token != told.token:
            return
        member.tested.add(told.peer)
        peer = self._members.get(told.peer)
        answered = name_of(told.token, told.peer)
        if peer is not None and peer.measure is not None and peer.measure.token == answered:
            self._drop_measure(peer)
        self._end_measure(member)

    def _end_measure(self, member: Member) -> None:
        assert member.measure is not None
        awaited = {test.peer for test in member.measure.links}
        awaited |= {"leader"} if member.measure.leader else set()
        cards = {card.index for card in member.cards()}
        if cards <= member.measured_cards and awaited <= member.tested:
            self._drop_measure(member)

    def take_link_figures(self, figures: Iterable[LinkFigure]) -> None:
        """Know measured links."""
        for figure in figures:
            self.link_figures[figure.sender, figure.taker] = figure

    def links_of(self, fellow_id: str) -> list[LinkFigure]:
        """What is known of the links that begin or end at a fellow."""
        return [one for ends, one in self.link_figures.items() if fellow_id in ends]

    def _drop_measure(self, member: Member) -> None:
        if member.measure is not None:
            member.measure = None
            self._bump(member)

    def note_committed(self, fellow_id: str, sequence: int) -> None:
        """Know up to which of a fellow's reports all are stored."""
        member = self._members.get(fellow_id)
        if member is not None:
            member.committed = max(member.committed, sequence)

    def note_progress(self, fellow_id: str, step: int, loss: float) -> None:
        """Know the newest step that a fellow's stage told."""
        member = self._members.get(fellow_id)
        if member is not None and (member.step is None or step >= member.step):
            member.step, member.loss = step, loss

    def sweep(self) -> list[str]:
        """Find fellows that fell silent. Returns those that are lost: silent for too long.

        A fellow that has not been heard since the leader's start is lost only after the same
        time. When the leader itself stalled, its fellows get that time on top.
        """
        now = self._clock.monotonic()
        stalled = max(0.0, now - self._last_sweep - 2 * self._timing.heartbeat_s)
        self._suspect_itself(now)
        self._last_sweep = now
        lost = []
        for member in self._members.values():
            if member.measure and now - member.measure_since > MEASURE_S:
                self._drop_measure(member)
            if stalled and member.heard_at is not None:
                member.heard_at = min(now, member.heard_at + stalled)
            if self.silent_s(member) < self._timing.offline_after_s:
                continue
            self._goes_offline(member)
            lost.append(member.fellow_id)
        return [] if self.suspects_itself else lost

    def find_vanished(self) -> list[Gone]:
        """Find fellows whose processes are gone, as their neighbours tell too. They are offline."""
        gone = [] if self.suspects_itself else self.vanished.look(self._members.values())
        for one in gone:
            self._goes_offline(self._members[one.fellow_id])
        return gone

    def _goes_offline(self, member: Member) -> None:
        self.vanished.forget(member.fellow_id)
        if member.online:
            member.online, member.rates, member.loads = False, None, ()
            self._drop_measure(member)
            self.heard.set()
            self._publish("fellows", member.pool, "offline")

    def _suspect_itself(self, now: float) -> None:
        """When most fellows fall silent at once it is the leader's own network, most likely."""
        heard = [one.heard_at for one in self._members.values() if one.heard_at is not None]
        limit = self._timing.offline_after_s
        silent = sorted(at for at in heard if limit <= now - at < limit + HOLD_FIRE_S)
        at_once = 2 * self._timing.heartbeat_s
        together = max(
            (sum(at <= one <= at + at_once for one in silent) for at in silent), default=0
        )
        suspects = together >= FEWEST_AT_ONCE and 2 * together > len(heard)
        if suspects and not self.suspects_itself:
            words = "most fellows fell silent at once: is it this leader's own network?"
            log.warning(words, extra={"silent": together, "of": len(heard)})
        self.suspects_itself = suspects

    def silent_s(self, member: Member) -> float:
        """Seconds since its last heartbeat, or since the leader's start."""
        heard = self._started_at if member.heard_at is None else member.heard_at
        return self._clock.monotonic() - heard

    def _bump(self, member: Member) -> None:
        member.revision = next(self._revisions)
        member.changed.set()
        member.changed = asyncio.Event()
        self._publish("fellows", member.pool, "orders")


def _tests_links(member: Member) -> bool:
    return member.beat is not None and FEATURE in member.beat.machine.features
