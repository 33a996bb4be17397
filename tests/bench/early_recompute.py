"""Early recompute against late: a step of two real stages over a slow line.

Every step is run again from the same weights in three arms that take turns, in an order that is
mirrored in the next round: late, early, and late again, which shows what the machine's noise alone
does. Loss and norm must be the same bits in all arms. Two loads, four micro-batches each: simulated
compute (each block waits as long as a card would compute, and takes no core) and real compute
(SmolLM2's blocks, one thread a stage, pinned to a core of its own). The line carries a frame in
about two thirds of a stage's forward.

    python -m tests.bench.early_recompute --rounds 7

Says for each load whether early is a gain: the median of its ratios lies below every ratio of late
to late. Ends with 1 when the bits differ, or when it is none where compute is simulated; with real
compute other programs on the machine can hide it.
"""

import argparse
import os
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.update({"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from stage_runtime.checkpoint import open_checkpoint
from stage_runtime.process_group import make_group
from stage_runtime.step import RunningStage, run_step
from stage_runtime.train import LoadedRun, _assemble, _batch, crossing_kinds, load
from tests.bench.slow_line import Line
from tests.bench.two_stages import told_over
from tests.oracle.checkpoints import BOS, EOS, PAD, VOCAB, write_byte_tokenizer
from tests.oracle.settings import some_settings
from tests.oracle.stages import Case, even_cuts, model_folder
from tests.oracle.tokens import packed_text
from transport.direct import PipelineLinks
from transport.link import LinkName
from transport.orders import LoraSettings, StageOrder

BLOCKS, TOKENS, MICRO_BATCHES, STAGES = 8, 128, 4, 2
ARMS = ("late", "early", "late again")
MLP = ["gate_proj", "up_proj", "down_proj"]
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", *MLP]
SMOL = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "num_hidden_layers": BLOCKS * STAGES,
    "vocab_size": VOCAB,
    "tie_word_embeddings": True,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}
"""SmolLM2-135M's blocks; fewer of them, and a vocabulary of bytes."""
TINY = SMOL | {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2,
               "num_key_value_heads": 1}  # fmt: skip


@dataclass(frozen=True)
class Work:
    """What the two stages compute, and the line between them."""

    name: str
    model: dict[str, Any]
    rests_s: float
    """Added to a block's forward, and as much to its backward; frozen weights cost the same."""
    line: Line

    def case(self, cache: Path) -> Case:
        """Adapters on everything, dropout, recompute."""
        folder = model_folder(cache, self.name)
        AutoModelForCausalLM.from_config(AutoConfig.for_model(**self.model)).save_pretrained(folder)
        write_byte_tokenizer(folder)
        lora = LoraSettings(rank=8, alpha=16.0, dropout=0.1, target_modules=TARGETS)
        settings = some_settings(
            lora=lora, recompute=True, early_recompute=BLOCKS, steps=1, seq_len=TOKENS,
            micro_batches=MICRO_BATCHES, eval_sequences=0, link_timeout_s=120.0,
        )  # fmt: skip
        tokens = packed_text(cache, seq_len=TOKENS, sequences=64)
        return Case(cache, self.name, BLOCKS * STAGES, settings, tokens)


def loads(delay_s: float) -> tuple[Work, Work]:
    """Simulated: 32 KB a frame, a block 10 ms. Real: 295 KB."""
    return (
        Work("simulated", TINY, 0.01, Line(4.5e6, delay_s)),
        Work("real", SMOL, 0.0, Line(40e6, delay_s)),
    )


# --- a stage ---


class _Rest(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        threading.Event().wait(seconds)
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        threading.Event().wait(ctx.seconds)
        return grads[0], None


class Resting(nn.Module):
    """A block that takes as long as a card would, both ways, and no core meanwhile."""

    def __init__(self, inner: nn.Module, seconds: float) -> None:
        super().__init__()
        self.inner, self.seconds = inner, seconds

    def forward(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        out = self.inner(hidden, *args, **kwargs)
        rested: Tensor = _Rest.apply(out, self.seconds)  # type: ignore[no-untyped-call]
        return rested

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)


def _loaded(order: StageOrder, cache: Path, rests_s: float) -> LoadedRun:
    folder = model_folder(cache, order.model.model_id.removeprefix("local:"))
    token_file = cache / "tokens" / f"{order.tokens.digest}.safetensors"
    run = load(order, open_checkpoint(folder), token_file, lambda *_, **__: None, 0)
    if rests_s:
        for local, block in enumerate(run.stage.blocks):
            run.stage.blocks[local] = Resting(block, rests_s)
    draw = torch.Generator().manual_seed(order.stage)
    for name, weight in run.trained.items():
        if ".lora_B." in name:  # zeros, behind which the other half has no gradient
            weight.data = 0.05 * torch.randn(weight.shape, generator=draw)
    return run


def run_stage(order: StageOrder, cache: Path, rests_s: float, rounds: int, channel: Any) -> None:
    """The body of one of the two processes: tells (arm, seconds, waited, loss, norm, early)."""
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[order.stage % len(cores)]})
    links = PipelineLinks.open(LinkName(order.job_id, 1, order.stage, order.stage), STAGES,
                               "127.0.0.1")  # fmt: skip
    channel.send((links.endpoint.public_key, list(links.endpoint.endpoints)))
    run = _loaded(order, cache, rests_s)
    links.connect(channel.recv())
    group = make_group(order, links, crossing_kinds(run))
    stage = _assemble(run, group)
    started = {name: weight.detach().clone() for name, weight in run.trained.items()}
    for number in range(rounds + 1):  # round 0 warms up
        for arm in ARMS if number % 2 else reversed(ARMS):
            told = _step(run, stage, number + 1, early=arm == "early")
            if number and order.stage == 0:
                channel.send((arm, *told))
            with torch.no_grad():
                for name, weight in run.trained.items():
                    weight.copy_(started[name])
    group.close()
    channel.send(None)


