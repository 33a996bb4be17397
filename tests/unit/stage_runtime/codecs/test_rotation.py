"""A rotation: calibrated on what crosses, packed to the plan's bytes, near, the same every time."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from stage_runtime.codecs.basis import NAMES, Basis, Seen, empty_basis, fit
from stage_runtime.codecs.rotation import RotationCodec
from stage_runtime.codecs.scaled import ScaledCodec
from stage_runtime.codecs.sizes import BoundarySizes, rotation_row_bytes
from transport.errors import SwarmError
from transport.orders import CompressionSettings

CPU = torch.device("cpu")
HIDDEN = 48


def rows(count: int, hidden: int = HIDDEN, seed: int = 0) -> Tensor:
    """Tokens as models have them: few strong directions, a mean, and one huge channel now and
    then.
    """
    draw = torch.Generator().manual_seed(seed)
    strength = 0.9 ** torch.arange(hidden)
    turned: Tensor = torch.linalg.qr(torch.randn(hidden, hidden, generator=draw)).Q
    draw.manual_seed(seed + 1000 * count)
    values: Tensor = torch.randn(count, hidden, generator=draw) * strength @ turned.T + 0.3
    values[::50, 5] += 300.0
    return values


def seen_of(*parts: Tensor, is_centred: bool = True) -> Seen:
    seen = Seen(parts[0].shape[-1], is_centred)
    for part in parts:
        seen.add(part)
    return seen


def codec_of(basis: Basis, bits: int) -> RotationCodec:
    return RotationCodec(basis, rotation_row_bytes(len(basis.mean), bits), CPU)


def through(codec: RotationCodec | ScaledCodec, values: Tensor) -> Tensor:
    arrived = torch.empty_like(values)
    codec.decode(codec.encode(values), arrived)
    return arrived


def error_of(codec: RotationCodec | ScaledCodec, values: Tensor) -> float:
    """Mean over tokens of the squared error beside the token's own size."""
    apart = (through(codec, values) - values).square().sum(-1)
    return float((apart / values.square().sum(-1)).mean())


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("hidden", [48, 45])
def test_every_byte_of_the_plan_is_used_and_none_more(bits: int, hidden: int) -> None:
    basis = fit(seen_of(rows(2000, hidden)), bits)
    codec = codec_of(basis, bits)
    planned = BoundarySizes(CompressionSettings(kind="rotation", bits=bits), hidden).row_bytes(2)
    assert codec.row_bytes == planned == hidden * bits // 8
    assert 2 + int(basis.bits.sum()) == planned  # two bytes of scale; b bytes for b bits of eight
    assert codec.encode(rows(7, hidden)).shape == (7, planned)


def test_at_equal_bytes_a_rotation_errs_far_less_than_codes_with_one_scale() -> None:
    codec = codec_of(fit(seen_of(rows(4000)), 4), 4)
    fresh = rows(500)
    assert error_of(codec, fresh) < 0.3 * error_of(ScaledCodec(HIDDEN, 4), fresh)


def test_channels_beyond_all_others_cost_a_rotation_nothing_and_one_scale_everything() -> None:
    """Four channels stand at a thousand times the others in every token. What counts is what comes
    of the others, which is all that a model's norm lets through of them.
    """
    draw = torch.Generator().manual_seed(4)
    values = rows(4000)[torch.randperm(4000, generator=draw)] - 0.3
    planted = values.clone()
    channels = torch.tensor([3, 11, 29, 40])
    planted[:, channels] += 1000.0 * values.abs().median() * torch.tensor([1.0, -1.0, 2.0, 3.0])
    others = torch.ones(HIDDEN, dtype=torch.bool)
    others[channels] = False
    fresh = planted[-500:]

    def lost(arrived: Tensor) -> float:
        apart = (arrived - fresh)[:, others].square().sum(-1)
        return float((apart / fresh[:, others].square().sum(-1)).mean())

    step = fresh.abs().max() / 127
    whole_tensor = (fresh / step).round() * step
    assert lost(whole_tensor) > 0.9
    assert lost(through(ScaledCodec(HIDDEN, 8), fresh)) > 0.5
    assert lost(through(codec_of(fit(seen_of(planted[:3500]), 4), 4), fresh)) < 0.05


