"""Codes of any width from 1 to 16 bits, packed to the bit: eight neighbours of b bits are b bytes.

A code is cut into pieces of 8, 4, 2 and 1 bits, the lowest first; pieces of one width of eight
neighbours fill whole bytes, the first neighbour lowest. Everything works on bytes: that is eight
times less to move than words. Groups with the same bits lie side by side.
"""

# N = tokens, G = groups of eight components, R = bytes of a token

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

from stage_runtime.codecs.sizes import GROUP


def runs(bits_G: Sequence[int]) -> Iterator[tuple[slice, int]]:
    """(components, bits) of each stretch of groups with the same bits; those without left out."""
    start = 0
    for bits, same in groupby(bits_G):
        end = start + GROUP * len(list(same))
        if bits:
            yield slice(start, end), bits
        start = end


def pack(values_NP: Tensor, bits_G: Sequence[int], out_NR: Tensor) -> None:
    """Fill uint8 (N, R) with the codes' bits and nothing else; R is the sum of bits_G.

    values_NP: whole numbers from 0 on, each below 2 to the power of its group's bits, in any
        format.
    """
    place = 0
    for components, bits in runs(bits_G):
        codes = values_NP[:, components].to(torch.uint8 if bits <= 8 else torch.int32)
        for width, piece in _pieces(codes, bits):
            packed = _pack(piece, width)
            out_NR[:, place : place + packed.shape[1]] = packed
            place += packed.shape[1]


def unpack(packed_NR: Tensor, bits_G: Sequence[int], out_NP: Tensor) -> None:
    """Fill in the codes as numbers of out's format; those without bits stay as they are."""
    place = 0
    for components, bits in runs(bits_G):
        count = components.stop - components.start
        codes, shift = None, 0
        for width in _widths(bits):
            end = place + count * width // 8
            piece = _unpack(packed_NR[:, place:end], width)
            if bits > 8:
                piece = piece.to(torch.int32)
            codes = piece if codes is None else codes | (piece << shift)
            place, shift = end, shift + width
        assert codes is not None
        out_NP[:, components] = codes.to(out_NP.dtype)


def _widths(bits: int) -> list[int]:
    """The pieces of a code, the lowest first: 13 = 8 + 4 + 1."""
    return [8] * (bits // 8) + [width for width in (4, 2, 1) if bits & width]


def _pieces(codes: Tensor, bits: int) -> Iterator[tuple[int, Tensor]]:
    shift = 0
    for width in _widths(bits):
        piece = codes >> shift if shift else codes
        if shift + width < bits:
            piece = piece & ((1 << width) - 1)
        yield width, piece.to(torch.uint8)
        shift += width


def _pack(piece: Tensor, width: int) -> Tensor:
    """8 / width neighbours a byte."""
    each = 8 // width
    packed = piece[:, ::each]
    for i in range(1, each):
        packed = packed | (piece[:, i::each] << (i * width))
    return packed


def _unpack(packed: Tensor, width: int) -> Tensor:
    each = 8 // width
    if each == 1:
        return packed
    mask = (1 << width) - 1
    parts = [(packed >> (i * width)) & mask for i in range(each)]
    return torch.stack(parts, dim=-1).flatten(1)
