"""What each kind of compression does to a real model: `python -m tests.oracle.compression_table`.

SmolLM2-135M-Instruct as `swarm demo` converted it (or a folder that is named), and English that
every Python brings along, packed in 128-token sequences: the last 48 are held out, the first hold
the 16,384 tokens of the calibration. Two tables:

  one process   every kind and rate, for one and for two boundaries, untrained; also with planted
                outlier channels: four channels of each boundary scaled up before the codes and down
                behind them, so that the model computes the same and its largest value stands 1,000
                times above the median. "whole tensor" has one scale for all tokens: what per-token
                scales are held against, and no kind of Swarm's.
  real stages   two or three workers over their links: untrained, and after --steps steps; the bytes
                are those that the links counted.

Accuracy is of the next token, beside that of the same model without compression.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data import topics
from typing import Any

import numpy as np
import torch
from platformdirs import user_cache_path
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM

from control.planning.compression import Crossed
from stage_runtime.batches import Sequences, open_sequences
from stage_runtime.bottleneck import components_of
from stage_runtime.checkpoint import open_checkpoint
from stage_runtime.codecs.basis import Seen, fit
from stage_runtime.codecs.rotation import RotationCodec
from stage_runtime.codecs.scaled import ScaledCodec
from stage_runtime.codecs.sizes import rotation_row_bytes
from tests.oracle.coded_process import layers_of, through
from tests.oracle.one_process import losses_of
from tests.oracle.settings import some_settings
from tests.oracle.stages import Case, Workers, even_cuts, model_folder, run_to_end
from tests.oracle.tokens import write_token_file
from transport.orders import CompressionSettings, LoraSettings, TokenFile, TrainSettings
from transport.reports import Evaluated, StageDone

DEMO = user_cache_path("swarm") / "demo" / "models" / "SmolLM2-135M-Instruct"
SEQ_LEN, HELD_OUT, CALIBRATION = 128, 48, 128
LAYERS = 30
OUTLIERS, ABOVE_MEDIAN = 4, 1000.0
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]

Fix = Callable[[Tensor], Tensor]
"""What arrives of (N, D) activations."""


@dataclass(frozen=True)
class Kind:
    """One line of the tables."""

    name: str
    kind: str
    bits: int

    def settings(self, hidden: int) -> CompressionSettings:
        """As an order has it."""
        dim = hidden // 2 if self.kind == "learned" else 0
        return CompressionSettings(kind=self.kind, bits=self.bits, dim=dim)  # type: ignore[arg-type]


NONE = Kind("none", "none", 0)
KINDS = [
    Kind("fixed_int8", "fixed_int8", 8),
    Kind("rotation 4 bits", "rotation", 4),
    Kind("learned half, 8 bits", "learned", 8),
    Kind("fixed_int4", "fixed_int4", 4),
    Kind("rotation 3 bits", "rotation", 3),
    Kind("rotation 2 bits", "rotation", 2),
]
WHOLE = Kind("int8, whole tensor", "whole", 8)


def text_file(cache: Path, folder: Path) -> TokenFile:
    """The English, shuffled by sequences with a fixed seed."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = [tokenizer.encode(text).ids for _, text in sorted(topics.topics.items())]
    stream = np.concatenate([np.array(one) for one in ids])
    whole = len(stream) // SEQ_LEN
    order = np.random.default_rng(0).permutation(whole)
    rows = stream[: whole * SEQ_LEN].reshape(whole, SEQ_LEN)[order].reshape(-1)
    return write_token_file(
        cache, layout="packed", rows=[rows], supervised=[np.ones_like(rows)],
        seq_len=SEQ_LEN, held_out=HELD_OUT, pad=0,
    )  # fmt: skip


# --- one process -----------------------------------------------------------------------------


