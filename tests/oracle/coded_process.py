"""References of a run whose boundaries carry codes: the same codec, both ways, after the layer
before each boundary, in one process.

`train` is plain transformers and peft, micro-batch by micro-batch: the last bits of a value depend
on how it was computed, and for one that lies on the edge between two codes they decide a whole
step of the scale. So it agrees to a few of those, not to rounding. `own_run` computes with the
stage's own blocks and loss, one stage holding all layers: it must agree to the last bit.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stage_runtime.batches import Sequences
from stage_runtime.bottleneck import Projection, components_of
from stage_runtime.boundaries import num_calibration_batches
from stage_runtime.checkpoint import open_checkpoint
from stage_runtime.codecs.basis import Seen, fit
from stage_runtime.codecs.rotation import RotationCodec
from stage_runtime.codecs.scaled import Codec, ScaledCodec
from stage_runtime.codecs.sizes import rotation_row_bytes
from stage_runtime.evaluate import HeldOut, evaluate, forward_batch, num_evaluated
from stage_runtime.process_group import make_group
from stage_runtime.stage import DTYPES
from stage_runtime.step import RunningStage, run_step
from stage_runtime.train import LoadedRun, _assemble, _batch, _calibrate, boundary_of, load
from tests.oracle.one_process import Reference, held_out, plain_model, train_model
from tests.oracle.stages import Case
from transport.direct import PipelineLinks
from transport.link import LinkName
from transport.orders import TrainSettings


@dataclass(frozen=True)
class Ways:
    """The codecs of one boundary."""

    forward: Codec
    backward: Codec


def through(codec: Codec, tensor: Tensor) -> Tensor:
    """What arrives of a tensor that crosses as codes."""
    rows = tensor.detach().reshape(-1, tensor.shape[-1])
    arrived = torch.empty_like(rows)
    codec.decode(codec.encode(rows), arrived)
    return arrived.view_as(tensor)


class _Crossing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, ways: Ways) -> Tensor:
        ctx.ways = ways
        return through(ways.forward, hidden)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return through(ctx.ways.backward, grads[0]), None


class _Watching(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, seen: tuple[Seen, Seen]) -> Tensor:
        ctx.seen = seen
        seen[0].add(hidden)
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        ctx.seen[1].add(grads[0])
        return grads[0], None


Factors = Mapping[int, Tensor]
"""Layer -> (D) powers of two: its input crosses with each channel that much larger."""


def put_boundaries(
    layers: Any,
    boundaries: Mapping[int, Any],
    function: Any = _Crossing,
    factors: Factors | None = None,
) -> list[Any]:
    """Let the input of each named layer cross; returns the hooks' handles."""

    def hook(layer: int, ways: Any) -> Callable[..., Any]:
        return lambda _module, _given, out: _raised(
            lambda larger: function.apply(larger, ways), out, (factors or {}).get(layer)
        )

    return [
        layers[layer - 1].register_forward_hook(hook(layer, ways))
        for layer, ways in boundaries.items()
    ]


def _raised(cross: Callable[[Tensor], Tensor], out: Tensor, factors: Tensor | None) -> Tensor:
    """Cross as a model does whose channels are larger there; its gradients are as much smaller."""
    if factors is None:
        return cross(out)
    factors = factors.to(out.dtype)
    return cross(out * factors) / factors


def layers_of(model: Any) -> Any:
    """The blocks of a causal model, with or without adapters."""
    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList)]
    return max(lists, key=len)


def train(
    folder: Path, sequences: Sequences, settings: TrainSettings, boundaries: Mapping[int, Any]
) -> Reference:
    """Train as the order says, in one process, with the boundaries' codes."""
    torch.set_num_threads(1)
    told = Reference(model=plain_model(folder, settings))
    beside = []
    if settings.compression.kind == "learned":
        put_squeezed(layers_of(told.model), boundaries)
        beside = [weight for one in boundaries.values() for weight in one.parameters()]
    else:
        put_boundaries(layers_of(told.model), boundaries)
    rows = settings.batch_size // settings.micro_batches
    told.base = held_out(told.model, sequences, settings, rows)
    train_model(told, sequences, settings, rows, beside)
    told.trained = held_out(told.model, sequences, settings, rows)
    return told


