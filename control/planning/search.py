"""Searches the fellows, settings and split that fit: all fellows first, then without the smallest.

Pure. Knows memory and disk. Does not know how a plan is shown, nor which cards are usable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from control.planning import auto
from control.planning.split import FellowCards, Pins, PlacedCard, Split, order_of, split
from control.planning.summary import needs_line
from stage_runtime.checkpoint_share import StageSpan, Tensors, download_bytes
from stage_runtime.costs import Prices
from stage_runtime.model_facts import ModelFacts
from transport.api.job_config import JobConfig
from transport.api.plans import DataShape
from transport.orders import ModelSource, TrainSettings
from transport.units import human_bytes

DISK_SPARE = 500_000_000


@dataclass(frozen=True)
class PlannedModel:
    """The model of a job: an exact revision, its facts, and what its files hold."""

    source: ModelSource
    facts: ModelFacts
    files: Mapping[str, Tensors] | None = None
    """File -> tensor -> bytes; None when unknown: then the download share is unknown too."""


@dataclass(frozen=True)
class Ask:
    model: PlannedModel
    config: JobConfig
    data: DataShape | None
    pins: Pins
    format: auto.Format

    @property
    def fewest(self) -> int:
        """Stages that the job needs at least."""
        return len(self.pins.counts) if self.pins.counts else self.config.min_workers

    def asked(self, num_stages: int) -> auto.Asked:
        """What settings over so many stages are made from."""
        known = self.data.sequences if self.data else None
        return auto.Asked(self.config, self.model.facts, self.format.name, num_stages, known)


@dataclass(frozen=True)
class Found:
    """What a search ended with: a split that fits, or the nearest miss and why."""

    split: Split
    settings: TrainSettings
    reason: str = ""


@dataclass
class LeftOut:
    """Why usable cards are not used, by card."""

    reasons: dict[str, str] = field(default_factory=dict)

    def add(self, fellow: FellowCards, reason: str) -> None:
        """All cards of a fellow."""
        self.reasons |= {card.id: reason for card in fellow.cards}


def search(ask: Ask, fellows: list[FellowCards], left_out: LeftOut) -> Found:
    """All fellows if they fit, else without the smallest, and so on; recompute only after that.

    Gives the nearest miss of all fellows, with the reason, when nothing fits.
    """
    misses: list[Found] = []
    for recompute in auto.recompute_choices(ask.config):
        found, reasons = _search(ask, fellows, recompute=recompute)
        if not found.reason:
            left_out.reasons |= reasons
            return found
        misses.append(found)
    return misses[-1]


def _search(
    ask: Ask, fellows: list[FellowCards], *, recompute: bool
) -> tuple[Found, dict[str, str]]:
    """(what fits, why which cards were left out), or the miss with all fellows."""
    dropped = LeftOut()
    miss: Found | None = None
    while True:
        found = _best(ask, fellows, recompute=recompute)
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
    for stage in found.split.stages:
        lacks = _disk_lack(ask, stage)
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


def _best(ask: Ask, fellows: Sequence[FellowCards], *, recompute: bool) -> Found:
    """The best settings that fit on these fellows, or the miss of the smallest ones."""
    asked = ask.asked(len(fellows))
    trials = list(auto.trials(asked, recompute=recompute))
    least = _try(ask, fellows, trials[-1])
    if not least.split.fits:
        if not ask.config.memory_check:
            return least
        why = f"not enough memory {_even(asked)}: {needs_line(least.split, fellows)}"
        return replace(least, reason=why)
    tried = (_try(ask, fellows, settings) for settings in trials)
    found = next((one for one in tried if one.split.fits), least)
    lacks = [lack for stage in found.split.stages if (lack := _disk_lack(ask, stage))]
    if lacks and ask.config.memory_check:
        return replace(found, reason=f"not enough disk: {'; '.join(lacks)}")
    return found


def _even(asked: auto.Asked) -> str:
    batch = auto.batches(asked)[-1]
    automatic = asked.config.train.batch_size == "auto"
    return f"even at batch {batch}" if automatic else f"at batch {batch}"


def _try(ask: Ask, fellows: Sequence[FellowCards], settings: TrainSettings) -> Found:
    """These settings in the first order that fits, or the nearest miss."""
    prices = Prices(ask.model.facts, settings)
    tried = []
    for order in order_of(fellows):
        made = split(order, prices, ask.pins)
        if made.fits:
            return Found(made, settings)
        tried.append(made)
    return Found(min(tried, key=lambda one: one.missing_bytes), settings)


def span_of(stage: Sequence[PlacedCard]) -> StageSpan:
    first, last = stage[0].place, stage[-1].place
    is_last = first.stage == first.num_stages - 1
    return StageSpan(first.first_layer, last.last_layer, first.stage == 0, is_last)


def download_of(ask: Ask, stage: Sequence[PlacedCard]) -> int | None:
    files = ask.model.files
    return None if files is None else download_bytes(ask.model.facts, files, span_of(stage))


def disk_free(stage: Sequence[PlacedCard]) -> int | None:
    heartbeat = stage[0].card.fellow.heartbeat
    return heartbeat.machine.disk_free_bytes if heartbeat else None


def _disk_lack(ask: Ask, stage: Sequence[PlacedCard]) -> str:
    """Why a fellow's disk cannot hold its share; "" when it can, or nobody knows."""
    need, free = download_of(ask, stage), disk_free(stage)
    heartbeat = stage[0].card.fellow.heartbeat
    source = ask.model.source
    cached = heartbeat.machine.cached_models if heartbeat else []
    if need is None or free is None or need + DISK_SPARE <= free:
        return ""
    if f"{source.repository}@{source.revision}" in cached:
        return ""
    host = stage[0].card.fellow.hostname
    return f"{host} has {human_bytes(free)} free disk, its share is {human_bytes(need)}"
