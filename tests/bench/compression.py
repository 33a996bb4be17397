"""What compression between two stages gains or costs: a step with it over a step without.

All kinds take turns in the same two processes, over the same links, in an order that is mirrored in
the next round; "none again" shows what the machine's noise alone does. Compute is simulated (a
stage rests as long as a card would compute) or real (the model of b1_pipeline), the line is as
loopback gives it or shaped by a proxy in user space. Beside that the codecs alone, in milliseconds
for a megabyte of float16.

    python -m tests.bench.compression --rounds 3
"""

import argparse
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from stage_runtime.codecs.basis import Seen, fit
from stage_runtime.codecs.crossing import PLAIN, Crossing
from stage_runtime.codecs.rotation import RotationCodec
from stage_runtime.codecs.scaled import Codec, ScaledCodec
from stage_runtime.codecs.sizes import rotation_row_bytes
from stage_runtime.process_group import SwarmGroup, TensorKind, install
from tests.bench import b1_pipeline as b1
from tests.bench.slow_line import Line
from tests.bench.two_stages import told_over
from transport.direct import PipelineLinks
from transport.link import LinkName

NUM_STAGES = 2
ARMS = ("none", "fixed_int8", "rotation 4", "rotation 2", "none again")
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Load:
    """What the two stages compute and exchange."""

    name: str
    hidden: int
    rows: int
    tokens: int
    micro_batches: int
    dtype: torch.dtype
    forward_s: float = 0.0
    """Of a micro-batch on a stage, and twice that backward; 0 = the model of b1_pipeline."""


SIMULATED = Load("simulated", 1024, 1, 512, 8, torch.bfloat16, 0.1)
REAL = Load("real", b1.HIDDEN, b1.SEQUENCES, b1.TOKENS, b1.MICRO_BATCHES, torch.float32)