def _step(run: LoadedRun, stage: RunningStage, step: int, *, early: bool) -> tuple[float, ...]:
    rebuilds = stage.module.rebuilds
    assert rebuilds is not None
    rebuilds.most_early = BLOCKS if early else 0
    before = rebuilds.num_early
    stage.group.exchange([0.0])  # both begin together
    stage.group.marks.lap()
    told = run_step(stage, step, _batch(run, step))
    norm = -1.0 if told.grad_norm is None else told.grad_norm
    return told.step_s, told.wait_s, told.loss, norm, float(rebuilds.num_early - before)


# --- the arms ---


@dataclass(frozen=True)
class Told:
    """What the first stage told of one step."""

    step_s: float
    wait_s: float
    loss: float
    norm: float
    early: float


def measure(work: Work, rounds: int, cache: Path) -> dict[str, list[Told]]:
    """The steps of each arm."""
    orders = work.case(cache).orders(even_cuts(BLOCKS * STAGES, STAGES))
    arguments = [(order, cache, work.rests_s, rounds) for order in orders]
    told = told_over(work.line, run_stage, arguments, ARMS)
    return {arm: [Told(*step) for step in steps] for arm, steps in told.items()}


def ratios(told: dict[str, list[Told]], arm: str) -> list[float]:
    """Of an arm's steps over the late ones of the same rounds."""
    return [one.step_s / late.step_s for one, late in zip(told[arm], told["late"], strict=True)]


def least(told: dict[str, list[Told]], arm: str) -> float:
    """An arm's shortest step over the shortest late one: what others on the machine add is left
    out.
    """
    shortest, late = (min(one.step_s for one in told[name]) for name in (arm, "late"))
    return shortest / late


def lines(work: Work, told: dict[str, list[Told]]) -> Iterator[str]:
    """The table of one load."""
    mbit = work.line.bits_per_s / 1e6
    yield f"{work.name} compute, {mbit:.1f} Mbit each way and {1000 * work.line.delay_s:.0f} ms"
    for arm in ARMS:
        steps, over = told[arm], ratios(told, arm)
        step_s, wait_s, early = (
            statistics.median(values)
            for values in zip(*((one.step_s, one.wait_s, one.early) for one in steps), strict=True)
        )
        yield (
            f"    {arm:<10} {step_s:6.3f} s, waits {wait_s:6.3f} s, {early:2.0f} blocks early  "
            f"/ late {statistics.median(over):.3f} ({min(over):.3f}-{max(over):.3f}), "
            f"shortest / shortest {least(told, arm):.3f}"
        )


def same_bits(told: dict[str, list[Told]]) -> bool:
    """Whether each step came to the same loss and norm in all arms."""
    return all(
        len({(one.loss, one.norm) for one in steps}) == 1
        for steps in zip(*told.values(), strict=True)
    )


def main() -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds, at least 1")
    parser.add_argument("--delay-ms", type=float, default=5.0, help="of the line, each way")
    parser.add_argument("--only", choices=["simulated", "real"])
    asked = parser.parse_args()
    holds = same = True
    for one in loads(asked.delay_ms / 1000):
        if asked.only in (None, one.name):
            with tempfile.TemporaryDirectory() as folder:
                told = measure(one, max(1, asked.rounds), Path(folder))
            print("\n".join(lines(one, told)), flush=True)
            same = same and same_bits(told)
            gains = statistics.median(ratios(told, "early")) < min(ratios(told, "late again"))
            word = "a gain" if gains else "NO GAIN"
            print(f"    early is {word} beyond the noise of late to late")
            holds = holds and (gains or one.name != "simulated")
    print("the same loss and norm in all arms" if same else "THE ARMS DIFFER")
    return int(not (same and holds))


if __name__ == "__main__":
    sys.exit(main())
