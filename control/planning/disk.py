"""Whether a fellow's disk holds its share of a model's files.

Pure. Half a gigabyte stays to spare; files already in a fellow's cache still count unless the
fellow told that it has the whole revision.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from control.planning.shares import Shares
from control.planning.split import FellowCards, PlacedCard
from control.planning.usable import FellowNow
from stage_runtime.checkpoint_share import StageSpan, Tensors
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

    def download(self, stage: Sequence[PlacedCard]) -> int | None:
        """Bytes of the files that hold a stage's share."""
        return None if self.files is None else self._shares.of(span_of(stage))

    @cached_property
    def _shares(self) -> Shares:
        assert self.files is not None
        return Shares(self.facts, self.files)

    def is_cached(self, fellow: FellowNow) -> bool:
        """Whether the fellow told that it has this revision."""
        beat = fellow.heartbeat
        return beat is not None and (
            f"{self.source.repository}@{self.source.revision}" in beat.machine.cached_models
        )

    def _room(self, fellow: FellowNow) -> int | None:
        """What a fellow may download; None when nothing limits it."""
        free = disk_free(fellow)
        if self.files is None or free is None or not self.checked or self.is_cached(fellow):
            return None
        return free - DISK_SPARE

    def lack(self, stage: Sequence[PlacedCard]) -> str:
        """Why a fellow's disk cannot hold its share; "" when it can, or nobody knows."""
        fellow = stage[0].card.fellow
        room = self._room(fellow)
        if room is None or (need := self._shares.of(span_of(stage))) <= room:
            return ""
        return (
            f"{fellow.hostname} has {human_bytes(disk_free(fellow))} free disk, "
            f"its share is {human_bytes(need)}"
        )

    def may_bind(self, fellows: Sequence[FellowCards]) -> bool:
        """Whether the disk of one of these fellows could not hold the whole model."""
        return any(self._limits(one) is not None for one in fellows)

    def _limits(self, fellow: FellowCards) -> int | None:
        """What a fellow may download where that is less than the whole model."""
        room = self._room(fellow.cards[0].fellow)
        return room if room is not None and self._shares.whole > room else None

    def most(
        self, fellow: FellowCards, at: tuple[int, int], at_most: int, *, surely: bool = False
    ) -> int:
        """The most layers whose files fit when they lie where they need the fewest files.

        Args:
            at: (stage, stages).
            surely: wherever they lie.
        """
        room = self._limits(fellow)
        if room is None:
            return at_most
        ends = (at[0] == 0, at[0] == at[1] - 1)
        low, high = 0, at_most
        while low < high:
            middle = (low + high + 1) // 2
            if self._shares.extent(ends, middle)[surely] <= room:
                low = middle
            else:
                high = middle - 1
        return low


def disk_free(fellow: FellowNow) -> int | None:
    """Free where the fellow keeps its model cache; None when unknown."""
    return fellow.heartbeat.machine.disk_free_bytes if fellow.heartbeat else None


def span_of(stage: Sequence[PlacedCard]) -> StageSpan:
    """The layers of a placed stage."""
    first, last = stage[0].place, stage[-1].place
    is_last = first.stage == first.num_stages - 1
    return StageSpan(first.first_layer, last.last_layer, first.stage == 0, is_last)
