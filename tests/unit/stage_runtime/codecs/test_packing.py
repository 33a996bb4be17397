"""Codes of any width lie side by side without a bit between them."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stage_runtime.codecs.packing import pack, unpack

WIDTHS = st.lists(st.integers(0, 16), min_size=1, max_size=12).filter(any)


@given(bits=WIDTHS, seed=st.integers(0, 999))
@settings(max_examples=60, deadline=None)
def test_what_is_packed_is_exactly_its_bits_and_comes_back(bits: list[int], seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    codes = torch.stack([torch.randint(2**width, (3, 8), generator=draw) for width in bits], dim=1)
    packed = pack(codes, bits)
    assert packed.shape == (3, sum(bits))  # eight codes of b bits are b bytes
    again = torch.zeros_like(codes)
    unpack(packed, bits, again)
    assert torch.equal(again, codes)


def test_the_bits_lie_as_they_are_told() -> None:
    codes = torch.tensor([[[1, 0, 1, 1, 0, 0, 0, 1]]])
    assert pack(codes, [1]).tolist() == [[0b10001101]]
