"""Codes of 8 and 4 bits with a scale a token: near, exact in size, honest about what is none."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stage_runtime.codecs.scaled import ScaledCodec, scale_up
from stage_runtime.codecs.sizes import CHUNK_ROWS

BITS = st.sampled_from([8, 4])


def through(codec: ScaledCodec, rows: torch.Tensor) -> torch.Tensor:
    arrived = torch.empty_like(rows)
    codec.decode(codec.encode(rows), arrived)
    return arrived


@given(bits=BITS, width=st.integers(1, 33), seed=st.integers(0, 999), power=st.integers(-30, 30))
@settings(max_examples=60, deadline=None)
def test_every_value_arrives_within_half_a_step_of_its_token_s_scale(
    bits: int, width: int, seed: int, power: int
) -> None:
    codec = ScaledCodec(width, bits)  # type: ignore[arg-type]
    rows = torch.randn(5, width, generator=torch.Generator().manual_seed(seed)) * 10.0**power
    codes = codec.encode(rows)
    assert codes.shape == (5, 2 + math.ceil(width * bits / 8))
    assert codes.dtype == torch.uint8
    # The scale is rounded up to bfloat16: by one part in 128 at most.
    step = rows.abs().amax(-1, keepdim=True) / codec.top * (1 + 2**-7)
    assert bool(((through(codec, rows) - rows).abs() <= 0.5001 * step).all())


@given(value=st.floats(0, 2.0**127, width=32, allow_subnormal=False))
def test_a_scale_is_rounded_up_and_never_by_more_than_one_in_128(value: float) -> None:
    given_ = torch.tensor([[value]])
    scale = scale_up(given_)
    assert bool(scale >= given_)
    assert bool(scale <= given_ * (1 + 2**-7) + 2e-38) or bool(torch.isinf(scale))
    assert torch.equal(scale.to(torch.bfloat16).float(), scale)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_token_that_is_not_finite_stays_so_and_spoils_no_other(
    bits: int, dtype: torch.dtype
) -> None:
    rows = torch.ones(4, 6, dtype=dtype)
    rows[1, 2], rows[2, 0], rows[3] = math.nan, math.inf, 0.0
    arrived = through(ScaledCodec(6, bits), rows)  # type: ignore[arg-type]
    assert torch.equal(arrived.isfinite().all(-1), torch.tensor([True, False, False, True]))
    assert not arrived[3].any()


def test_the_largest_numbers_of_float16_do_not_turn_into_infinities() -> None:
    rows = torch.full((1, 3), 65504.0, dtype=torch.float16)
    assert bool(through(ScaledCodec(3, 8), rows).isfinite().all())


@pytest.mark.parametrize("bits", [8, 4])
def test_a_token_s_codes_do_not_depend_on_the_tokens_beside_it(bits: int) -> None:
    codec = ScaledCodec(7, bits)  # type: ignore[arg-type]
    rows = torch.randn(CHUNK_ROWS + 3, 7)
    whole = codec.encode(rows)
    assert torch.equal(whole, torch.cat([codec.encode(row) for row in rows.split(50)]))  # type: ignore[no-untyped-call]


def test_one_channel_beyond_all_others_costs_its_own_token_only() -> None:
    """What one scale for the whole tensor loses: an outlier token takes all others' steps."""
    rows = torch.randn(64, 32)
    rows[0, 5] = 1000.0
    codec = ScaledCodec(32, 8)
    error = (through(codec, rows) - rows)[1:].square().mean()
    whole_step = rows.abs().max() / 127
    spoiled = ((rows / whole_step).round() * whole_step - rows)[1:].square().mean()
    assert float(error) < 1e-3 < 0.5 < float(spoiled)
