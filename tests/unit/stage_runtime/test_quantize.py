"""Packed weights hold bitsandbytes' own codes, in any shape, and gradients pass through them."""

import bitsandbytes as bnb
import pytest
import torch
from torch import Tensor, nn

from stage_runtime.quantize import PIECE, Int8Weight, Narrow, Nf4Weight, PackedLinear, pack
from transport.errors import SwarmError

KINDS: list[Narrow] = ["nf4", "int8"]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# Rows of whole blocks, rows that are not, odd ones, fewer weights than a block; more than a piece.
SHAPES = [(64, 128), (72, 96), (3, 22), (5, 7), (1, 130), (33, 65), (513, 1024)]


def a_weight(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def by_hand(packed: Nf4Weight) -> Tensor:
    """NF4 undone by its definition: level x scale, 64 weights a scale, whatever the rows are."""
    scales = packed.scale_table[packed.scales.long()]
    scales = scales * packed.scale_scales.repeat_interleave(256)[: scales.numel()]
    scales += packed.mean_scale
    halves = torch.stack([packed.codes >> 4, packed.codes & 15], 1).view(-1).long()
    levels: Tensor = bnb.functional.get_4bit_type("nf4", "cpu")[halves]
    count = torch.Size(packed.shape).numel()
    flat = levels[:count] * scales.repeat_interleave(64)[:count]
    return flat.view(packed.shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_weight_of_any_width_is_undone_as_its_codes_and_scales_say(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    weight = a_weight(shape, dtype)
    packed = Nf4Weight(weight)
    assert torch.equal(packed.whole(dtype), by_hand(packed).to(dtype))
    off = (packed.whole(torch.float32) - weight.float()).norm() / weight.float().norm()
    assert off < 0.12  # a normal distribution in NF4: 9 %


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, (4, 6, 64)], ids=str)
def test_the_codes_are_those_of_bitsandbytes(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    weight = a_weight(shape, dtype)
    packed = Nf4Weight(weight)
    codes, state = bnb.functional.quantize_4bit(
        weight, quant_type="nf4", compress_statistics=True, blocksize=64
    )
    assert torch.equal(packed.codes, codes.view(-1))
    assert torch.equal(packed.scales, state.absmax)
    assert torch.equal(packed.scale_scales, state.state2.absmax)
    assert torch.equal(packed.mean_scale, state.offset)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_int8_holds_the_codes_of_bitsandbytes(shape: tuple[int, int]) -> None:
    weight = a_weight(shape, torch.bfloat16)
    codes, largest, _ = bnb.functional.int8_vectorwise_quant(weight.to(torch.float16))
    packed = Int8Weight(weight)
    assert torch.equal(packed.codes, codes)
    assert torch.equal(packed.largest, largest)
    assert (packed.whole(torch.float32) - weight.float()).abs().max() <= largest.max() / 250


def test_large_weights_are_packed_in_pieces() -> None:
    """What the packing kernel takes for a moment stays small, however large a weight is."""
    assert 2 * PIECE < 513 * 1024
    assert PIECE % 64 == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(72, 96), (64, 128)], ids=str)
def test_a_product_and_its_gradient_are_those_of_the_unpacked_weight(
    kind: Narrow, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    packed = pack(a_weight(shape, dtype), kind)
    bias = nn.Parameter(torch.ones(shape[0], dtype=dtype), requires_grad=False)
    layer = PackedLinear(packed, bias)
    assert (layer.in_features, layer.out_features) == (shape[1], shape[0])
    rows = a_weight((2, 3, shape[1]), dtype).requires_grad_()
    grad = a_weight((2, 3, shape[0]), dtype)

    given = layer(rows)
    (found,) = torch.autograd.grad(given, rows, grad)

    plain = torch.nn.functional.linear(rows, packed.whole(dtype), bias)
    (wanted,) = torch.autograd.grad(plain, rows, grad)
    assert torch.equal(given, plain)
    assert torch.equal(found, wanted)
    assert (given.dtype, found.dtype) == (dtype, dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_computes_as_training_does_and_leaves_the_weight_as_it_was(kind: Narrow) -> None:
    """bitsandbytes' own 4-bit layer repacks itself here, and its gradient is lost for good."""
    layer = PackedLinear(pack(a_weight((64, 128), torch.bfloat16), kind), None)
    rows = a_weight((4, 128), torch.bfloat16)
    trained = layer.train()(rows)
    with torch.no_grad():
        evaluated = layer.eval()(rows)
    assert torch.equal(trained, evaluated)
    again = layer.train()(rows.requires_grad_())
    again.sum().backward()
    assert rows.grad is not None
    assert torch.equal(again, trained)


def test_a_weight_that_int8_cannot_hold_is_refused() -> None:
    with pytest.raises(SwarmError, match="larger than 65504") as refusal:
        Int8Weight(torch.tensor([[1e5, 1.0]]))
    assert refusal.value.code == "invalid-input"
    assert torch.isfinite(Int8Weight(torch.zeros(2, 3)).whole(torch.float32)).all()
    assert torch.isfinite(Nf4Weight(torch.zeros(2, 3)).whole(torch.float32)).all()
