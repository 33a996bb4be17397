"""Codes in the untrained model, in one process, with and without planted outlier channels.

Four channels of each boundary are scaled up before the codes and down behind them, so that the
model computes the same and its largest value stands 1,000 times above the median in every token.
Calibrated on, and coded, activations alone: gradients are in steps only.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from stage_runtime.batches import Batch, Sequences
from stage_runtime.bottleneck import components_of
from stage_runtime.codecs.basis import Seen, fit
from stage_runtime.codecs.rotation import RotationCodec
from stage_runtime.codecs.scaled import ScaledCodec
from stage_runtime.codecs.sizes import rotation_row_bytes
from tests.oracle.coded_process import layers_of, through
from tests.oracle.compression_cells import Cells
from tests.oracle.compression_kinds import CALIBRATION, HELD_OUT, LAYERS, SEQ_LEN, WHOLE, Kind
from tests.oracle.one_process import losses_of
from tests.oracle.stages import even_cuts

OUTLIERS, ABOVE_MEDIAN = 4, 1000.0
ROWS = 16

Fix = Callable[[Tensor], Tensor]
"""What arrives of (N, D) activations."""


class Untrained:
    """The whole model, and what crosses at some layers."""

    def __init__(self, folder: Path, sequences: Sequences) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.sequences = sequences
        self.layers = layers_of(self.model)
        self._before: dict[int, list[Tensor]] = {}

    def crossing(self, layers: list[int]) -> dict[int, Tensor]:
        """The calibration's activations before these layers, (N, D) each."""
        indices = list(range(CALIBRATION))
        return self._seen(layers, self._batches(indices))

    def held_out(self, fixes: Mapping[int, Fix]) -> dict[str, float]:
        """Loss and accuracy with these codes before these layers."""

        def put(fix: Fix) -> Callable[..., Tensor]:
            return lambda _module, _given, out: fix(out.flatten(0, 1)).view_as(out)

        first, *more = sorted(fixes)
        batches = self._batches(self.sequences.held_out(HELD_OUT))
        if first not in self._before:
            rows = self._seen([first], batches)[first]
            self._before[first] = list(torch.split(rows, ROWS * SEQ_LEN))
        total, right, count = 0.0, 0, 0
        hooks = [self.layers[at - 1].register_forward_hook(put(fixes[at])) for at in more]
        for batch, before in zip(batches, self._before[first], strict=True):
            arrived = fixes[first](before).view(*batch.tokens.shape, -1)
            with torch.no_grad():
                loss, hits = losses_of(_From(self.model, self.layers[first:], arrived), batch)
            total, right, count = total + float(loss), right + int(hits), count + batch.num_targets
        for hook in hooks:
            hook.remove()
        return {"loss": total / count, "accuracy": right / count}

    def _batches(self, indices: list[int]) -> list[Batch]:
        starts = range(0, len(indices), ROWS)
        return [self.sequences.batch(indices[at : at + ROWS], SEQ_LEN) for at in starts]

    def _seen(self, layers: list[int], batches: list[Batch]) -> dict[int, Tensor]:
        kept: dict[int, list[Tensor]] = {layer: [] for layer in layers}

        def keep(layer: int) -> Callable[..., None]:
            return lambda _module, _given, out: kept[layer].append(out.flatten(0, 1))

        hooks = [self.layers[layer - 1].register_forward_hook(keep(layer)) for layer in layers]
        for batch in batches:
            with torch.no_grad():
                self.model.model(input_ids=batch.tokens)
        for hook in hooks:
            hook.remove()
        return {layer: torch.cat(parts) for layer, parts in kept.items()}


class _From:
    """The model from some layer on, given what comes there: what lies before need not run again."""

    def __init__(self, model: Any, layers: Any, hidden: Tensor) -> None:
        self.model, self.layers, self.hidden = model, layers, hidden

    def __call__(self, input_ids: Tensor, **more: Any) -> Any:
        body, whole = self.model.model, self.model.model.layers
        body.layers = nn.ModuleList(self.layers)
        try:
            return self.model(inputs_embeds=self.hidden, **more)
        finally:
            body.layers = whole


def fix_of(kind: Kind, seen_ND: Tensor) -> Fix:
    """The codes of a kind, calibrated on these rows."""
    hidden = seen_ND.shape[1]
    if kind.kind == "whole":
        return _whole_tensor
    if kind.kind == "rotation":
        seen = Seen(hidden, is_centred=True)
        seen.add(seen_ND)
        row_bytes = rotation_row_bytes(hidden, kind.bits)
        codec = RotationCodec(fit(seen, kind.bits), row_bytes, torch.device("cpu"))
        return lambda rows: through(codec, rows)
    if kind.kind == "learned":
        return _bottleneck(seen_ND, hidden // kind.part)
    scaled = ScaledCodec(hidden, kind.bits)  # type: ignore[arg-type]
    return lambda rows: through(scaled, rows)


def _whole_tensor(rows: Tensor) -> Tensor:
    step = rows.abs().max() / 127
    return (rows / step).round() * step


def _bottleneck(seen_ND: Tensor, dim: int) -> Fix:
    seen = Seen(seen_ND.shape[1], is_centred=True, holds_back=False)
    seen.add(seen_ND)
    start, codec = components_of(seen, dim), ScaledCodec(dim, 8)

    def fix(rows: Tensor) -> Tensor:
        squeezed = (rows - start.mean) @ start.vectors
        return through(codec, squeezed) @ start.vectors.T + start.mean

    return fix


def planted(seen_ND: Tensor, seed: int) -> Tensor:
    """(D) factors: some channels raised until they stand far above the median."""
    draw = torch.Generator().manual_seed(seed)
    channels = torch.randperm(seen_ND.shape[1], generator=draw)[:OUTLIERS]
    factors = torch.ones(seen_ND.shape[1])
    typical = seen_ND[:, channels].abs().mean(0).clamp(min=1e-6)
    factors[channels] = (ABOVE_MEDIAN * seen_ND.abs().median() / typical).clamp(min=1.0)
    return factors


def raised(fix: Fix, factors: Tensor) -> Fix:
    """The codes of a model whose channels are that much larger at this boundary."""
    return lambda rows: fix(rows * factors) / factors


def name_of(kind: Kind, boundaries: int, *, plants: bool) -> str:
    """The cell's name."""
    return f"untrained, {boundaries} boundaries, {'planted' if plants else 'own'}, {kind.name}"


def measure(bench: Untrained, kinds: list[Kind], boundaries: list[int], cells: Cells) -> None:
    """Fill the cells of these kinds."""
    for count in boundaries:
        layers = [first for first, _ in even_cuts(LAYERS, count + 1)[1:]]
        cells.of("untrained, none", lambda: bench.held_out({layers[0]: _as_it_is}))  # noqa: B023
        wanted = [(kind, plants) for plants in (False, True) for kind in (*kinds, WHOLE)
                  if cells.found(name_of(kind, count, plants=plants)) is None]  # fmt: skip
        rows = bench.crossing(layers) if wanted else {}
        for kind, plants in wanted:
            fixes = {at: _fix(kind, seen, at, plants=plants) for at, seen in rows.items()}
            name = name_of(kind, count, plants=plants)
            cells.of(name, lambda: bench.held_out(fixes))  # noqa: B023 - called at once


def _as_it_is(rows: Tensor) -> Tensor:
    return rows


def _fix(kind: Kind, seen_ND: Tensor, at: int, *, plants: bool) -> Fix:
    factors = planted(seen_ND, at) if plants else torch.ones(seen_ND.shape[1])
    return raised(fix_of(kind, seen_ND * factors), factors)
