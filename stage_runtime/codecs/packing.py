"""Codes of any width from 1 to 16 bits, packed to the bit: eight neighbours of b bits are b bytes.

Groups with the same bits lie side by side, so each width is packed by one shift and one sum.
Little endian, as everything on a link.
"""

# N = tokens, G = groups of eight components, E = 8, R = bytes of a token

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

from stage_runtime.codecs.sizes import GROUP


def runs(bits_G: Sequence[int]) -> Iterator[tuple[slice, int]]:
    """(groups, bits) of each stretch of groups with the same bits; those without any left out."""
    start = 0
    for bits, same in groupby(bits_G):
        count = len(list(same))
        if bits:
            yield slice(start, start + count), bits
        start += count


def pack(codes_NGE: Tensor, bits_G: Sequence[int]) -> Tensor:
    """uint8 (N, R): the codes' bits and nothing else; R is the sum of bits_G.

    codes_NGE: int64, each below 2 to the power of its group's bits.
    """
    parts = [_pack_run(codes_NGE[:, groups], bits) for groups, bits in runs(bits_G)]
    return torch.cat(parts, dim=1)


def _pack_run(codes_NGE: Tensor, bits: int) -> Tensor:
    if bits > 8:
        low, high = codes_NGE & 0xFF, codes_NGE >> 8
        return torch.cat((_pack_run(low, 8), _pack_run(high, bits - 8)), dim=1)
    if bits == 8:
        return codes_NGE.to(torch.uint8).flatten(1)
    words_NG = (codes_NGE << _shifts(bits, codes_NGE.device)).sum(-1)
    bytes_NGE = words_NG.view(torch.uint8).view(*words_NG.shape, GROUP)
    return bytes_NGE[..., :bits].flatten(1)


def unpack(packed_NR: Tensor, bits_G: Sequence[int], out_NGE: Tensor) -> None:
    """Fill int64 codes; those of groups without bits stay as they are."""
    start = 0
    for groups, bits in runs(bits_G):
        count = groups.stop - groups.start
        end = start + count * bits
        out_NGE[:, groups] = _unpack_run(packed_NR[:, start:end], count, bits)
        start = end


def _unpack_run(packed: Tensor, count: int, bits: int) -> Tensor:
    if bits > 8:
        low = _unpack_run(packed[:, : count * 8], count, 8)
        return low | (_unpack_run(packed[:, count * 8 :], count, bits - 8) << 8)
    if bits == 8:
        return packed.reshape(len(packed), count, GROUP).long()
    bytes_NGE = packed.new_zeros((len(packed), count, GROUP))
    bytes_NGE[..., :bits] = packed.view(len(packed), count, bits)
    words_NG1 = bytes_NGE.view(torch.int64)
    return (words_NG1 >> _shifts(bits, packed.device)) & ((1 << bits) - 1)


def _shifts(bits: int, device: torch.device) -> Tensor:
    return torch.arange(GROUP, device=device) * bits
