"""Counts the live bytes of a stage's forward and backward without owning the memory.

The stage is transformers' own class cut to a few layers, with the engine's own adapters (or peft's,
to compare), blocks, loss and optimizer, run on fake tensors of the model's true sizes. Every
storage is followed from birth to death by weak reference; weights are registered before anything
runs.
Fused attention is called as the CUDA kernels' own operators: their autograd formulas decide what
is saved. Knows nothing of prices (a house test keeps it so).

Three things differ from a CUDA card: memory inside kernels is not seen, autograd never adds
gradients in place while a dispatch mode is on, and autocast follows the CPU's list.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Protocol
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from transformers import AutoConfig, AutoModel, masking_utils
from transformers.integrations import moe

from stage_runtime.load import Head, NoPositions
from stage_runtime.lora_linear import AdapterShape, put_adapters
from stage_runtime.loss import chunked_cross_entropy
from stage_runtime.recompute import Rebuilds
from stage_runtime.stage import Block, BlockPlan, Moment
from tests.oracle.live_bytes import LiveBytes

Kernel = Literal["flash", "efficient", "cpu"]
"""flash: CUDA, from Ampere on. efficient: CUDA before it, heads repeated. cpu: torch's own."""
PIECE_VALUES = 1 << 18
"""Float32 values of a shared table that cross at once."""


@dataclass(frozen=True)
class Case:
    """One stage of a run."""

    config: dict[str, Any]
    layers: int
    """On the stage; the model is cut to num_stages times as many."""
    targets: tuple[str, ...] | None
    """Modules with adapters; None = full fine-tune."""
    dtype: torch.dtype = torch.bfloat16
    rank: int = 8
    seq_len: int = 1024
    batch: int = 1
    micro_batches: int = 1
    schedule: str = "1f1b"
    stage: int = 1
    num_stages: int = 3
    recompute: bool = False
    early: int = 0
    """Blocks that stand again before their gradient comes; but on the last stage."""
    kernel: Kernel = "flash"
    grouped: bool = True
    """Experts run in the grouped kernel; else in transformers' fallback."""
    chunk_tokens: int = 256
    apart: bool = False
    """Documents that share a sequence do not see each other."""
    fake: bool = True
    pefts_own: bool = False
    """peft's own adapter layers, which copy their inputs, instead of the engine's."""

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.num_stages - 1

    @property
    def rows(self) -> int:
        """Sequences of a micro-batch."""
        return self.batch // self.micro_batches

    @property
    def total_layers(self) -> int:
        """Of the cut model."""
        return self.layers * self.num_stages


@dataclass(frozen=True)
class Counted:
    """Bytes at the peak of a step, at the peak of its update, and before the first backward."""

    loaded: int
    step_peak: int
    update_peak: int
    held: int

    @property
    def peak(self) -> int:
        return max(self.step_peak, self.update_peak)


def count(case: Case) -> Counted:
    """Run one step of the case, moments already made, and count."""
    with ExitStack() as stack:
        if case.fake:
            stack.enter_context(FakeTensorMode())
        stack.enter_context(_kernels(case))
        torch.manual_seed(0)
        stage = OracleStage(case)
        stage.make_moments()
        run = OneStep(stage)
        counter = LiveBytes()
        for tensor in (*stage.tensors(), *run.tensors()):
            counter.hold(tensor)
        with counter:
            loaded = counter.now
            held = run.step(counter)
            stage.share_table()
            step_peak = counter.peak
            counter.peak = counter.now
            stage.optimizer.step()
            update_peak = counter.peak
    return Counted(loaded, step_peak, update_peak, held)


@contextmanager
def _kernels(case: Case) -> Iterator[None]:
    """Put the CUDA kernels' operators in the places of attention and of the experts' product."""
    with ExitStack() as stack:
        if case.fake:
            # Fake positions have no values to read.
            packed = torch.zeros_like if case.apart else lambda _: None
            stack.enter_context(patch.object(masking_utils, "find_packed_sequence_indices", packed))
        if case.kernel != "cpu":
            attend = _flash_or_efficient(case.kernel)
            stack.enter_context(patch.object(functional, "scaled_dot_product_attention", attend))
        if not case.grouped:
            stack.enter_context(patch.object(moe, "_can_use_grouped_mm", lambda *_: False))
        yield


