"""How many bytes of a model's files a span of layers needs, and the least and the most of any span.

Pure. Files are fetched whole. A file that holds layers next to each other is counted by its first
and its last one, so that a span costs two look-ups and not a pass over all files.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from stage_runtime.checkpoint_share import StageSpan, Tensors, needs, part_of
from stage_runtime.model_facts import ModelFacts


@dataclass(frozen=True)
class _File:
    size: int
    layers: tuple[int, ...]
    """Whose tensors it holds, in order."""
    tables: frozenset[tuple[bool, bool]]
    """The ends at which it is needed whatever layers a stage has: (first stage, last stage)."""

    @property
    def is_whole(self) -> bool:
        """Whether its layers lie next to each other."""
        return bool(self.layers) and self.layers[-1] - self.layers[0] + 1 == len(self.layers)


@dataclass(frozen=True)
class _Sizes:
    """The files at one pair of ends."""

    always: int
    firsts: list[int]
    """First layers of whole files, in order; their sizes summed up beside them."""
    until_first: list[int]
    lasts: list[int]
    until_last: list[int]
    scattered: list[_File]

    def of(self, first: int, last: int) -> int:
        """Bytes of the files that hold one of these layers, and of those that are always needed."""
        begun = self.until_first[bisect_right(self.firsts, last)]
        ended = self.until_last[bisect_left(self.lasts, first)]
        odd = sum(f.size for f in self.scattered if any(first <= n <= last for n in f.layers))
        return self.always + begun - ended + odd


class Shares:
    """Sizes of all spans of one model's files."""

    def __init__(self, facts: ModelFacts, files: Mapping[str, Tensors]) -> None:
        self._facts = facts
        self._files = [self._file(tensors) for tensors in files.values()]
        self._sizes: dict[tuple[bool, bool], _Sizes] = {}
        self._extents: dict[tuple[bool, bool, int], tuple[int, int]] = {}

    @cached_property
    def whole(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self._files)

    def of(self, span: StageSpan) -> int:
        """Bytes of the whole files that hold a stage's share."""
        return self._at(span.is_first, span.is_last).of(span.first_layer, span.last_layer)

    def extent(self, ends: tuple[bool, bool], count: int) -> tuple[int, int]:
        """The least and the most that so many layers need, wherever such a stage lies."""
        key = (*ends, count)
        if key not in self._extents:
            first, last = ends
            top = self._facts.num_layers - count
            starts = range(top, top + 1) if last else range(1, top) if not first else range(1)
            sizes = self._at(*ends)
            found = [sizes.of(start, start + count - 1) for start in starts] or [self.whole]
            self._extents[key] = min(found), max(found)
        return self._extents[key]

    def _file(self, tensors: Tensors) -> _File:
        parts = [part_of(self._facts, name) for name in tensors]
        layers = tuple(sorted({layer for part, layer in parts if part == "layer"}))
        tables = [name for name, (part, _) in zip(tensors, parts) if part != "layer"]
        ends = [(first, last) for first in (False, True) for last in (False, True)]
        needed = frozenset(
            (first, last)
            for first, last in ends
            if any(needs(self._facts, StageSpan(0, 0, first, last), name) for name in tables)
        )
        return _File(sum(tensors.values()), layers, needed)

    def _at(self, is_first: bool, is_last: bool) -> _Sizes:
        key = (is_first, is_last)
        if key not in self._sizes:
            rest = [file for file in self._files if key not in file.tables]
            whole = [file for file in rest if file.is_whole]
            starts = sorted((file.layers[0], file.size) for file in whole)
            ends = sorted((file.layers[-1], file.size) for file in whole)
            self._sizes[key] = _Sizes(
                always=sum(file.size for file in self._files if key in file.tables),
                firsts=[layer for layer, _ in starts],
                until_first=[0, *accumulate(size for _, size in starts)],
                lasts=[layer for layer, _ in ends],
                until_last=[0, *accumulate(size for _, size in ends)],
                scattered=[file for file in rest if file.layers and not file.is_whole],
            )
        return self._sizes[key]
