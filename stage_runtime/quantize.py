"""Frozen weights stored in 4 or 8 bits: packing them, and computing with them.

NF4 is QLoRA's format (Dettmers et al. 2023): 16 levels of a normal distribution, a scale for every
64 weights, and those scales in 8 bits again (double quantization). int8 keeps one scale a row. The
codes are bitsandbytes' own, bit for bit, so that what trains here is what peft + bitsandbytes
would train in one process. Only weights are narrow: they are unpacked into the layers' format when
a product needs them, one at a time, and again in backward, so that nothing wide is kept.

Where this differs from bitsandbytes 0.50.2, and why:
- its CPU kernel undoes a weight row by row, and is wrong (25 % of the weight's size at 96 columns)
  unless rows are whole blocks of 64. Here a weight is one long row: any width works;
- its layers repack a weight for bfloat16 inference in evaluation on some processors, after which
  training gets no gradient through it. Here evaluation and training compute the same;
- its int8 layers round activations to 8 bits as well in evaluation, and on CUDA always. Here never.

Does not know stages or files.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from transport.errors import SwarmError

Narrow = Literal["int8", "nf4"]
NF4_BLOCK, NF4_SCALE_BLOCK = 64, 256
"""Weights that share a scale, and scales that share one of their own."""
PIECE = 1 << 18
"""Weights that are packed at once: the kernels take some 16 bytes each for a moment, unseen."""


class Nf4Weight(nn.Module):
    """A weight of any shape in NF4 with double quantization."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.shape = tuple(weight.shape)
        codes, absmax = _nf4(weight.detach().contiguous().view(-1))
        mean = absmax.mean()
        scales, state = _bnb().quantize_blockwise(absmax - mean, blocksize=NF4_SCALE_BLOCK)
        self.codes = nn.Buffer(codes)
        """Two weights a byte, the first in the upper half."""
        self.scales = nn.Buffer(scales)
        self.scale_scales = nn.Buffer(state.absmax)
        self.scale_table = nn.Buffer(state.code)
        self.mean_scale = nn.Buffer(mean)

    def whole(self, dtype: torch.dtype) -> Tensor:
        """The weight unpacked, in `dtype`."""
        size = self.codes.numel() * 2
        scales = torch.ops.bitsandbytes.dequantize_blockwise(
            self.scales, self.scale_scales, self.scale_table, NF4_SCALE_BLOCK, torch.float32
        )
        scales += self.mean_scale
        flat = torch.ops.bitsandbytes.dequantize_4bit(
            self.codes, scales, NF4_BLOCK, "nf4", (1, size), dtype
        )
        count = torch.Size(self.shape).numel()
        unpacked: Tensor = flat.view(-1)[:count].view(self.shape)
        return unpacked


class Int8Weight(nn.Module):
    """A matrix (outputs, inputs) in 8 bits, with one float32 scale a row."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.shape = tuple(weight.shape)
        codes = torch.empty(self.shape, dtype=torch.int8, device=weight.device)
        largest = torch.empty(self.shape[0], dtype=torch.float32, device=weight.device)
        rows = max(1, PIECE // self.shape[1])
        for start in range(0, self.shape[0], rows):
            piece = weight[start : start + rows].to(torch.float16).contiguous()
            packed, scales, _ = _bnb().int8_vectorwise_quant(piece)
            codes[start : start + rows], largest[start : start + rows] = packed, scales
        if not bool(torch.isfinite(largest).all()):
            raise SwarmError(
                "invalid-input",
                "a weight is larger than 65504, which int8 cannot hold",
                hint="use model.quantization none, or 4 bits",
            )
        self.codes = nn.Buffer(codes)
        self.largest = nn.Buffer(largest)
        """Of each row: what the code 127 stands for."""

    def whole(self, dtype: torch.dtype) -> Tensor:
        """The weight unpacked, in `dtype`."""
        return self.codes.to(dtype, copy=True).mul_(self.largest.unsqueeze(1).mul(1.0 / 127.0))


PackedWeight = Nf4Weight | Int8Weight


def pack(weight: Tensor, kind: Narrow) -> PackedWeight:
    """Store a weight in fewer bits, on the device where it lies.

    Raises:
        SwarmError: invalid-input; int8 cannot hold a value.
    """
    return Nf4Weight(weight) if kind == "nf4" else Int8Weight(weight)


class PackedLinear(nn.Linear):
    """A frozen projection whose weight is packed. An adapter goes on it as on any other."""

    def __init__(self, packed: PackedWeight, bias: nn.Parameter | None) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = packed.shape
        self.packed = packed
        self.bias = bias  # type: ignore[assignment]  # frozen, or None

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The codes: who asks for a weight here wants to know its device."""
        return self.packed.codes

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's own name
        """(..., inputs) -> (..., outputs) in the input's format; the gradient passes through."""
        product: Tensor = _Product.apply(input, self.packed, self.bias)  # type: ignore[no-untyped-call]
        return product


class _Product(torch.autograd.Function):
    """input @ weight.T + bias with a packed weight, which is unpacked again in backward."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, packed: PackedWeight, bias: Tensor | None) -> Tensor:
        ctx.packed = packed
        return functional.linear(rows, packed.whole(rows.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad,) = grads
        return grad @ ctx.packed.whole(grad.dtype), None, None


def pack_experts(experts: nn.Module, name: str, packed: PackedWeight, dtype: torch.dtype) -> None:
    """Let a mixture's experts unpack one of their fused weights each time they ask for it.

    What they compute with it keeps the unpacked tensor for backward, of every layer: such blocks
    must be recomputed.
    """
    delattr(experts, name)
    if not isinstance(experts, PackedExperts):
        experts.__class__ = type(type(experts).__name__, (PackedExperts, type(experts)), {})
    experts.add_module(f"packed_{name}", packed)
    experts.packed_dtype = dtype  # type: ignore[assignment]


class PackedExperts(nn.Module):
    """What a family's class of fused experts becomes when these are packed."""

    packed_dtype: torch.dtype

    @property
    def gate_up_proj(self) -> Tensor:
        """(experts, ...) unpacked."""
        return self._whole("gate_up_proj")

    @property
    def down_proj(self) -> Tensor:
        """(experts, ...) unpacked."""
        return self._whole("down_proj")

    def _whole(self, name: str) -> Tensor:
        packed = self._modules[f"packed_{name}"]
        assert isinstance(packed, Nf4Weight)
        return packed.whole(self.packed_dtype)


def _nf4(flat: Tensor) -> tuple[Tensor, Tensor]:
    """(codes, float32 scale of each block) of a flat weight."""
    codes = torch.empty((flat.numel() + 1) // 2, dtype=torch.uint8, device=flat.device)
    blocks = -(-flat.numel() // NF4_BLOCK)
    absmax = torch.empty(blocks, dtype=torch.float32, device=flat.device)
    for start in range(0, flat.numel(), PIECE):
        piece = flat[start : start + PIECE]
        packed, scales = torch.ops.bitsandbytes.quantize_4bit(piece, NF4_BLOCK, "nf4", torch.uint8)
        codes[start // 2 : start // 2 + packed.numel()] = packed.view(-1)
        absmax[start // NF4_BLOCK : start // NF4_BLOCK + scales.numel()] = scales
    return codes, absmax


def _bnb() -> Any:
    # Late: importing it costs a second, and says on the way that a package is missing.
    from bitsandbytes import functional as bnb  # noqa: PLC0415

    return bnb
