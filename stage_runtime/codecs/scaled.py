"""Codes of 8 or 4 bits with one scale a token: the largest value of that token.

Tokens are coded one by one, so micro-batches and splits change nothing. A token that is not finite
stays so: its scale says it.
"""

# N = tokens, W = values of a token, R = bytes of a token on the link

from collections.abc import Iterator
from typing import Literal, Protocol

import torch
from torch import Tensor

from stage_runtime.codecs.sizes import CHUNK_ROWS, SCALE_BYTES, fixed_row_bytes


class Codec(Protocol):
    """Tokens to bytes and back. Both ends of a link hold the same one."""

    @property
    def row_bytes(self) -> int:
        """R."""

    def encode(self, rows_NW: Tensor) -> Tensor:
        """uint8 (N, R), on the rows' device."""

    def decode(self, codes_NR: Tensor, into_NW: Tensor) -> None:
        """Fill `into_NW`, in its own dtype; codes on its device."""


class ScaledCodec:
    """int8 codes, or two int4 codes a byte; -127..127 or -7..7 times the token's scale."""

    def __init__(self, width: int, bits: Literal[4, 8]) -> None:
        self.width, self.bits = width, bits
        self.top = 2 ** (bits - 1) - 1

    @property
    def row_bytes(self) -> int:
        """Scale and codes."""
        return fixed_row_bytes(self.width, self.bits)

    def encode(self, rows_NW: Tensor) -> Tensor:
        """uint8 (N, R)."""
        codes_NR = rows_NW.new_empty((len(rows_NW), self.row_bytes), dtype=torch.uint8)
        for rows in chunks(len(rows_NW)):
            values_NW = rows_NW[rows].float()
            scale_N1 = scale_up(values_NW.abs().amax(-1, keepdim=True) / self.top)
            codes_NW = (values_NW / scale_N1).nan_to_num_(0.0).round_()
            codes_NW = codes_NW.clamp_(-self.top, self.top).to(torch.int8)
            codes_NR[rows, :SCALE_BYTES] = scale_bytes(scale_N1)
            codes_NR[rows, SCALE_BYTES:] = (
                codes_NW.view(torch.uint8) if self.bits == 8 else pack_pairs(codes_NW)
            )
        return codes_NR

    def decode(self, codes_NR: Tensor, into_NW: Tensor) -> None:
        """Codes times scale."""
        for rows in chunks(len(codes_NR)):
            scale_N1 = read_scale(codes_NR[rows, :SCALE_BYTES])
            packed = codes_NR[rows, SCALE_BYTES:]
            codes_NW = (
                packed.view(torch.int8) if self.bits == 8 else unpack_pairs(packed, self.width)
            )
            into_NW[rows] = fitted(codes_NW.float() * scale_N1, into_NW.dtype)


def chunks(count: int, size: int = CHUNK_ROWS) -> Iterator[slice]:
    """Slices of so many rows."""
    return (slice(start, start + size) for start in range(0, count, size))


def scale_up(scale_N1: Tensor) -> Tensor:
    """The next bfloat16 at or above a float32 that is not negative; NaN and inf stay."""
    bits = (scale_N1.view(torch.int32) + 0xFFFF) & -0x10000
    return bits.view(torch.float32)


def scale_bytes(scale_N1: Tensor) -> Tensor:
    """(N, 2) uint8 of values that are bfloat16 already."""
    return scale_N1.to(torch.bfloat16).view(torch.uint8)


def read_scale(bytes_N2: Tensor) -> Tensor:
    """float32 (N, 1)."""
    return bytes_N2.reshape(-1).clone().view(torch.bfloat16)[:, None].float()


def pack_pairs(codes_NW: Tensor) -> Tensor:
    """Two codes of 4 bits (-8..7) a byte, the first in the lower half; an odd last one alone."""
    raised = (codes_NW + 8).view(torch.uint8)
    if raised.shape[1] % 2:
        raised = torch.nn.functional.pad(raised, (0, 1))
    return raised[:, ::2] | (raised[:, 1::2] << 4)


def unpack_pairs(packed: Tensor, width: int) -> Tensor:
    """int8 (N, W)."""
    both = torch.stack((packed & 15, packed >> 4), dim=-1)
    return both.reshape(len(packed), -1)[:, :width].view(torch.int8) - 8


def fitted(values_NW: Tensor, dtype: torch.dtype) -> Tensor:
    """Values that the format holds: rounding up must not make an infinity in float16."""
    if dtype != torch.float16:
        return values_NW
    most = torch.finfo(dtype).max
    return values_NW.clamp_(-most, most)
