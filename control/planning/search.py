"""Searches the fellows, settings and split that fit, and of these the order with the shortest step.

Pure. All fellows first, then without the smallest; recompute only when a job does not fit without
it, 4 bits only when it does not fit with recompute either. Does not know how a plan is shown, nor
which cards are usable.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations

from control.planning import auto, compression
from control.planning.course import Course, Tried
from control.planning.disk import Disk
from control.planning.orders import MOST_TRIES, Tries, best_order
from control.planning.pace import Links, pace_of
from control.planning.price_book import PriceBook
from control.planning.split import FellowCards, Pins, Split, may_fit, split
from control.planning.summary import needs_line
from stage_runtime.checkpoint_share import Tensors
from stage_runtime.model_facts import ModelFacts
from transport.api.job_config import JobConfig
from transport.api.plans import DataShape
from transport.orders import ModelSource, TrainSettings
from transport.units import human_bytes

ALL_ROOM_ORDERS = 3


@dataclass(frozen=True)
class PlannedModel:
    """The model of a job: an exact revision, its facts, and what its files hold."""

    source: ModelSource
    facts: ModelFacts
    files: Mapping[str, Tensors] | None = None
    """File -> tensor -> bytes; None when unknown: then the download share is unknown too."""


@dataclass(frozen=True)
class Ask:
    """A job, made ready for the search."""

    model: PlannedModel
    config: JobConfig
    data: DataShape | None
    pins: Pins
    format: auto.Format
    quantization: auto.Quantization = "none"
    links: Links | None = None
    old: tuple[str, ...] = ()
    """Fellows of a version from before longer pipelines and recompute."""
    by_speed: bool = True
    """False: only whether it fits is asked."""
    _books: dict[str, PriceBook] = field(default_factory=dict, compare=False)

    @property
    def fewest(self) -> int:
        """Stages that the job needs at least."""
        return len(self.pins.counts) if self.pins.counts else compression.fewest(self.config)

    @cached_property
    def disk(self) -> Disk:
        """What the job's files ask of a disk."""
        return Disk(self.model.facts, self.model.source, self.model.files, self.config.memory_check)

    def book(self, settings: TrainSettings) -> PriceBook:
        """The prices under these settings: the same ones whenever they are asked for again."""
        key = settings.model_dump_json()
        if key not in self._books:
            self._books[key] = PriceBook(self.model.facts, settings)
        return self._books[key]

    def asked(self, num_stages: int) -> auto.Asked:
        """What settings over so many stages are made from."""
        known = self.data.sequences if self.data else None
        facts = self.model.facts
        return auto.Asked(
            self.config, facts, self.format.name, num_stages, known, whole_logits=bool(self.old)
        )


@dataclass(frozen=True)
class Found:
    """What a search ended with: a split that fits, or the nearest miss and why."""

    split: Split
    settings: TrainSettings
    reason: str = ""
    tried: Tried | None = None
    """The predicted step; None while a card has no figure."""
    bound_s: float | None = None
    """No order of these fellows has a shorter step; None where nothing proves one."""


@dataclass
class LeftOut:
    """Why usable cards are not used, by card."""

    reasons: dict[str, str] = field(default_factory=dict)

    def add(self, fellow: FellowCards, reason: str) -> None:
        """All cards of a fellow."""
        self.reasons |= {card.id: reason for card in fellow.cards}


def search(ask: Ask, fellows: list[FellowCards], left_out: LeftOut) -> Found:
    """The first way of saving memory with which the job fits, on as many fellows as it fits.

    Gives the nearest miss of all fellows, with the reason, when nothing fits.
    """
    misses: list[Found] = []
    for saving in auto.savings(
        ask.config, ask.quantization, ask.model.facts, can_recompute=not ask.old
    ):
        found, reasons = _search(ask, fellows, saving)
        if not found.reason:
            left_out.reasons |= reasons
            return found
        misses.append(found)
    return misses[-1]


def _search(
    ask: Ask, fellows: list[FellowCards], saving: auto.Saving
) -> tuple[Found, dict[str, str]]:
    """(what fits, why which cards were left out), or the miss with all fellows."""
    dropped = LeftOut()
    miss: Found | None = None
    tries = Tries(2 * tries_for(len(fellows)))
    while True:
        found = _best(ask, fellows, saving, tries)
        if not found.reason:
            return found, dropped.reasons
        miss = miss or found
        if len(fellows) <= max(1, ask.fewest):
            return miss, {}
        fellow, why = _dropped(ask, fellows, found)
        dropped.add(fellow, why)
        fellows = [one for one in fellows if one is not fellow]


