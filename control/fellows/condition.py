"""How a fellow is: its status, its health grade with the causes in words, its row in a list.

Numbers that nobody measured stay null.
"""

from collections.abc import Iterable
from typing import Literal

from control.fellows.loads import busy_peak, memory_peak
from control.fellows.registry import Member
from transport.api.fellows import FellowRow, FellowStatus, FellowView, ShownCard, Traffic
from transport.cards import PROTOCOL, CardReport, Heartbeat
from transport.ids import card_id
from transport.units import human_bytes

LOW_DISK_SHARE = 0.1
LOW_DISK_BYTES = 5_000_000_000  # when the disk's size is not told
LATE_BEATS = 2.0
COPY_SHOWN_S = 600.0

Grade = Literal["A", "B", "C", "F"]


def status_of(member: Member) -> FellowStatus:
    """offline, measuring, training or ready."""
    if not member.online:
        return "offline"
    if member.is_measuring:
        return "measuring"
    return "training" if member.is_training else "ready"


def health_of(member: Member, silent_s: float, heartbeat_s: float) -> tuple[Grade, list[str]]:
    """A all fine; B one cause; C two or more; F offline. Every cause in words."""
    if not member.online:
        if member.seen_at is None:
            return "F", ["offline: not heard since the leader started"]
        return "F", [f"offline: last heartbeat {silent_s:.0f} s ago"]
    causes = []
    if silent_s > LATE_BEATS * heartbeat_s:
        causes.append(f"its heartbeat is late: {silent_s:.0f} s instead of {heartbeat_s:.0f} s")
    if member.copied_at is not None and (member.seen_at or 0.0) - member.copied_at < COPY_SHOWN_S:
        causes.append("a copy of it was refused: two machines have its credential")
    beat = member.beat
    if beat is not None and beat.protocol < PROTOCOL:
        causes.append(f"update wanted: it speaks protocol {beat.protocol}, the leader {PROTOCOL}")
    if beat is not None:
        causes += _relay_causes(beat)
        causes += _disk_causes(beat.machine.disk_free_bytes, beat.machine.disk_total_bytes)
        causes += [
            f"card {c.index} failed its self-test" for c in beat.cards if not c.number_formats
        ]
    failed = any("self-test" in cause for cause in causes)
    return ("A" if not causes else "C" if failed or len(causes) > 1 else "B"), causes


def _relay_causes(beat: Heartbeat) -> list[str]:
    relayed = sorted(
        f"its link from stage {stage.stage} to stage {link.neighbour} goes through the relay"
        for stage in beat.stages
        for link in stage.links
        if link.path == "relay"
    )
    return relayed[:1]


def _disk_causes(free: int | None, total: int | None) -> list[str]:
    limit = LOW_DISK_BYTES if total is None else int(total * LOW_DISK_SHARE)
    if free is None or free >= limit:
        return []
    return [f"its disk is nearly full: {human_bytes(free)} free, less than {human_bytes(limit)}"]


def used_bytes(cards: Iterable[CardReport]) -> int | None:
    """Bytes held on these cards by anyone; None when no card tells."""
    known = [card.total_bytes - card.free_bytes for card in cards if card.free_bytes is not None]
    return sum(max(0, held) for held in known) if known else None


def row_of(member: Member, silent_s: float, heartbeat_s: float) -> FellowRow:
    """A fellow as one line of a list."""
    cards = member.cards()
    grade, causes = health_of(member, silent_s, heartbeat_s)
    beat = member.beat
    return FellowRow(
        fellow_id=member.fellow_id,
        pool=member.pool,
        untrusted_hostname=beat.machine.hostname if beat else member.stored.hostname,
        version=beat.machine.version if beat else member.stored.version or None,
        status=status_of(member),
        health=grade,
        causes=causes,
        cards=len(cards),
        card_names=[card.name for card in cards],
        card_used_bytes=used_bytes(cards) if member.online else None,
        card_total_bytes=sum(card.total_bytes for card in cards) if cards else None,
        card_peak_bytes=memory_peak(member.loads),
        busy_peak=busy_peak(member.loads),
        sent_bytes_s=member.rates.sent_bytes_s if member.rates else None,
        received_bytes_s=member.rates.received_bytes_s if member.rates else None,
        step=member.step,
        loss=member.loss,
        last_seen_at=member.seen_at,
    )


def view_of(member: Member, row: FellowRow, summary: str) -> FellowView:
    """A fellow in full."""
    beat = member.beat
    machine = beat.machine if beat else None
    return FellowView(
        summary=summary,
        fellow=row,
        system=machine.system if machine else None,
        cores=machine.cores if machine else None,
        memory_bytes=machine.memory_bytes if machine else None,
        memory_free_bytes=machine.memory_free_bytes if machine else None,
        disk_free_bytes=machine.disk_free_bytes if machine else None,
        listen_address=machine.listen_address if machine else None,
        versions=machine.versions if machine else {},
        cards=[_shown(member, card) for card in member.cards()],
        stages=list(beat.stages) if beat else [],
        leader_sent_bytes=beat.sent_bytes if beat else None,
        pipeline_sent_bytes=beat.pipeline_sent_bytes if beat else None,
        traffic=Traffic(**vars(member.rates)) if member.rates else None,
    )


def _shown(member: Member, card: CardReport) -> ShownCard:
    return ShownCard(
        card=card_id(member.fellow_id, card.index),
        index=card.index,
        kind=card.kind,
        name=card.name,
        uuid=card.uuid,
        total_bytes=card.total_bytes,
        free_bytes=card.free_bytes,
        number_formats=list(card.number_formats),
        holders=list(card.holders),
        speeds=list(card.speeds),
        load=next((one for one in member.loads if one.index == card.index), None),
    )
