"""B1: our two-stage step against the same pipeline over gloo, in the same two processes.

Three arms stand side by side in one pair of processes: gloo, Swarm's links (CURVE on), and gloo a
second time, which shows what the machine's noise alone does. Each has its own copy of the model
and optimizer, so equal losses are checked too. Every round runs each arm once, in an order
that is turned by one place in the next round, so that each arm comes first as often as the others;
a ratio is a round's arm / gloo. Beside them the same model in one process, for the limit that the
pipeline's bubble sets; and a fourth arm, Swarm's links with a CPU card's byte counter on, for what
the counter costs (it is off in the others). Exits with 1 where the median ratio is over its limit
or the losses differ.

    python -m tests.bench.b1_pipeline --rounds 7
    python -m tests.bench.b1_pipeline --rounds 7 --method lora --quantization nf4

With --method lora every projection of a layer is frozen, stored as asked, and carries an adapter as
a job's does; embedding and head are frozen.
"""

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn
from torch._C._distributed_c10d import FileStore
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional as F  # noqa: N812

from stage_runtime.card_memory import CardMeter
from stage_runtime.process_group import BACKEND, SwarmGroup, TensorKind
from stage_runtime.quantize import Narrow, PackedLinear, pack
from transport.direct import PipelineLinks
from transport.link import LinkName
from transport.orders import CardShare, Links, Neighbour

# B = sequences, T = tokens, D = hidden width, H = heads, K = width of a head
HIDDEN, LAYERS, VOCAB, HEADS, KV_HEADS, HEAD_WIDTH, INNER = 384, 10, 16_384, 6, 2, 64, 1_152
CUT = 7  # layers of the first of two stages; the head weighs as much as 3.7 layers
MICRO_BATCHES, SEQUENCES, TOKENS = 4, 2, 128
NUM_STAGES = 2
ARMS = ("gloo", "swarm", "gloo again", "swarm counted")
LIMIT = 1.03
"""Of the median ratio of Swarm's links to gloo."""


