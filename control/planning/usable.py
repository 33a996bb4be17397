"""Which cards a job may use now, and for each other card the reason why not.

Pure. Knows the pool as its heartbeats tell it; the floor that a card must reach is priced, not
fixed. Does not know the split: a card that turns out not to be needed is told by the planner.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from stage_runtime.places import Device
from transport.cards import PROTOCOL, CardReport, Heartbeat
from transport.errors import SwarmError
from transport.ids import card_id
from transport.units import human_bytes

Standing = Literal["ready", "training", "measuring", "serving", "draining", "offline"]

_BUSY = {
    "offline": "fellow not connected",
    "training": "fellow training",
    "measuring": "fellow measuring its cards",
    "serving": "fellow serving",
    "draining": "fellow takes no new work",
}


@dataclass(frozen=True)
class FellowNow:
    """A fellow of the pool as the leader knows it now."""

    fellow_id: str
    hostname: str
    standing: Standing
    heartbeat: Heartbeat | None
    """The last one, also of a fellow that is offline now; None when it never sent one."""


Inventory = Sequence[FellowNow]
LONG_PIPELINES = (0, 1, 0)
"""The first version whose fellows run more than two stages, recompute and chunked loss."""


def is_old(fellow: FellowNow) -> bool:
    """Whether a fellow runs a version from before longer pipelines."""
    if fellow.heartbeat is None:
        return False
    told = fellow.heartbeat.machine.version.split("+")[0].split(".")[:3]
    numbers = [int(part) for part in told if part.isascii() and part.isdecimal()]
    return bool(numbers) and tuple(numbers) < LONG_PIPELINES


@dataclass(frozen=True, eq=False)
class Card:
    """A card of the pool: usable when `reason` is empty."""

    fellow: FellowNow
    report: CardReport
    reason: str = ""

    @cached_property
    def id(self) -> str:
        """fellow_id:index."""
        return card_id(self.fellow.fellow_id, self.report.index)

    @cached_property
    def free_bytes(self) -> int:
        """Free now; 0 when unknown."""
        return min(self.report.free_bytes or 0, self.report.total_bytes)

    @cached_property
    def device(self) -> Device:
        """What of it changes a price. CUDA cards without bfloat16 are older than Ampere."""
        old = self.report.kind == "cuda" and "bfloat16" not in self.report.number_formats
        return Device(self.report.kind, flash=not old)

    @property
    def title(self) -> str:
        """For people: "fxserver's GTX 1050 Ti #0"."""
        return f"{self.fellow.hostname}'s {self.report.name} #{self.report.index}"


@dataclass(frozen=True)
class Wanted:
    """What a job asks of a card."""

    floor_bytes: Callable[[Device], int]
    """The least that any card must have free: its context, workspace and the smallest layer."""
    number_format: str | None = None
    """A format that the card must run; None = any."""
    stored: str = "none"
    """A format of fewer bits in which it must keep weights, proved by its self-test."""
    exclude: frozenset[str] = field(default_factory=frozenset)
    """Cards left out by the caller."""
    features: frozenset[str] = field(default_factory=frozenset)
    """Abilities that the job needs of a fellow."""


def examine(inventory: Inventory, wanted: Wanted) -> list[Card]:
    """Every card of the pool in stable order (fellow, index), each with its reason or none.

    Raises:
        SwarmError: invalid-input; a card to leave out is not in the pool.
    """
    cards = [
        Card(fellow, report, _reason(fellow, report, wanted))
        for fellow in sorted(inventory, key=lambda one: one.fellow_id)
        if fellow.heartbeat is not None
        for report in sorted(fellow.heartbeat.cards, key=lambda one: one.index)
    ]
    unknown = sorted(wanted.exclude - {card.id for card in cards})
    if unknown:
        raise SwarmError(
            "invalid-input",
            f"exclude_cards names {unknown[0]}, which is not a card of this pool",
            hint=f"its cards are {', '.join(card.id for card in cards[:8]) or 'none yet'}",
        )
    return cards


def _reason(fellow: FellowNow, report: CardReport, wanted: Wanted) -> str:
    if fellow.standing != "ready":
        return _BUSY[fellow.standing]
    heartbeat = fellow.heartbeat
    assert heartbeat is not None
    if card_id(fellow.fellow_id, report.index) in wanted.exclude:
        return "left out by you"
    if heartbeat.protocol < PROTOCOL - 1:
        return f"fellow speaks protocol {heartbeat.protocol}, too old: update it"
    lacks = sorted(wanted.features - set(heartbeat.machine.features))
    if lacks:
        return f"fellow cannot do {', '.join(lacks)}: update it, or install its training packages"
    # A card without room did not choose the format: what it lacks first is room.
    return _memory_reason(report, wanted) or _format_reason(report, wanted)


def _format_reason(report: CardReport, wanted: Wanted) -> str:
    if wanted.number_format and wanted.number_format not in report.number_formats:
        return f"does not run {wanted.number_format}"
    if wanted.stored not in ("none", *report.number_formats):
        return f"has not proved {wanted.stored} weights (its self-test failed or has not run yet)"
    return ""


def _memory_reason(report: CardReport, wanted: Wanted) -> str:
    if report.free_bytes is None:
        return "its driver does not tell how much memory is free"
    floor = wanted.floor_bytes(Device(report.kind))
    if report.free_bytes >= floor:
        return ""
    held = sum(holder.held_bytes for holder in report.holders)
    if report.holders and report.free_bytes + held >= floor:
        biggest = max(report.holders, key=lambda one: one.held_bytes)
        return f"{human_bytes(biggest.held_bytes)} held by {biggest.name} (not Swarm)"
    return f"{human_bytes(report.free_bytes)} free, below the {human_bytes(floor)} floor"
