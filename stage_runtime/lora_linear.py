"""A LoRA adapter on a frozen projection that keeps its input once, in the layers' own format.

The mathematics are peft's: y = base(x) + scaling * B(A(dropout(x))), the adapter in float32 and the
sum rounded once to the base's format. peft's layer copies its input to float32 and keeps that copy,
the adapter's inner values and a mask, for every adapted projection; here the input itself is kept,
which query, key and value share, and the rest is computed again in backward, some rows at a time.
The base is any frozen module whose forward gives y and whose backward lets a gradient through to x:
a linear layer, GPT-2's Conv1D, or a quantized one. Names of parameters are those of peft's files.
"""

# N = tokens, I = inputs, O = outputs, R = rank, C = rows of one piece

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stage_runtime.pieces import TWIN_ROWS

ROWS = TWIN_ROWS


@dataclass(frozen=True)
class AdapterShape:
    """What all adapters of a job have in common."""

    rank: int
    scaling: float
    """alpha / rank."""
    dropout: float = 0.0


@dataclass(frozen=True)
class _How:
    scaling: float
    dropout: float
    seed: int | None
    """What dropout is drawn from; None = none is."""

    def generator(self, device: torch.device) -> torch.Generator | None:
        if self.seed is None:
            return None
        return torch.Generator(device).manual_seed(self.seed)

    def kept(self, like_CI: Tensor, generator: torch.Generator | None) -> Tensor | None:
        """1 / (1 - dropout) where an input stays, 0 where it drops; None without dropout."""
        if generator is None:
            return None
        kept = torch.empty_like(like_CI, dtype=torch.float32)
        return kept.bernoulli_(1 - self.dropout, generator=generator).div_(1 - self.dropout)


def _pieces(num_rows: int) -> Iterator[slice]:
    for start in range(0, num_rows, ROWS):
        yield slice(start, min(num_rows, start + ROWS))


def _dropped(given_CI: Tensor, kept_CI: Tensor | None) -> Tensor:
    wide = given_CI.to(torch.float32)
    return wide if kept_CI is None else wide * kept_CI


class _Added(torch.autograd.Function):
    """base + scaling * B(A(dropout(x))), rounded to the format of base."""

    @staticmethod
    def forward(  # noqa: PLR0913 - what autograd hands over is a flat list
        ctx: Any, base_NO: Tensor, given_NI: Tensor, a_RI: Tensor, b_OR: Tensor, how: _How
    ) -> Tensor:
        ctx.save_for_backward(given_NI, a_RI, b_OR)
        ctx.how = how
        added_NO = torch.empty_like(base_NO)
        generator = how.generator(given_NI.device)
        for rows in _pieces(len(given_NI)):
            kept = how.kept(given_NI[rows], generator)
            delta_CO = _dropped(given_NI[rows], kept) @ a_RI.T @ b_OR.T
            delta_CO.mul_(how.scaling).add_(base_NO[rows])
            added_NO[rows] = delta_CO
            del delta_CO, kept
        return added_NO

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        given_NI, a_RI, b_OR = ctx.saved_tensors
        (grad_NO,) = grads
        how: _How = ctx.how
        wants_base, wants_given, *_ = ctx.needs_input_grad
        grad_NI = torch.empty_like(given_NI) if wants_given else None
        grad_a, grad_b = torch.zeros_like(a_RI), torch.zeros_like(b_OR)
        generator = how.generator(given_NI.device)
        for rows in _pieces(len(given_NI)):
            kept = how.kept(given_NI[rows], generator)
            given_CI = _dropped(given_NI[rows], kept)
            grad_CO = _scaled(grad_NO[rows], how.scaling)
            grad_b.addmm_(grad_CO.T, given_CI @ a_RI.T)
            grad_CR = grad_CO @ b_OR
            del grad_CO  # each name that is gone by the next line is memory that is free for it
            grad_a.addmm_(grad_CR.T, given_CI)
            del given_CI
            if grad_NI is not None:
                _through(grad_CR, a_RI, kept, grad_NI[rows])
        return grad_NO if wants_base else None, grad_NI, grad_a, grad_b, None


def _scaled(grad_CO: Tensor, scaling: float) -> Tensor:
    """In float32; a gradient that is float32 already is autograd's own and must stay as it is."""
    if grad_CO.dtype == torch.float32:
        return grad_CO * scaling
    return grad_CO.to(torch.float32).mul_(scaling)


def _through(grad_CR: Tensor, a_RI: Tensor, kept_CI: Tensor | None, into_CI: Tensor) -> None:
    """The gradient that leaves the adapter towards its input."""
    if into_CI.dtype == torch.float32:
        torch.mm(grad_CR, a_RI, out=into_CI)
        if kept_CI is not None:
            into_CI.mul_(kept_CI)
        return
    wide = grad_CR @ a_RI
    into_CI.copy_(wide if kept_CI is None else wide.mul_(kept_CI))


class LoraLinear(nn.Module):
    """A frozen projection and its adapter. Shapes and names as in peft's files."""

    def __init__(self, base: nn.Module, inputs: int, outputs: int, shape: AdapterShape) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A = _Matrix(shape.rank, inputs)
        self.lora_B = _Matrix(outputs, shape.rank)
        self.shape = shape
        self.dropout_seed: int | None = None
        """Of the micro-batch that runs now; set by the block before it computes."""

    def forward(self, given: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs), in the base's format."""
        base = self.base_layer(given)
        drops = self.training and self.shape.dropout > 0
        if drops:
            assert self.dropout_seed is not None, "the block says what dropout is drawn from"
        how = _How(self.shape.scaling, self.shape.dropout, self.dropout_seed if drops else None)
        rows = base.reshape(-1, base.shape[-1])
        added = _Added.apply(  # type: ignore[no-untyped-call]
            rows, given.reshape(-1, given.shape[-1]), self.lora_A.weight, self.lora_B.weight, how
        )
        assert isinstance(added, Tensor)
        return added.view(base.shape)


class _Matrix(nn.Module):
    """Holds one float32 weight, so that its name ends in ".weight"."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, columns, dtype=torch.float32))


def put_adapters(body: nn.Module, targets: Collection[str], shape: AdapterShape) -> None:
    """Replace every projection that a target names (whole, or after a dot) by an adapted one."""
    for name, module in list(body.named_modules()):
        if any(name == target or name.endswith(f".{target}") for target in targets):
            parent, _, last = name.rpartition(".")
            inputs, outputs = _widths(module)
            adapted = LoraLinear(module, inputs, outputs, shape)
            setattr(body.get_submodule(parent), last, adapted)


def _widths(module: Any) -> tuple[int, int]:
    """(inputs, outputs) of a projection: a linear layer's, or those of GPT-2's Conv1D."""
    if hasattr(module, "in_features"):
        return int(module.in_features), int(module.out_features)
    return int(module.nx), int(module.nf)
