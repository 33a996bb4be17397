"""Whether a fellow's disk holds its share of a model's files.

Pure. Half a gigabyte stays to spare; files already in a fellow's cache still count unless the
fellow told that it has the whole revision.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from control.planning.split import FellowCards, PlacedCard
from control.planning.usable import FellowNow
from stage_runtime.checkpoint_share import StageSpan, Tensors, download_bytes, part_of
from stage_runtime.model_facts import ModelFacts
from transport.orders import ModelSource
from transport.units import human_bytes

DISK_SPARE = 500_000_000


@dataclass(frozen=True)
class Disk:
    """The files of one revision, and what of them a stage downloads."""

    facts: ModelFacts
    source: ModelSource
    files: Mapping[str, Tensors] | None
    """None when unknown: then the share is unknown too."""
    checked: bool = True
    _known: dict[StageSpan, int] = field(default_factory=dict, compare=False)

    def download(self, stage: Sequence[PlacedCard]) -> int | None:
        """Bytes of the files that hold a stage's share."""
        return None if self.files is None else self._bytes(span_of(stage))

    def _bytes(self, span: StageSpan) -> int:
        if span not in self._known:
            self._known[span] = download_bytes(self.facts, self._grouped, span)
        return self._known[span]

    @cached_property
    def _grouped(self) -> dict[str, dict[str, int]]:
        """The files with one name for all tensors of a layer: a search asks for many spans."""
        assert self.files is not None
        told: dict[str, dict[str, int]] = {}
        for file, tensors in self.files.items():
            groups: dict[tuple[object, ...], tuple[str, int]] = {}
            for name, size in tensors.items():
                part, layer = part_of(self.facts, name)
                key = (part, layer, "" if part == "layer" else name)
                first, total = groups.get(key, (name, 0))
                groups[key] = (first, total + size)
            told[file] = dict(groups.values())
        return told

    def is_cached(self, fellow: FellowNow) -> bool:
        """Whether the fellow told that it has this revision."""
        beat = fellow.heartbeat
        return beat is not None and (
            f"{self.source.repository}@{self.source.revision}" in beat.machine.cached_models
        )

    def lack(self, stage: Sequence[PlacedCard]) -> str:
        """Why a fellow's disk cannot hold its share; "" when it can, or nobody knows."""
        fellow = stage[0].card.fellow
        free = disk_free(fellow)
        if self.files is None or free is None or not self.checked:
            return ""
        need = self._bytes(span_of(stage))
        if need + DISK_SPARE <= free or self.is_cached(fellow):
            return ""
        return (
            f"{fellow.hostname} has {human_bytes(free)} free disk, its share is {human_bytes(need)}"
        )

    def may_bind(self, fellows: Sequence[FellowCards]) -> bool:
        """Whether the disk of one of these fellows could not hold the whole model."""
        if self.files is None or not self.checked:
            return False
        whole = sum(sum(tensors.values()) for tensors in self.files.values())
        for one in fellows:
            fellow = one.cards[0].fellow
            free = disk_free(fellow)
            if free is not None and whole + DISK_SPARE > free and not self.is_cached(fellow):
                return True
        return False


def disk_free(fellow: FellowNow) -> int | None:
    """Free where the fellow keeps its model cache; None when unknown."""
    return fellow.heartbeat.machine.disk_free_bytes if fellow.heartbeat else None


def span_of(stage: Sequence[PlacedCard]) -> StageSpan:
    """The layers of a placed stage."""
    first, last = stage[0].place, stage[-1].place
    is_last = first.stage == first.num_stages - 1
    return StageSpan(first.first_layer, last.last_layer, first.stage == 0, is_last)
