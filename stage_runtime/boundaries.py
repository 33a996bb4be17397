"""Puts a job's compression on the boundaries of one stage, and calibrates it where it needs that.

A boundary is named by the layer that follows it, whatever the split: what is kept for a snapshot is
keyed so, and a boundary that a later split makes anew is calibrated anew. What a stage sends, it
calibrates: activations towards the next stage, gradients towards the previous one; the basis goes
to the neighbour, so that both hold the same bits.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

import torch
from torch import Tensor

from stage_runtime.bottleneck import Bottleneck, components_of, empty_components
from stage_runtime.codecs.basis import Basis, Seen, empty_basis, fit
from stage_runtime.codecs.crossing import PLAIN, Crossing
from stage_runtime.codecs.rotation import RotationCodec
from stage_runtime.codecs.scaled import ScaledCodec
from stage_runtime.codecs.sizes import calibration_batches, rotation_row_bytes
from stage_runtime.saved_state import CONSTANT
from stage_runtime.stage_group import CodingGroup, StageGroup
from transport.errors import SwarmError
from transport.orders import StageOrder
from transport.reports import Crossed

log = logging.getLogger(__name__)
Way = Literal["forward", "backward"]
WAYS: tuple[Way, Way] = ("forward", "backward")
Run = Callable[[int], None]
"""Runs so many batches forward and backward through the whole pipeline, changing no weight."""


@dataclass
class Boundaries:
    """The boundaries of one stage of a run."""

    order: StageOrder
    hidden: int
    devices: list[torch.device]
    """Of the stage's cards, in order: the first takes what comes, the last gives what goes."""
    group: StageGroup
    bottleneck: Bottleneck | None = None
    rotations: dict[tuple[int, Way], RotationCodec] = field(default_factory=dict)
    """By the layer behind the boundary, and the way."""

    def open(self, run: Run) -> None:
        """From here on tensors cross as the settings say. On every stage at the same place.

        Raises:
            SwarmError: what was seen is not finite, or too little; a basis of a neighbour that is
                none; a backend that cannot code.
        """
        kind = self.order.settings.compression.kind
        if kind == "none" or self.order.num_stages == 1:
            return
        if self.order.settings.backend != "swarm":
            raise SwarmError(
                "invalid-input",
                f"compression {kind} needs backend swarm: {self.order.settings.backend} carries "
                "tensors as they are",
                hint="use backend swarm, or no compression",
            )
        if kind == "rotation":
            self._calibrate(run)
        elif self.bottleneck is not None:
            if self.order.resume is None:  # else its projections came with the saved step
                self._start_bottleneck(self.bottleneck, run)
            self.bottleneck.is_on = True
        for neighbour in self._neighbours():
            self._coding.cross(neighbour, self._coded(neighbour))

    def shut(self) -> None:
        """Let tensors cross as they are again, past a learned bottleneck."""
        if self.bottleneck is not None:
            self.bottleneck.is_on = False
        for neighbour in self._neighbours():
            self._coding.cross(neighbour, PLAIN)

    def state(self) -> dict[str, Tensor]:
        """What a snapshot keeps: "basis.boundary.LAYER.WAY.NAME" -> tensor, on the CPU."""
        named: dict[str, Tensor] = {}
        for (layer, way), codec in sorted(self.rotations.items()):
            named |= codec.basis().named(f"{CONSTANT}.boundary.{layer}.{way}.")
        return named

    def load(self, named: Mapping[str, Tensor]) -> None:
        """Take from a snapshot, before `open`, what it has of this stage's boundaries.

        Raises:
            SwarmError: invalid-input; a tensor of another shape or format.
        """
        for neighbour in self._neighbours():
            layer = self._layer(neighbour)
            for way in WAYS:
                found = Basis.of(named, f"{CONSTANT}.boundary.{layer}.{way}.", self.hidden)
                if found is not None:
                    self._keep(neighbour, way, found)

    @property
    def _coding(self) -> CodingGroup:
        return cast(CodingGroup, self.group)

    def _neighbours(self) -> list[int]:
        return neighbours_of(self.order)

    def _layer(self, neighbour: int) -> int:
        is_next = neighbour > self.order.stage
        return self.order.last_layer + 1 if is_next else self.order.first_layer

    def _outward(self, neighbour: int) -> Way:
        return "forward" if neighbour > self.order.stage else "backward"

    def _inward(self, neighbour: int) -> Way:
        return "backward" if neighbour > self.order.stage else "forward"

    def _coded(self, neighbour: int) -> Crossing:
        asked = self.order.settings.compression
        if asked.kind != "rotation":
            width = self.bottleneck.dim if self.bottleneck is not None else self.hidden
            codec = ScaledCodec(width, cast(Literal[4, 8], asked.bits))
            return Crossing(codec, codec)
        layer = self._layer(neighbour)
        return Crossing(
            self.rotations[layer, self._outward(neighbour)],
            self.rotations[layer, self._inward(neighbour)],
        )

    def _keep(self, neighbour: int, way: Way, basis: Basis) -> None:
        device = self.devices[-1 if neighbour > self.order.stage else 0]
        row_bytes = rotation_row_bytes(self.hidden, self.order.settings.compression.bits)
        basis.check(row_bytes)
        codec = RotationCodec(basis, row_bytes, device)
        self.rotations[self._layer(neighbour), way] = codec

    def _calibrate(self, run: Run) -> None:
        """Both sides of a boundary without a basis make one; the others' tensors cross coded."""
        lacking, anyone = self._lacking()
        if not anyone:
            return
        started, settings = time.monotonic(), self.order.settings
        seen: dict[int, Seen] = {}
        for neighbour, lacks in lacking.items():
            if lacks:
                seen[neighbour] = Seen(self.hidden, is_centred=neighbour > self.order.stage)
                self._coding.cross(neighbour, Crossing(watch=seen[neighbour].add))
            else:
                self._coding.cross(neighbour, self._coded(neighbour))
        run(num_calibration_batches(self.order))
        made = {one: fit(seen.pop(one), settings.compression.bits) for one in list(seen)}
        self._swap(made)
        log.info("calibrated the codes in %.1f s", time.monotonic() - started)

    def _start_bottleneck(self, bottleneck: Bottleneck, run: Run) -> None:
        """The principal components of what this stage sends on, on both sides of the boundary."""
        started, stage = time.monotonic(), self.order.stage
        seen = Seen(self.hidden, is_centred=True, holds_back=False)
        given: dict[int, list[Tensor]] = {}
        taken: dict[int, list[Tensor]] = {}
        theirs = empty_components(self.hidden, bottleneck.dim)
        if bottleneck.encoder is not None:
            self._coding.cross(stage + 1, Crossing(watch=seen.add))
        run(num_calibration_batches(self.order))
        if bottleneck.decoder is not None:
            taken[stage - 1] = [theirs.mean, theirs.vectors]
        if bottleneck.encoder is not None:
            ours = components_of(seen, bottleneck.dim)
            ours.squeezing(bottleneck.encoder)
            given[stage + 1] = [ours.mean, ours.vectors]
        self._coding.swap(given, taken)
        if bottleneck.decoder is not None:
            theirs.rebuilding(bottleneck.decoder)
        log.info("calibrated the bottleneck in %.1f s", time.monotonic() - started)

    def _swap(self, made: Mapping[int, Basis]) -> None:
        taken = {neighbour: empty_basis(self.hidden) for neighbour in made}
        self._coding.swap(
            {neighbour: basis.tensors() for neighbour, basis in made.items()},
            {neighbour: basis.tensors() for neighbour, basis in taken.items()},
        )
        for neighbour, basis in made.items():
            self._keep(neighbour, self._outward(neighbour), basis)
            self._keep(neighbour, self._inward(neighbour), taken[neighbour])

    def _lacking(self) -> tuple[dict[int, bool], bool]:
        """(neighbour -> whether a side of the boundary to it has no basis, whether any in the
        pipeline has none: batches run through all stages or through none).
        """
        flags = [0.0] * self.order.num_stages
        for neighbour in self._neighbours():
            layer, boundary = self._layer(neighbour), max(neighbour, self.order.stage)
            flags[boundary] = float(any((layer, way) not in self.rotations for way in WAYS))
        totals = self.group.exchange(flags)
        own = {one: totals[max(one, self.order.stage)] > 0 for one in self._neighbours()}
        return own, any(totals)


def num_calibration_batches(order: StageOrder) -> int:
    """Training batches that are run before the first step."""
    settings = order.settings
    return calibration_batches(settings.batch_size, settings.seq_len, order.tokens.train_sequences)


def neighbours_of(order: StageOrder) -> list[int]:
    """The stages next to this one."""
    return [s for s in (order.stage - 1, order.stage + 1) if 0 <= s < order.num_stages]


def crossed(order: StageOrder, group: StageGroup) -> list[Crossed]:
    """What each boundary of this stage carried so far; nothing where torch's own groups did."""
    if order.settings.backend != "swarm":
        return []
    coding = cast(CodingGroup, group)
    told = {one: coding.crossed(one) for one in neighbours_of(order)}
    return [
        Crossed(neighbour=one, sent_bytes=sent, received_bytes=received, before_bytes=before)
        for one, (sent, received, before) in told.items()
    ]