def _dropped(ask: Ask, fellows: Sequence[FellowCards], found: Found) -> tuple[FellowCards, str]:
    """The fellow to try without: one whose disk is too small, else the one with the least room."""
    disk = ask.disk
    for stage in found.split.stages:
        lacks = disk.lack(stage)
        if found.split.fits and lacks:
            owner = stage[0].card.fellow.fellow_id
            return next(
                one for one in fellows if one.fellow_id == owner
            ), f"left out for disk: {lacks}"
    smallest = min(fellows, key=lambda one: (one.free_bytes, one.fellow_id))
    need = next(
        sum(card.price.total for card in stage)
        for stage in found.split.stages
        if stage[0].card.fellow.fellow_id == smallest.fellow_id
    )
    return smallest, f"less than the {human_bytes(need)} a stage needs free"


def _best(ask: Ask, fellows: Sequence[FellowCards], saving: auto.Saving, tries: Tries) -> Found:
    """The best settings that fit on these fellows, or the miss of the smallest ones."""
    asked = ask.asked(len(fellows))
    *larger, smallest = auto.batches(asked)
    least = _try(ask, fellows, auto.settings(asked, smallest, saving))
    if not least.split.fits and ask.config.memory_check:
        why = f"not enough memory {_even(asked)}: {needs_line(least.split, fellows)}"
        return replace(least, reason=why)
    trials = (auto.settings(asked, batch, saving) for batch in larger)
    tried = (_try(ask, fellows, one, is_open=True) for one in trials if _may_fit(ask, fellows, one))
    found = next((one for one in tried if one.split.fits), least)
    return _by_speed(ask, fellows, found, tries)


def _may_fit(ask: Ask, fellows: Sequence[FellowCards], settings: TrainSettings) -> bool:
    return may_fit(fellows, ask.book(settings)) or not ask.config.memory_check


def _by_speed(ask: Ask, fellows: Sequence[FellowCards], found: Found, tries: Tries) -> Found:
    """What was found, in the order and split with the shortest step where speeds are known."""
    course = course_of(ask, fellows, found.settings)
    lacks = [lack for stage in found.split.stages if (lack := course.disk.lack(stage))]
    if course.pace is not None and (ask.by_speed or lacks):
        ranked = best_order(course, fellows, tries.at_most(tries_for(len(fellows))))
        if ranked is not None:
            bound = ranked.bound_s if 0 < ranked.bound_s < math.inf else None
            return Found(ranked.tried.split, found.settings, "", ranked.tried, bound)
    if lacks:
        return replace(found, reason=f"not enough disk: {'; '.join(lacks)}")
    return found


def tries_for(fellows: int) -> int:
    """Orders that a search may try: the more fellows, the dearer each."""
    return max(12, MOST_TRIES // max(1, fellows - 4)) if fellows > 4 else MOST_TRIES


def course_of(ask: Ask, fellows: Sequence[FellowCards], settings: TrainSettings) -> Course:
    """How orders of these fellows are tried under these settings."""
    cards = [card for one in fellows for card in one.cards]
    known = ask.links if ask.links is not None and not ask.links.unknown(fellows) else None
    pinned = ask.pins.counts is not None or ask.pins.equal
    return Course(
        book=ask.book(settings),
        stages=len(fellows),
        pins=ask.pins,
        disk=ask.disk,
        pace=pace_of(ask.model.facts, settings, cards, known),
        moves=not pinned and ask.config.memory_check,
    )


def _even(asked: auto.Asked) -> str:
    batch = auto.batches(asked)[-1]
    automatic = asked.config.train.batch_size == "auto"
    return f"even at batch {batch}" if automatic else f"at batch {batch}"


def _try(
    ask: Ask, fellows: Sequence[FellowCards], settings: TrainSettings, *, is_open: bool = False
) -> Found:
    """These settings in the first order that fits, or the nearest miss.

    is_open: `_may_fit` has said that an order may hold the model.
    """
    book = ask.book(settings)
    tried: list[Split] = []
    for order in _orders(fellows):
        if len(tried) == 1 and not is_open and not _may_fit(ask, fellows, settings):
            break
        made = split(order, book, ask.pins)
        if made.fits:
            return Found(made, settings)
        tried.append(made)
    return Found(min(tried, key=lambda one: one.missing_bytes), settings)


def _orders(fellows: Sequence[FellowCards]) -> list[list[FellowCards]]:
    """Orders to try for room: by name; the two largest at the ends, where tables lie; the largest
    first, where the most micro-batches are alive, or last, where the loss is. All of a few.
    """
    stable = sorted(fellows, key=lambda one: one.fellow_id)
    by_room = sorted(stable, key=lambda one: -one.free_bytes)
    ends = [by_room[0], *sorted(by_room[2:], key=lambda one: one.fellow_id), *by_room[1:2]]
    told: list[list[FellowCards]] = []
    for order in (stable, ends, by_room, by_room[::-1]):
        if order not in told:
            told.append(order)
    if len(stable) <= ALL_ROOM_ORDERS:
        told += [list(one) for one in permutations(stable) if list(one) not in told]
    return told