class _Rest(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        threading.Event().wait(seconds)
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        threading.Event().wait(2 * ctx.seconds)
        return grads[0].clone(), None


class RestingStage(nn.Module):
    """Takes as long as a card would, and changes nothing."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, hidden: Tensor) -> Tensor:
        rested: Tensor = _Rest.apply(hidden * self.scale, self.seconds)  # type: ignore[no-untyped-call]
        return rested.to(hidden.dtype)


def tokens_like(hidden: int, count: int) -> Tensor:
    """Rows with a spectrum as models have it."""
    draw = torch.Generator().manual_seed(1)
    strength = torch.arange(1, hidden + 1).float() ** -0.7
    return torch.randn(count, hidden, generator=draw) * strength


def codec_of(arm: str, hidden: int) -> Codec | None:
    """The codec of an arm, the same in both processes."""
    if arm.startswith("none"):
        return None
    if arm == "fixed_int8":
        return ScaledCodec(hidden, 8)
    bits = int(arm.split()[1])
    seen = Seen(hidden, is_centred=False)
    seen.add(tokens_like(hidden, 4096))
    return RotationCodec(fit(seen, bits), rotation_row_bytes(hidden, bits), CPU)


def _engine(load: Load, stage: int, group: SwarmGroup) -> Schedule1F1B:
    shape = (load.rows, load.tokens, load.hidden)
    hidden = torch.zeros(shape, dtype=load.dtype, requires_grad=True)
    given: Tensor = hidden
    taken: Tensor = hidden if stage else torch.zeros(shape[:2], dtype=torch.int64)
    if load.forward_s:
        module: nn.Module = RestingStage(load.forward_s).to(load.dtype)
        taken = hidden if stage else torch.zeros(shape, dtype=load.dtype)
    else:
        module = b1.share(stage)
        given = torch.zeros(*shape[:2], b1.VOCAB) if stage else hidden
    engine = PipelineStage(
        module, stage, NUM_STAGES, CPU, input_args=taken, output_args=given, group=group
    )
    loss = b1.loss_of if not load.forward_s else _sum
    return Schedule1F1B(engine, load.micro_batches, loss_fn=loss, scale_grads=False)


def _sum(output: Tensor, _target: Tensor) -> Tensor:
    return output.float().square().sum()


def run_stage(load: Load, stage: int, rounds: int, channel: Any) -> None:
    """The body of one of the two processes."""
    torch.set_num_threads(1)
    links = PipelineLinks.open(LinkName("j-aaaabbbb", 1, stage, stage), NUM_STAGES, "127.0.0.1")
    channel.send((links.endpoint.public_key, list(links.endpoint.endpoints)))
    links.connect(channel.recv())
    kind = TensorKind(load.dtype, (load.rows, load.tokens, load.hidden))
    group = SwarmGroup(stage, NUM_STAGES, links, [kind], 600)
    install(group)
    codecs = {arm: codec_of(arm, load.hidden) for arm in ARMS}
    schedule = _engine(load, stage, group)
    for number in range(rounds + 1):  # round 0 warms up
        for arm in ARMS if number % 2 else reversed(ARMS):
            codec = codecs[arm]
            group.cross(1 - stage, Crossing(codec, codec) if codec else PLAIN)
            took = _step(load, stage, group, schedule)
            if number and stage == 0:
                channel.send((arm, took))
    group.close()
    channel.send(None)


def _step(load: Load, stage: int, group: SwarmGroup, schedule: Schedule1F1B) -> float:
    group.begin_step(1)
    group.exchange([0.0])
    began = time.perf_counter()
    rows = load.rows * load.micro_batches
    batch = b1.batch(1)
    if load.forward_s:
        values = tokens_like(load.hidden, rows * load.tokens)
        batch = values.view(rows, load.tokens, load.hidden).to(load.dtype)
    if stage == 0:
        schedule.step(batch)
    else:
        schedule.step(target=batch, return_outputs=False)
    group.exchange([0.0])
    return time.perf_counter() - began


def measure(load: Load, line: Line | None, rounds: int) -> dict[str, list[float]]:
    """Seconds of each arm's steps over a line."""
    arguments = [(load, stage, rounds) for stage in range(NUM_STAGES)]
    told = told_over(line, run_stage, arguments, ARMS)
    return {arm: [seconds for (seconds,) in steps] for arm, steps in told.items()}


def table(load: Load, line: Line | None, rounds: int) -> Iterator[str]:
    """The lines of one load over one line."""
    told = measure(load, line, rounds)
    over = "loopback" if line is None else f"{line.bits_per_s / 1e6:.0f} Mbit, {line.delay_s:.3f} s"
    size = load.rows * load.tokens * load.hidden * load.dtype.itemsize / 1e6
    yield f"{load.name} compute, {load.micro_batches} x {size:.2f} MB each way, {over}"
    for arm in ARMS:
        ratios = [a / b for a, b in zip(told[arm], told["none"], strict=True)]
        yield (
            f"    {arm:<12} {statistics.median(told[arm]):7.3f} s  / none "
            f"{statistics.median(ratios):.3f}  ({min(ratios):.3f} - {max(ratios):.3f})"
        )


def codecs_alone(hidden: int) -> Iterator[str]:
    """Milliseconds for a megabyte of float16, one thread."""
    rows = tokens_like(hidden, max(1, 500_000 // hidden))
    megabytes = 2 * rows.numel() / 1e6
    for arm in ARMS[1:-1]:
        codec = codec_of(arm, hidden)
        assert codec is not None
        codes, into = codec.encode(rows), torch.empty_like(rows)
        out = _least(codec.encode, rows) / megabytes
        back = _least(codec.decode, codes, into) / megabytes
        yield f"    width {hidden:<5} {arm:<12} coding {out:6.2f} ms/MB, decoding {back:6.2f} ms/MB"


def _least(action: Callable[..., object], *arguments: Tensor) -> float:
    """Milliseconds of the quickest of some runs."""
    best = float("inf")
    for _ in range(7):
        began = time.perf_counter()
        action(*arguments)
        best = min(best, time.perf_counter() - began)
    return 1000 * best


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds, at least 1")
    rounds = max(1, parser.parse_args().rounds)
    torch.set_num_threads(1)
    for hidden in (576, 1024, 2048):
        for told in codecs_alone(hidden):
            print(told, flush=True)
    lines = (None, Line(100e6, 0.01), Line(40e6, 0.02), Line(20e6, 0.02))
    for load in (SIMULATED, REAL):
        for line in lines:
            for told in table(load, line, rounds):
                print(told, flush=True)


if __name__ == "__main__":
    main()