class Squeezed(torch.nn.Module):
    """A learned bottleneck in one process: squeezed, coded both ways, rebuilt."""

    def __init__(self, hidden: int, dim: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.encoder = Projection(hidden, dim, dtype)
        self.decoder = Projection(dim, hidden, dtype)
        codec = ScaledCodec(dim, 8)
        self.ways = Ways(codec, codec)

    def forward(self, hidden: Tensor) -> Tensor:
        crossed = _Crossing.apply(self.encoder(hidden), self.ways)  # type: ignore[no-untyped-call]
        rebuilt: Tensor = self.decoder(crossed)
        return rebuilt


@dataclass(frozen=True)
class Own:
    """What one stage of ours saw, and the codecs that it had."""

    losses: list[float]
    boundaries: Mapping[int, Any]
    """Ways, or a bottleneck as it started."""
    trained: HeldOut | None
    """None where the settings ask for no evaluation."""


def own_run(
    case: Case,
    folder: Path,
    token_file: Path,
    cuts: list[tuple[int, int]],
    factors: Factors | None = None,
) -> Own:
    """The same steps by one stage of ours that holds all layers; a rotation is calibrated here
    too, on what passes the same layers.

    factors: how much larger the channels are that cross; not at all when it is None.
    """
    torch.set_num_threads(1)
    (order,) = case.orders([(0, case.num_layers - 1)])
    run = load(order, open_checkpoint(folder), token_file, lambda *_, **__: None, 0)
    links = PipelineLinks.open(LinkName(order.job_id, 1, 0, 0), 1, "127.0.0.1")
    group = make_group(order, links, [boundary_of(run)])
    layers = [first for first, _ in cuts[1:]]
    squeezed = _squeezed(run, layers)
    try:
        stage = _assemble(run, group)
        if squeezed:
            _start(run, stage, squeezed, factors)
            put_squeezed(run.stage.blocks, squeezed, factors)
        else:
            boundaries = _codecs(run, stage, layers, factors)
            put_boundaries(run.stage.blocks, boundaries, factors=factors)
        started = copy.deepcopy(squeezed) or boundaries
        steps = range(1, order.settings.steps + 1)
        losses = [run_step(stage, step, _batch(run, step)).loss for step in steps]
        asked = num_evaluated(order)
        trained = evaluate(stage, run.sequences, order.settings.steps) if asked else None
        return Own(losses, started, trained)
    finally:
        group.close()


def _squeezed(run: LoadedRun, layers: list[int]) -> dict[int, Squeezed]:
    asked = run.order.settings.compression
    if asked.kind != "learned":
        return {}
    hidden, dtype = run.stage.facts.hidden, DTYPES[run.order.settings.dtype]
    made = {layer: Squeezed(hidden, asked.dim, dtype) for layer in layers}
    for layer, one in made.items():
        run.trained |= {f"boundary.{layer}.{name}": w for name, w in one.named_parameters()}
    return made


def _start(
    run: LoadedRun,
    stage: RunningStage,
    squeezed: Mapping[int, Squeezed],
    factors: Factors | None,
) -> None:
    hidden = run.stage.facts.hidden
    seen = {layer: Seen(hidden, is_centred=True, holds_back=False) for layer in squeezed}
    pairs = {layer: (one, one) for layer, one in seen.items()}
    hooks = put_boundaries(run.stage.blocks, pairs, _Watching, factors)
    stage.module.eval()
    for step in range(1, num_calibration_batches(run.order) + 1):
        forward_batch(stage, _batch(run, step))
    for hook in hooks:
        hook.remove()
    for layer, one in squeezed.items():
        start = components_of(seen[layer], run.order.settings.compression.dim)
        start.squeezing(one.encoder)
        start.rebuilding(one.decoder)


def put_squeezed(
    layers: Any, squeezed: Mapping[int, Squeezed], factors: Factors | None = None
) -> None:
    """Let the input of each named layer cross its bottleneck."""

    def hook(layer: int, one: Squeezed) -> Callable[..., Tensor]:
        return lambda _module, _given, out: _raised(one, out, (factors or {}).get(layer))

    for layer, one in squeezed.items():
        layers[layer - 1].register_forward_hook(hook(layer, one))


def _codecs(
    run: LoadedRun, stage: RunningStage, layers: list[int], factors: Factors | None
) -> dict[int, Ways]:
    asked, hidden = run.order.settings.compression, run.stage.facts.hidden
    if asked.kind == "none":
        return {}
    if asked.kind != "rotation":
        codec = ScaledCodec(hidden, asked.bits)  # type: ignore[arg-type]
        return {layer: Ways(codec, codec) for layer in layers}
    seen = {layer: (Seen(hidden, is_centred=True), Seen(hidden, is_centred=False))
            for layer in layers}  # fmt: skip
    hooks = put_boundaries(run.stage.blocks, seen, _Watching, factors)
    _calibrate(run, stage, num_calibration_batches(run.order))
    for hook in hooks:
        hook.remove()
    row_bytes, device = rotation_row_bytes(hidden, asked.bits), torch.device("cpu")
    return {
        layer: Ways(*(RotationCodec(fit(way, asked.bits), row_bytes, device) for way in ways))
        for layer, ways in seen.items()
    }