def _flash_or_efficient(kernel: Kernel) -> Any:
    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if torch.is_autocast_enabled("cpu"):  # as the patched function's own rule says
            narrow_as = torch.get_autocast_dtype("cpu")
            query, key, value = (one.to(narrow_as) for one in (query, key, value))
        flash = kernel == "flash" and attn_mask is None and query.dtype != torch.float32
        if flash:
            operator = torch.ops.aten._scaled_dot_product_flash_attention
            out: Tensor = operator(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
            return out
        key, value = _repeated(key, query), _repeated(value, query)
        bias = None
        if attn_mask is not None:
            bias = attn_mask
            if bias.dtype == torch.bool:
                narrow = torch.zeros((), dtype=query.dtype)
                bias = torch.where(bias, narrow, narrow - torch.inf)
            bias = bias.expand(*query.shape[:3], key.shape[2])
        operator = torch.ops.aten._scaled_dot_product_efficient_attention
        found = operator(query, key, value, bias, True, dropout_p, is_causal, scale=scale)
        wide: Tensor = found[0]
        return wide

    return attend


def _repeated(shared: Tensor, query: Tensor) -> Tensor:
    repeats = query.shape[1] // shared.shape[1]
    if repeats == 1:
        return shared
    rows, heads, seq_len, width = shared.shape
    wide = shared[:, :, None].expand(rows, heads, repeats, seq_len, width)
    return wide.reshape(rows, heads * repeats, seq_len, width)


class OracleStage:
    """A cut model with adapters, or with all parameters trainable."""

    def __init__(self, case: Case) -> None:
        self.case = case
        config = _cut_config(case)
        self.vocab, self.width = config.vocab_size, config.hidden_size
        tied = config.tie_word_embeddings and case.targets is None
        self.copies = tied and case.is_last and not case.is_first
        """The head is a copy of the first stage's table: it has a gradient, and no moments."""
        if not case.is_first:
            config.vocab_size, config.pad_token_id = 1, None
        # A full fine-tune keeps float32 weights and computes in the case's format.
        kept = torch.float32 if case.targets is None else case.dtype
        self.autocast = kept != case.dtype
        model: Any = AutoModel.from_config(config, dtype=kept)
        self._cut_ends(model)
        model.config.use_cache = False
        model.requires_grad_(case.targets is None)
        if case.targets is not None:
            self._adapt(model, case.targets)
        self.head = self._make_head(model, kept)
        self.model = model.train()
        self._wrap()
        trained = [p for p in model.parameters() if p.requires_grad]
        if self.head is not None and case.targets is None and not self.copies:
            trained += [p for p in self.head.parameters() if all(p is not q for q in trained)]
        self.trained = trained
        single = case.kernel == "cpu"
        self.optimizer = torch.optim.AdamW(
            trained, lr=1e-3, weight_decay=0.0, foreach=False, fused=not single
        )

    def _cut_ends(self, model: Any) -> None:
        if not self.case.is_last:
            for name in ("norm", "ln_f", "final_layer_norm", "final_layernorm"):
                if hasattr(model, name):
                    setattr(model, name, nn.Identity())
        if not self.case.is_first:
            for name in ("embed_tokens", "wte", "embed_in"):
                if hasattr(model, name):
                    setattr(model, name, nn.Identity())
            if hasattr(model, "wpe"):
                model.wpe = NoPositions()

    def _adapt(self, model: Any, targets: tuple[str, ...]) -> None:
        if self.case.pefts_own:
            self._adapt_by_peft(model, targets)
        else:
            put_adapters(model, targets, AdapterShape(self.case.rank, 16 / self.case.rank))
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.requires_grad_(True)

    def _adapt_by_peft(self, model: Any, targets: tuple[str, ...]) -> None:
        lora = LoraConfig(
            r=self.case.rank,
            lora_alpha=16,
            target_modules=list(targets),
            fan_in_fan_out=model.config.model_type == "gpt2",
        )
        # peft moves its new modules to where they already are, which fake weights refuse.
        with patch.object(nn.Module, "to", lambda module, *_, **__: module):
            inject_adapter_in_model(lora, model)
        for name, module in model.named_modules():
            if "lora_" in name and isinstance(module, nn.Linear):
                values = torch.randn(module.weight.shape, dtype=torch.float32)
                module.weight = nn.Parameter(values / self.case.rank)

    def _make_head(self, model: Any, kept: torch.dtype) -> Head | None:
        if not self.case.is_last:
            return None
        trains = self.case.targets is None
        tied = model.config.tie_word_embeddings and self.case.is_first
        softcap = getattr(model.config, "final_logit_softcapping", None)
        if tied:
            return Head(model.get_input_embeddings().weight, None, softcap)
        weight = torch.empty(self.vocab, self.width, dtype=kept)
        bias = torch.empty(self.vocab, dtype=kept) if model.config.model_type == "phi" else None
        return Head(
            nn.Parameter(weight, requires_grad=trains),
            None if bias is None else nn.Parameter(bias, requires_grad=trains),
            softcap,
        )

    def _wrap(self) -> None:
        blocks = getattr(self.model, "layers", None) or self.model.h
        early = 0 if self.case.is_last else self.case.early
        self.rebuilds = Rebuilds(early) if self.case.recompute else None
        plan = BlockPlan(Moment(0), lambda: None, lambda _: None, self.rebuilds)
        for local, block in enumerate(list(blocks)):
            blocks[local] = Block(block, local, plan, 0, torch.device("cpu"))

    def make_moments(self) -> None:
        """One update with zero gradients: the optimizer's state exists from then on."""
        for parameter in self.trained:
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def tensors(self) -> Iterator[Tensor]:
        """All that is held between steps."""
        yield from self.model.parameters()
        yield from self.model.buffers()
        if self.head is not None:
            yield from self.head.parameters()
        for state in self.optimizer.state.values():
            yield from (one for one in state.values() if isinstance(one, Tensor))

    def share_table(self) -> None:
        """As the engine does when a step's gradients are whole: the copy's travels to the first
        stage in pieces, and its own place is free before the update.
        """
        if self.copies:
            assert self.head is not None
            torch.zeros(min(PIECE_VALUES, self.vocab * self.width))
            self.head.weight.grad = None

    def forward(self, given: Tensor) -> Tensor:
        if self.rebuilds is not None:
            self.rebuilds.begin_micro_batch()
        key = "input_ids" if self.case.is_first else "inputs_embeds"
        with torch.autocast("cpu", self.case.dtype) if self.autocast else nullcontext():
            out: Tensor = self.model(
                **{key: given}, **self._positions(), use_cache=False
            ).last_hidden_state
        return out.to(self.case.dtype)

    def _positions(self) -> dict[str, Tensor]:
        if not self.case.apart:
            return {}
        halves = torch.arange(self.case.seq_len) % (self.case.seq_len // 2)
        return {"position_ids": halves.expand(self.case.rows, -1).contiguous()}

    def loss(self, hidden_BTD: Tensor, labels_BT: Tensor) -> Tensor:
        """As StageLoss does, but that every position has a target: shapes then need no data."""
        assert self.head is not None
        target = labels_BT.reshape(-1)
        places = torch.arange(target.shape[0])
        hidden_ND = hidden_BTD.reshape(-1, hidden_BTD.shape[-1])[places]
        target_N = target[places]
        return chunked_cross_entropy(
            hidden_ND, self.head, target_N, chunk_tokens=self.case.chunk_tokens, scale=1.0
        )[0]


def _cut_config(case: Case) -> Any:
    config = AutoConfig.for_model(**case.config)
    start = case.stage * case.layers
    config.num_hidden_layers = case.layers
    types = getattr(config, "layer_types", None)
    if types:
        config.layer_types = list(types)[start : start + case.layers]
    return config


class _Counter(Protocol):
    now: int


class OneStep:
    """Forward and backward of all micro-batches, in the order of 1F1B or GPipe."""

    def __init__(self, stage: OracleStage) -> None:
        case = stage.case
        shape = (case.rows, case.seq_len, stage.width)
        parts = range(case.micro_batches)
        self.stage, self.case = stage, case

        def ids() -> list[Tensor]:
            return [torch.randint(0, stage.vocab, shape[:2]) for _ in parts]

        def hidden() -> list[Tensor]:
            return [torch.randn(shape, dtype=case.dtype) for _ in parts]

        # Receive buffers of all micro-batches, as PipelineStage makes them at set-up.
        self.received = ids() if case.is_first else hidden()
        self.gradients = [] if case.is_last else hidden()
        self.labels = ids() if case.is_last else []
        self.waiting: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def tensors(self) -> Iterator[Tensor]:
        """Receive buffers and labels."""
        yield from (*self.received, *self.gradients, *self.labels)

    def _forward(self, part: int) -> None:
        given = self.received[part]
        if not self.case.is_first:
            given = given.detach().requires_grad_()
        out = self.stage.forward(given)
        loss = self.stage.loss(out, self.labels[part]) if self.labels else out
        self.waiting[part] = (loss, out, given)

    def _backward(self, part: int) -> None:
        loss, _, given = self.waiting.pop(part)
        while self.stage.rebuilds is not None and self.stage.rebuilds.rebuild_one():
            pass
        loss.backward(None if self.case.is_last else self.gradients[part])  # type: ignore[no-untyped-call]
        given.grad = None

    def step(self, counter: _Counter) -> int:
        """Run it; returns what the counter says before the first backward."""
        parts, case = self.case.micro_batches, self.case
        # 1F1B refuses fewer micro-batches than stages: GPipe takes its place.
        waits = case.schedule == "gpipe" or parts < case.num_stages
        ahead = parts if waits else min(case.num_stages - case.stage, parts)
        for part in range(ahead):
            self._forward(part)
        held = counter.now
        for part in range(parts):
            self._backward(part)
            if part + ahead < parts:
                self._forward(part + ahead)
        return held
