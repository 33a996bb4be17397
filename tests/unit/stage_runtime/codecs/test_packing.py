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
    codes = torch.cat([torch.randint(2**width, (3, 8), generator=draw) for width in bits], dim=1)
    values = codes.float()
    packed = torch.zeros((3, sum(bits)), dtype=torch.uint8)  # eight codes of b bits are b bytes
    pack(values, bits, packed)
    again = torch.zeros_like(values)
    unpack(packed, bits, again)
    assert torch.equal(again, values)


def test_the_bits_lie_as_they_are_told() -> None:
    packed = torch.zeros((1, 4), dtype=torch.uint8)
    pack(torch.tensor([[1.0, 0, 1, 1, 0, 0, 0, 1, 7, 0, 0, 0, 0, 0, 0, 4]]), [1, 3], packed)
    # 1 bit each; then the lower two bits of four codes a byte, and the third of all eight
    assert packed.tolist() == [[0b10001101, 0b00000011, 0, 0b10000001]]
