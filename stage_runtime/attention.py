"""Attention that never makes whole scores: the fused kernel is chosen by card and mask, or refused.

PyTorch's scaled_dot_product_attention falls back, silently, to a path that keeps every score (as
many as tokens squared, for each head) where its fused kernels do not take a call as it is: the
memory-efficient one, on CUDA before Ampere, in float32 and with a mask, refuses key-value heads
that several query heads share. Here such heads are repeated first, and the slow path is closed.
Families that no fused kernel computes (softcap, sinks) keep their own attention and are priced so.
"""

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from transport.errors import SwarmError

NAME: Final = "swarm_fused"
"""Under which transformers knows it."""
FLASH_HEAD_SIZE: Final = 256
FLASH_CAPABILITY: Final = (8, 0)
_FUSED: Final = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
)


@dataclass(frozen=True)
class Call:
    """What decides which kernel computes."""

    kind: str
    """Of the device: "cpu", "cuda", ..."""
    capability: tuple[int, int]
    """Of a CUDA card; (0, 0) elsewhere."""
    dtype: torch.dtype
    head_size: int
    has_mask: bool


@dataclass(frozen=True)
class Choice:
    """How a call is made."""

    shares_heads: bool
    """The kernel takes shared key-value heads as they are; else they are repeated."""
    kernels: tuple[SDPBackend, ...]
    """Those that may compute it; empty = PyTorch's choice, on devices without a list of ours."""


def choose(call: Call) -> Choice:
    """Flash shares heads, without a mask; what is left goes to the memory-efficient kernel."""
    if call.kind == "cpu":
        return Choice(not call.has_mask, (SDPBackend.FLASH_ATTENTION,))
    if call.kind != "cuda":
        return Choice(shares_heads=False, kernels=())
    flash = (
        not call.has_mask
        and call.capability >= FLASH_CAPABILITY
        and call.dtype in (torch.float16, torch.bfloat16)
        and call.head_size <= FLASH_HEAD_SIZE
    )
    return Choice(flash, _FUSED)


def register() -> None:
    """Make transformers know this attention, and give it the masks that it gives its own."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def attend(  # noqa: PLR0913 - what transformers hands over
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """(B, heads, T, D) and (B, key-value heads, T, D) -> (B, T, heads, D).

    Raises:
        SwarmError: stage-failed; no fused kernel of this card takes the call.
    """
    choice = choose(_call(query, attention_mask))
    is_shared = key.shape[1] != query.shape[1]
    if is_shared and not choice.shares_heads:
        key, value = _repeated(key, query.shape[1]), _repeated(value, query.shape[1])
    causal = attention_mask is None and query.shape[2] > 1 and getattr(module, "is_causal", True)
    told: dict[str, Any] = {"attn_mask": attention_mask, "dropout_p": dropout, "scale": scaling}
    told |= {"is_causal": causal, "enable_gqa": is_shared and choice.shares_heads}
    if not choice.kernels:
        out = functional.scaled_dot_product_attention(query, key, value, **told)
    else:
        out = _fused(query, key, value, told, choice)
    return out.transpose(1, 2).contiguous(), None


def _call(query: Tensor, mask: Tensor | None) -> Call:
    cuda = query.device.type == "cuda"
    capability = torch.cuda.get_device_capability(query.device) if cuda else (0, 0)
    dtype = query.dtype
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
    return Call(query.device.type, capability, dtype, query.shape[-1], mask is not None)


def _fused(query: Tensor, key: Tensor, value: Tensor, told: dict[str, Any], how: Choice) -> Tensor:
    try:
        with sdpa_kernel(list(how.kernels)):
            out: Tensor = functional.scaled_dot_product_attention(query, key, value, **told)
    except RuntimeError as error:
        if "kernel" not in str(error).lower():
            raise
        raise SwarmError(
            "stage-failed",
            f"no attention kernel of this card ({query.device.type}) works without keeping all "
            f"scores for heads of {query.shape[-1]} in {str(query.dtype).removeprefix('torch.')}",
            hint="choose another model.dtype, or leave this card out",
        ) from error
    return out


def _repeated(shared: Tensor, heads: int) -> Tensor:
    """Each key-value head once for every query head that reads it, in order."""
    rows, count, tokens, size = shared.shape
    wide = shared[:, :, None].expand(rows, count, heads // count, tokens, size)
    return wide.reshape(rows, heads, tokens, size)
