"""The factor that keeps float16 gradients in range."""

import pytest

from stage_runtime.loss_scale import FIRST, GROW_AFTER, LEAST, MOST, LossScale
from transport.errors import SwarmError


def test_only_float16_is_scaled() -> None:
    assert LossScale.of("float16").value == FIRST
    for dtype in ("float32", "bfloat16"):
        scale = LossScale.of(dtype)
        scale.took(overflowed=True)
        assert scale.value == 1.0


def test_an_overflow_halves_the_factor_and_many_good_steps_double_it_up_to_a_limit() -> None:
    scale = LossScale.of("float16")
    scale.took(overflowed=True)
    assert scale.value == FIRST / 2
    for _ in range(GROW_AFTER - 1):
        scale.took(overflowed=False)
    assert scale.value == FIRST / 2
    scale.took(overflowed=False)
    assert scale.value == FIRST
    for _ in range(20 * GROW_AFTER):
        scale.took(overflowed=False)
    assert scale.value == MOST


def test_an_overflow_starts_the_count_of_good_steps_again() -> None:
    scale = LossScale.of("float16")
    for _ in range(GROW_AFTER - 1):
        scale.took(overflowed=False)
    scale.took(overflowed=True)
    scale.took(overflowed=False)
    assert scale.value == FIRST / 2


def test_gradients_that_overflow_at_any_factor_stop_the_run_with_what_to_do() -> None:
    scale = LossScale.of("float16")
    while scale.value > LEAST:
        scale.took(overflowed=True)
    with pytest.raises(SwarmError, match="overflow float16") as stopped:
        scale.took(overflowed=True)
    assert "bfloat16" in stopped.value.hint


def test_a_saved_factor_goes_on_with_its_count_and_other_formats_keep_none() -> None:
    scale = LossScale.of("float16")
    scale.took(overflowed=True)
    scale.took(overflowed=False)
    later = LossScale.of("float16")
    later.go_on(scale.told())
    assert later == scale
    later.go_on("")  # saved before the factor was kept
    assert later == scale
    wide = LossScale.of("float32")
    assert wide.told() == ""
    wide.go_on("4.0 1")
    assert wide == LossScale.of("float32")


@pytest.mark.parametrize("told", ["nan 1", "0.0 3", "1e99 3", "2.0", "2.0 x", "-4.0 1", "1e-- 2"])
def test_what_is_no_factor_is_refused(told: str) -> None:
    with pytest.raises(SwarmError) as refusal:
        LossScale.of("float16").go_on(told)
    assert refusal.value.code == "invalid-input"