def test_an_eighth_errs_more_than_a_quarter_and_a_half_less() -> None:
    fresh = rows(500)
    errors = [error_of(codec_of(fit(seen_of(rows(4000)), b), b), fresh) for b in (2, 4, 8)]
    assert errors[0] > 4 * errors[1] > 16 * errors[2]


def test_the_same_rows_give_the_same_basis_to_the_bit_however_they_are_cut() -> None:
    one = fit(seen_of(rows(1536)), 4)
    other = fit(seen_of(*rows(1536).split(512)), 4)  # type: ignore[no-untyped-call]
    assert all(torch.equal(a, b) for a, b in zip(one.tensors(), other.tensors()))


def test_a_basis_survives_its_codec_and_a_file_to_the_bit() -> None:
    basis = fit(seen_of(rows(1000)), 4)
    told = codec_of(basis, 4).basis().named("boundary.3.forward.")
    again = Basis.of(told, "boundary.3.forward.", HIDDEN)
    assert again is not None
    assert all(torch.equal(a, b) for a, b in zip(basis.tensors(), again.tensors()))
    assert Basis.of(told, "boundary.4.forward.", HIDDEN) is None
    assert (
        sum(t.nbytes for t in basis.tensors())
        == BoundarySizes(CompressionSettings(kind="rotation", bits=4), HIDDEN).basis_bytes
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_basis_of_another_shape_is_refused(name: str) -> None:
    told = empty_basis(HIDDEN).named("b.")
    told[f"b.{name}"] = told[f"b.{name}"][:-1]
    with pytest.raises(SwarmError) as refusal:
        Basis.of(told, "b.", HIDDEN)
    assert refusal.value.code == "invalid-input"


def test_gradients_that_are_zero_arrive_as_zero_and_others_keep_their_size() -> None:
    values = rows(1000) * 1e-6
    values[100:400] = 0.0  # padding has no gradient
    codec = codec_of(fit(seen_of(values, is_centred=False), 4), 4)
    arrived = through(codec, values)
    assert not arrived[100:400].any()
    assert error_of(codec, values[:100]) < 0.02
    assert error_of(codec, values[:100] * 1e4) < 0.02  # the scale follows, whatever was calibrated


def test_a_token_that_is_not_finite_stays_so_and_spoils_no_other() -> None:
    codec = codec_of(fit(seen_of(rows(1000)), 4), 4)
    values = rows(3)
    values[1, 2], values[2, 0] = math.nan, math.inf
    finite = through(codec, values).isfinite().all(-1)
    assert finite.tolist() == [True, False, False]


def test_directions_that_calibration_never_saw_still_cross() -> None:
    """Fewer rows than the width: the rows held back say how much lies outside."""
    few = fit(seen_of(torch.randn(40, 64)), 4)
    assert error_of(codec_of(few, 4), torch.randn(200, 64)) < 0.3


def test_a_value_that_is_not_finite_stops_a_calibration() -> None:
    values = rows(10)
    values[3, 1] = math.inf
    with pytest.raises(SwarmError) as refusal:
        seen_of(values)
    assert refusal.value.code == "stage-failed"


def test_too_few_tokens_are_refused_with_their_number() -> None:
    with pytest.raises(SwarmError, match="gives 1 tokens") as refusal:
        fit(seen_of(rows(1)), 4)
    assert refusal.value.code == "invalid-input"


@pytest.mark.parametrize(
    "change",
    [
        {"bits": torch.full((6,), 12, dtype=torch.uint8)},
        {"bits": torch.tensor([1, 2, 0, 0, 0, 0], dtype=torch.uint8)},
        {"bits": torch.tensor([16, 0, 0, 0, 0, 0], dtype=torch.uint8)},
        {"spread": torch.zeros(48)},
        {"step": torch.full((48,), math.nan)},
        {"mean": torch.full((48,), math.inf)},
    ],
    ids=["too many", "not falling", "too wide", "no spread", "no step", "no mean"],
)
def test_a_neighbours_basis_that_no_calibration_gives_is_refused(change: dict[str, Tensor]) -> None:
    basis = fit(seen_of(rows(1000)), 4)
    basis.check(24)
    with pytest.raises(SwarmError) as refusal:
        replace(basis, **change).check(24)
    assert refusal.value.code == "stage-failed"