class Layer(nn.Module):
    """A decoder layer as Qwen3 has it, without rotary positions (the same in all arms)."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(HIDDEN, HEADS * HEAD_WIDTH, bias=False)
        self.k = nn.Linear(HIDDEN, KV_HEADS * HEAD_WIDTH, bias=False)
        self.v = nn.Linear(HIDDEN, KV_HEADS * HEAD_WIDTH, bias=False)
        self.o = nn.Linear(HEADS * HEAD_WIDTH, HIDDEN, bias=False)
        self.gate, self.up = (nn.Linear(HIDDEN, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, HIDDEN, bias=False)
        self.norms = nn.ModuleList(nn.RMSNorm(HIDDEN) for _ in range(2))
        self.head_norms = nn.ModuleList(nn.RMSNorm(HEAD_WIDTH) for _ in range(2))

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        x_BTD = self.norms[0](hidden_BTD)
        q_BHTK = self.head_norms[0](self._heads(self.q(x_BTD)))
        k_BHTK = self.head_norms[1](self._heads(self.k(x_BTD)))
        mixed_BHTK = F.scaled_dot_product_attention(
            q_BHTK, k_BHTK, self._heads(self.v(x_BTD)), is_causal=True, enable_gqa=True
        )
        hidden_BTD = hidden_BTD + self.o(mixed_BHTK.transpose(1, 2).flatten(2))
        x_BTD = self.norms[1](hidden_BTD)
        inner_BTD: Tensor = self.down(F.silu(self.gate(x_BTD)) * self.up(x_BTD))
        return hidden_BTD + inner_BTD

    @staticmethod
    def _heads(x_BTD: Tensor) -> Tensor:
        return x_BTD.view(*x_BTD.shape[:2], -1, HEAD_WIDTH).transpose(1, 2)


def model() -> list[nn.Module]:
    """Embedding, layers, and the norm with the head: 29.8 M parameters, the same each time."""
    torch.manual_seed(0)
    embedding = nn.Embedding(VOCAB, HIDDEN)
    layers = [Layer() for _ in range(LAYERS)]
    return [embedding, *layers, nn.RMSNorm(HIDDEN), nn.Linear(HIDDEN, VOCAB, bias=False)]


PROJECTIONS = ("q", "k", "v", "o", "gate", "up", "down")


@dataclass(frozen=True)
class Way:
    """What trains, and how frozen weights are stored."""

    method: str = "full"
    quantization: str = "none"

    def apply(self, module: nn.Module) -> list[nn.Parameter]:
        """Freeze, pack and adapt a model as asked; gives what trains."""
        if self.method == "lora":
            module.requires_grad_(False)
            for layer in (one for one in module.modules() if isinstance(one, Layer)):
                for name in PROJECTIONS if self.quantization != "none" else ():
                    weight = getattr(layer, name).weight
                    kind: Narrow = "nf4" if self.quantization == "nf4" else "int8"
                    setattr(layer, name, PackedLinear(pack(weight, kind), None))
            torch.manual_seed(1)
            inject_adapter_in_model(LoraConfig(r=8, target_modules=list(PROJECTIONS)), module)
        return [one for one in module.parameters() if one.requires_grad]


def share(stage: int) -> nn.Sequential:
    """The modules of one stage."""
    parts = model()
    return nn.Sequential(*(parts[: CUT + 1] if stage == 0 else parts[CUT + 1 :]))


def loss_of(logits: Tensor, target: Tensor) -> Tensor:
    """Sum of cross entropy."""
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")


def batch(step: int) -> Tensor:
    """Token ids of a step."""
    random = torch.Generator().manual_seed(step)
    return torch.randint(VOCAB, (MICRO_BATCHES * SEQUENCES, TOKENS), generator=random)


class Pipeline:
    """One arm: a stage of its own copy of the model over one process group."""

    def __init__(self, stage: int, group: dist.ProcessGroup, way: Way) -> None:
        self.stage, self.group = stage, group
        self.module = share(stage)
        self.optimizer = torch.optim.AdamW(way.apply(self.module), lr=1e-4)
        tokens = torch.zeros(SEQUENCES, TOKENS, dtype=torch.int64)
        hidden = torch.zeros(SEQUENCES, TOKENS, HIDDEN, requires_grad=True)
        logits = torch.zeros(SEQUENCES, TOKENS, VOCAB)
        engine = PipelineStage(
            self.module,
            stage,
            NUM_STAGES,
            torch.device("cpu"),
            input_args=hidden if stage else tokens,
            output_args=logits if stage else hidden,
            group=group,
        )
        self.schedule = Schedule1F1B(engine, MICRO_BATCHES, loss_fn=loss_of, scale_grads=False)

    def step(self, number: int) -> float:
        """One optimizer step; the loss on the last stage, 0 on the first."""
        losses: list[Tensor] = []
        if isinstance(self.group, SwarmGroup):
            self.group.begin_step(number)
        if self.stage == 0:
            self.schedule.step(batch(number))
        else:
            self.schedule.step(target=batch(number), losses=losses, return_outputs=False)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(sum(loss.detach() for loss in losses))


class Alone:
    """The same model in one process, micro-batch by micro-batch."""

    def __init__(self, way: Way) -> None:
        self.module = nn.Sequential(*model())
        self.optimizer = torch.optim.AdamW(way.apply(self.module), lr=1e-4)

    def step(self, number: int) -> float:
        """One optimizer step."""
        losses = []
        for part in batch(number).chunk(MICRO_BATCHES):
            loss = loss_of(self.module(part), part)
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(sum(losses))


@dataclass(frozen=True)
class Round:
    """Seconds of each arm, of one process, and the losses."""

    arm_s: dict[str, float]
    alone_s: float
    losses: dict[str, float]


def run_stage(stage: int, rounds: int, store_file: str, channel: Any, way: Way) -> None:
    """The body of one of the two processes."""
    torch.set_num_threads(1)
    store = FileStore(store_file, NUM_STAGES)
    dist.init_process_group("gloo", store=store, rank=stage, world_size=NUM_STAGES)
    swarm = _swarm_group(stage, channel)
    again = dist.new_group([0, 1], backend="gloo")
    assert again is not None
    assert dist.group.WORLD is not None
    arms = {
        "gloo": Pipeline(stage, dist.group.WORLD, way),
        "swarm": Pipeline(stage, swarm, way),
        "gloo again": Pipeline(stage, again, way),
        "swarm counted": Pipeline(stage, swarm, way),
    }
    alone = Alone(way) if stage == 0 else None
    for number in range(rounds + 1):  # round 0 warms up
        told = _round(arms, alone, number)
        if number:
            channel.send(told)
    swarm.close()
    dist.barrier()
    dist.destroy_process_group()


def _round(arms: dict[str, Pipeline], alone: Alone | None, number: int) -> Round:
    seconds, losses = {}, {}
    first = number % len(ARMS)
    for name in ARMS[first:] + ARMS[:first]:
        counting = _counter() if name.endswith("counted") else nullcontext()
        dist.barrier()
        with counting:
            began = time.perf_counter()
            losses[name] = arms[name].step(number)
            dist.barrier()
            seconds[name] = time.perf_counter() - began
    began = time.perf_counter()
    if alone is not None:
        alone.step(number)
    alone_s = time.perf_counter() - began
    dist.barrier()
    return Round(seconds, alone_s, losses)


@contextmanager
def _counter() -> Iterator[None]:
    """A CPU card's byte counter, as a stage has it in its first steps."""
    whole = CardShare(
        index=0, uuid="cpu", first_layer=0, last_layer=0, planned_bytes=0, budget_bytes=2**40
    )
    meter = CardMeter([whole], [torch.device("cpu")])
    counting: AbstractContextManager[None] = meter.counting()
    with counting:
        yield