class Bench:
    """The whole model, and what crosses at some layers."""

    def __init__(self, folder: Path, sequences: Sequences) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.sequences = sequences
        self.layers = layers_of(self.model)

    def crossing(self, layers: list[int]) -> dict[int, Tensor]:
        """The calibration's activations before these layers."""
        kept: dict[int, list[Tensor]] = {layer: [] for layer in layers}

        def keep(layer: int) -> Callable[..., None]:
            return lambda _module, _given, out: kept[layer].append(out.flatten(0, 1))

        hooks = [self.layers[layer - 1].register_forward_hook(keep(layer)) for layer in layers]
        for first in range(0, CALIBRATION, 16):
            self._forward(list(range(first, first + 16)))
        for hook in hooks:
            hook.remove()
        return {layer: torch.cat(parts) for layer, parts in kept.items()}

    def held_out(self, fixes: dict[int, Fix]) -> tuple[float, float]:
        """(loss, accuracy) with these codes before these layers."""

        def put(fix: Fix) -> Callable[..., Tensor]:
            return lambda _module, _given, out: fix(out.flatten(0, 1)).view_as(out)

        hooks = [self.layers[at - 1].register_forward_hook(put(fix)) for at, fix in fixes.items()]
        total, right, count = 0.0, 0, 0
        indices = self.sequences.held_out(HELD_OUT)
        for first in range(0, HELD_OUT, 16):
            batch = self.sequences.batch(indices[first : first + 16], SEQ_LEN)
            with torch.no_grad():
                loss, hits = losses_of(self.model, batch)
            total, right, count = total + float(loss), right + int(hits), count + batch.num_targets
        for hook in hooks:
            hook.remove()
        return total / count, right / count

    def _forward(self, indices: list[int]) -> None:
        with torch.no_grad():
            self.model.model(input_ids=self.sequences.batch(indices, SEQ_LEN).tokens)


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
        return _bottleneck(seen_ND, hidden // 2)
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


def one_process(
    folder: Path, sequences: Sequences, kinds: list[Kind], boundaries: list[int]
) -> Iterator[str]:
    """The lines of the first table."""
    bench = Bench(folder, sequences)
    plain = bench.held_out({})
    yield f"without compression: loss {plain[0]:.4f}, accuracy {100 * plain[1]:.1f} %"
    yield f"{'kind':<22} {'outliers':<9} {'boundaries':>10} {'loss':>9} {'accuracy kept':>14}"
    for stages in (count + 1 for count in boundaries):
        layers = [first for first, _ in even_cuts(LAYERS, stages)[1:]]
        rows = bench.crossing(layers)
        for raises in (False, True):
            factors = {at: planted(seen, at) if raises else torch.ones(seen.shape[1])
                       for at, seen in rows.items()}  # fmt: skip
            for kind in (*kinds, WHOLE):
                fixes = {
                    at: raised(fix_of(kind, seen * factors[at]), factors[at])
                    for at, seen in rows.items()
                }
                loss, accuracy = bench.held_out(fixes)
                yield (
                    f"{kind.name:<22} {'planted' if raises else 'own':<9} {stages - 1:>10} "
                    f"{loss - plain[0]:>+9.4f} {100 * accuracy / plain[1]:>12.1f} %"
                )


# --- real stages ---------------------------------------------------------------------------------


def settings_of(kind: Kind, hidden: int, steps: int) -> TrainSettings:
    """As a job would have them; without steps, one that changes nothing."""
    targets = ATTENTION + (MLP if kind.kind == "learned" else [])
    return some_settings(
        lora=LoraSettings(rank=8, alpha=16.0, dropout=0.0, target_modules=targets),
        steps=steps or 1, learning_rate=2e-4 if steps else 1e-30, seq_len=SEQ_LEN,
        batch_size=2, micro_batches=2, warmup_steps=steps // 20, eval_sequences=HELD_OUT,
        link_timeout_s=900.0, loss_chunk_tokens=256, compression=kind.settings(hidden),
    )  # fmt: skip


@dataclass(frozen=True)
class Trained:
    """How a run of real stages ended."""

    ended: tuple[float, float]
    step_bytes: int
    planned_bytes: int


def run_stages(
    workers: Workers, cache: Path, tokens: TokenFile, kind: Kind, shape: tuple[int, int]
) -> Trained:
    """A run of (stages, steps)."""
    stages, steps = shape
    facts = open_checkpoint(model_folder(cache, "smollm2")).facts
    settings = settings_of(kind, facts.hidden, steps)
    case = Case(cache, "smollm2", LAYERS, settings, tokens, evaluate_base=False)
    run = run_to_end(workers, case, stages, timeout_s=7200.0)
    told = {one.moment: one for one in run.workers[-1].of(Evaluated)}
    # Gradients are in steps only; what goes forward is in the last evaluation too.
    (counted,) = {
        one.received_bytes
        for worker in run.workers
        for one in worker.of(StageDone)[0].crossed
        if one.neighbour > worker.stage
    }
    return Trained(
        (told["trained"].loss, told["trained"].accuracy),
        counted // settings.steps,
        Crossed(facts, settings).step_bytes,
    )


def real_stages(
    cache: Path, tokens: TokenFile, kinds: list[Kind], shapes: list[tuple[int, int]]
) -> Iterator[str]:
    """The lines of the second table; of each (stages, steps) the first is without codes."""
    yield (
        f"{'kind':<22} {'boundaries':>10} {'steps':>5} {'loss':>8} {'against none':>12} "
        f"{'accuracy kept':>13}  bytes a step each way: counted, planned"
    )
    workers = Workers()
    try:
        for stages, count in shapes:
            plain: Trained | None = None
            for kind in (NONE, *kinds):
                found = run_stages(workers, cache, tokens, kind, (stages, count))
                plain = plain or found
                yield (
                    f"{kind.name:<22} {stages - 1:>10} {count:>5} {found.ended[0]:>8.4f} "
                    f"{found.ended[0] - plain.ended[0]:>+12.4f} "
                    f"{100 * found.ended[1] / plain.ended[1]:>11.1f} %  "
                    f"{found.step_bytes}, {found.planned_bytes}"
                )
    finally:
        workers.close()


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=DEMO, help="a converted SmolLM2")
    parser.add_argument("--only", choices=["one-process", "stages"])
    parser.add_argument("--boundaries", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 100])
    parser.add_argument("--kinds", nargs="+", default=[kind.name for kind in KINDS])
    told = parser.parse_args()
    if not (told.folder / "config.json").exists():
        parser.error(f"{told.folder} holds no model: run scripts/demo once, or name a folder")
    os.environ.update({"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
    torch.set_num_threads(1)
    chosen = [kind for kind in KINDS if kind.name in told.kinds]
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        cache = Path(temporary)
        place = model_folder(cache, "smollm2")
        place.parent.mkdir(parents=True)
        place.symlink_to(told.folder.resolve())
        tokens = text_file(cache, told.folder)
        if told.only != "stages":
            path = cache / "tokens" / f"{tokens.digest}.safetensors"
            vocab = open_checkpoint(place).facts.vocab
            opened = open_sequences(path, tokens, SEQ_LEN, vocab)
            for line in one_process(place, opened, chosen, told.boundaries):
                print(line, flush=True)
        if told.only != "one-process":
            shapes = [(count + 1, steps) for count in told.boundaries for steps in told.steps]
            for line in real_stages(cache, tokens, chosen, shapes):
                print(line, flush=True)
        place.unlink()
        shutil.rmtree(cache / "work", ignore_errors=True)
    print(f"in {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
