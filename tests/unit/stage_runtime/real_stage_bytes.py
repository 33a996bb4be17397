"""Counts the tensor bytes that a real stage holds, storage by storage, to check the prices.

The stage is transformers' own class cut to a few layers, with the stage's own adapters and the
stage's own optimizer and loss, driven in the order of 1F1B or GPipe with the receive buffers
that PipelineStage keeps.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from stage_runtime.load import Head, NoPositions
from stage_runtime.lora_linear import AdapterShape, put_adapters
from stage_runtime.loss import StageLoss
from stage_runtime.optim import adamw
from tests.oracle.live_bytes import LiveBytes


@dataclass(frozen=True)
class Case:
    """One stage of a run."""

    config: dict[str, Any]
    layers: int
    targets: tuple[str, ...] | None
    """None = full fine-tune."""
    dtype: torch.dtype = torch.float32
    rank: int = 8
    seq_len: int = 128
    batch: int = 8
    micro_batches: int = 4
    schedule: str = "1f1b"
    stage: int = 1
    num_stages: int = 3
    recompute: bool = False
    chunk_tokens: int = 256

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.num_stages - 1


@dataclass(frozen=True)
class Counted:
    """Bytes: right after loading, peak of a step (the second), peak of the optimizer's update."""

    loaded: int
    step_peak: int
    update_peak: int
    held: int
    """After the forwards that wait for their backward, receive buffers included."""

    @property
    def peak(self) -> int:
        return max(self.step_peak, self.update_peak)


class Stage:
    """A cut model with adapters, or with all parameters trainable."""

    def __init__(self, case: Case) -> None:
        self.case = case
        config = AutoConfig.for_model(**case.config)
        config.num_hidden_layers = case.layers
        if getattr(config, "layer_types", None):
            config.layer_types = list(config.layer_types)[: case.layers]
        self.vocab, self.width = config.vocab_size, config.hidden_size
        if not case.is_first:
            config.vocab_size, config.pad_token_id = 1, None
        # A full fine-tune keeps float32 weights and computes in the case's format.
        kept = torch.float32 if case.targets is None else case.dtype
        self.autocast = kept != case.dtype
        model: Any = AutoModel.from_config(config, dtype=kept)
        if not case.is_last:
            _drop_final_norm(model)
        if not case.is_first and hasattr(model, "wpe"):
            model.wpe = NoPositions()
        weight = torch.randn(self.vocab, self.width, dtype=kept) if case.is_last else None
        self.loss = None
        if weight is not None:
            head = nn.Parameter(weight, requires_grad=case.targets is None)
            self.loss = StageLoss(Head(head, None, None), case.chunk_tokens)
        model.config.use_cache = False
        for parameter in model.parameters():
            parameter.requires_grad_(case.targets is None)
        if case.targets is not None:
            put_adapters(model, case.targets, AdapterShape(case.rank, 16 / case.rank))
            for name, parameter in model.named_parameters():
                if "lora_" in name:
                    parameter.requires_grad_(True)
        if case.recompute:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        self.model = model.train()
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if self.loss is not None and case.targets is None:
            trained["head"] = self.loss.head.weight
        self.optimizer = adamw(trained, torch.device("cpu"))

    def tensors(self) -> Iterator[Tensor]:
        yield from self.model.parameters()
        yield from self.model.buffers()
        if self.loss is not None:
            yield self.loss.head.weight

    def forward(self, given: Tensor) -> Tensor:
        key = "input_ids" if self.case.is_first else "inputs_embeds"
        with torch.autocast("cpu", self.case.dtype) if self.autocast else nullcontext():
            out: Tensor = self.model(**{key: given}, use_cache=False).last_hidden_state
        return out.to(self.case.dtype)


def _drop_final_norm(model: Any) -> None:
    for name in ("norm", "ln_f", "final_layer_norm", "final_layernorm"):
        if hasattr(model, name):
            setattr(model, name, nn.Identity())


@contextmanager
def counting(stage: Stage) -> Iterator[LiveBytes]:
    counter = LiveBytes()
    for tensor in stage.tensors():
        counter.hold(tensor)
    with counter:
        yield counter


def count(case: Case) -> Counted:
    """Run two steps of the case and count. The first one makes the optimizer's moments."""
    torch.manual_seed(0)
    stage = Stage(case)
    with counting(stage) as counter:
        loaded = counter.now
        run = _Run(stage)
        for step in (1, 2):
            counter.peak = counter.now
            held = run.step(counter)
            step_peak = counter.peak
            counter.peak = counter.now
            stage.optimizer.step()
            stage.optimizer.zero_grad(set_to_none=True)
            update_peak = counter.peak
            assert step < 3
    return Counted(loaded, step_peak, update_peak, held)


class _Run:
    def __init__(self, stage: Stage) -> None:
        case = stage.case
        rows = case.batch // case.micro_batches
        shape = (rows, case.seq_len, stage.width)
        self.stage, self.case = stage, case
        self.received: list[Tensor] = [
            torch.randint(0, stage.vocab, shape[:2])
            if case.is_first
            else torch.randn(shape, dtype=case.dtype)
            for _ in range(case.micro_batches)
        ]
        self.gradients = (
            []
            if case.is_last
            else [torch.randn(shape, dtype=case.dtype) for _ in range(case.micro_batches)]
        )
        self.labels = (
            [torch.randint(0, stage.vocab, shape[:2]) for _ in range(case.micro_batches)]
            if case.is_last
            else None
        )
        self.waiting: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def forward(self, part: int) -> None:
        given = self.received[part]
        if not self.case.is_first:
            given = given.detach().requires_grad_()
        out = self.stage.forward(given)
        if self.stage.loss is None or self.labels is None:
            self.waiting[part] = (out, out, given)
        else:
            self.waiting[part] = (self.stage.loss(out, self.labels[part]), out, given)

    def backward(self, part: int) -> None:
        out, _, given = self.waiting.pop(part)
        out.backward(None if self.case.is_last else self.gradients[part])  # type: ignore[no-untyped-call]
        given.grad = None

    def step(self, counter: LiveBytes) -> int:
        parts, case = self.case.micro_batches, self.case
        ahead = parts if case.schedule == "gpipe" else min(case.num_stages - case.stage, parts)
        for part in range(ahead):
            self.forward(part)
        held = counter.now
        for part in range(parts):
            self.backward(part)
            if part + ahead < parts:
                self.forward(part + ahead)
        return held