def _swarm_group(stage: int, channel: Any) -> SwarmGroup:
    links = PipelineLinks.open(LinkName("j-aaaabbbb", 1, stage, stage), NUM_STAGES, "127.0.0.1")
    channel.send((links.endpoint.public_key, links.endpoint.endpoints))
    links.connect(channel.recv())
    kind = TensorKind(torch.float32, (SEQUENCES, TOKENS, HIDDEN))
    group = SwarmGroup(stage, NUM_STAGES, links, [kind], 600)
    dist.Backend.register_backend(
        BACKEND, lambda _options, _more: group, extended_api=True, devices=["cpu"]
    )
    installed: object = dist.new_group([0, 1], backend=BACKEND)
    assert installed is group
    return group


def measure(rounds: int, folder: str, way: Way) -> list[Round]:
    """Run both processes; the last stage's losses and the first stage's times."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(NUM_STAGES)]
    store_file = str(Path(folder) / "rendezvous")
    children = [
        context.Process(target=run_stage, args=(stage, rounds, store_file, pipes[stage][1], way))
        for stage in range(NUM_STAGES)
    ]
    for child in children:
        child.start()
    try:
        outer = [pipe[0] for pipe in pipes]
        told = [channel.recv() for channel in outer]
        ends = [
            Neighbour(stage=stage, fellow_id="f-aaaaaaaa", public_key=key, endpoints=endpoints)
            for stage, (key, endpoints) in enumerate(told)
        ]
        outer[0].send(Links(previous=None, next=ends[1]))
        outer[1].send(Links(previous=ends[0], next=None))
        pairs = [(outer[0].recv(), outer[1].recv()) for _ in range(rounds)]
        for child in children:
            child.join(60)
        return [Round(first.arm_s, first.alone_s, last.losses) for first, last in pairs]
    finally:
        for child in children:
            child.kill()
            child.join()


def tell(rounds: list[Round], say: Callable[[str], None]) -> bool:
    """Print medians and ranges; returns whether the limit holds and the losses are equal."""
    say(f"B1  {len(rounds)} rounds, {MICRO_BATCHES} micro-batches of {SEQUENCES} x {TOKENS} tokens")
    say(f"    torch {torch.__version__}, {platform.machine()}, {os.cpu_count()} cores, 1 thread")
    say(f"    load {os.getloadavg()[0]:.1f}, 2 of it these processes")
    for name in ARMS:
        seconds = [r.arm_s[name] for r in rounds]
        against = "swarm" if name.endswith("counted") else "gloo"
        ratios = [r.arm_s[name] / r.arm_s[against] for r in rounds]
        say(
            f"    {name:14} {statistics.median(seconds):7.3f} s   / {against:5} "
            f"{statistics.median(ratios):.3f}  ({min(ratios):.3f} - {max(ratios):.3f})"
        )
    alone_s = statistics.median(r.alone_s for r in rounds)
    # A perfectly balanced pipeline still idles while it fills and drains (Huang et al. 2019).
    limit_s = alone_s / NUM_STAGES * (MICRO_BATCHES + NUM_STAGES - 1) / MICRO_BATCHES
    say(f"    one process    {alone_s:7.3f} s   bubble limit {limit_s:.3f} s")
    for name in ("gloo", "swarm"):
        share_of_limit = limit_s / statistics.median(r.arm_s[name] for r in rounds)
        say(f"    {name:14} reaches {share_of_limit:.3f} of the bubble limit")
    equal = all(len(set(r.losses.values())) == 1 for r in rounds)
    say(f"    losses of all arms are {'identical' if equal else 'DIFFERENT'}")
    ratio = statistics.median(r.arm_s["swarm"] / r.arm_s["gloo"] for r in rounds)
    say(f"    limit {LIMIT}: {'holds' if ratio <= LIMIT else 'does not hold'}")
    return equal and ratio <= LIMIT


def main() -> int:
    """Read the arguments, measure, print; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds, at least 1")
    parser.add_argument("--method", choices=("full", "lora"), default="full")
    parser.add_argument("--quantization", choices=("none", "nf4", "int8"), default="none")
    asked = parser.parse_args()
    if asked.rounds < 1:
        parser.error(f"--rounds must be at least 1, not {asked.rounds}")
    if asked.method == "full" and asked.quantization != "none":
        parser.error("a full fine-tune trains whole weights: use --method lora")
    way = Way(asked.method, asked.quantization)
    print(f"B1  method {way.method}, weights stored as {way.quantization}")
    with tempfile.TemporaryDirectory() as folder:
        return 0 if tell(measure(asked.rounds, folder, way), print) else 1


if __name__ == "__main__":
    sys.exit(main())
