"""Learning rate, norms and clip."""

import math

import pytest
import torch
from torch import nn

from stage_runtime.optim import (
    adamw,
    clip_share,
    learning_rate,
    scale_gradients,
    set_rate,
    squared_norm,
)
from tests.oracle.settings import some_settings


def rates(**changes: object) -> list[float]:
    settings = some_settings(learning_rate=1.0, **changes)
    return [learning_rate(settings, step) for step in range(1, settings.steps + 1)]


def test_warm_up_rises_in_even_steps_and_cosine_ends_at_a_tenth() -> None:
    found = rates(steps=10, warmup_steps=4, lr_schedule="cosine")
    assert found[:4] == [0.25, 0.5, 0.75, 1.0]
    assert found[4:] == sorted(found[4:], reverse=True)
    assert found[6] == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 2)))
    assert found[-1] == pytest.approx(0.1)


def test_a_constant_rate_without_warm_up_never_changes() -> None:
    assert rates(steps=5, warmup_steps=0, lr_schedule="constant") == [1.0] * 5


def test_warm_up_as_long_as_the_run_only_rises() -> None:
    assert rates(steps=4, warmup_steps=4, lr_schedule="cosine") == [0.25, 0.5, 0.75, 1.0]


def weights_with_gradients(scale: float = 1.0) -> dict[str, nn.Parameter]:
    torch.manual_seed(0)
    weights = {name: nn.Parameter(torch.randn(5, 3)) for name in "cab"}
    for weight in weights.values():
        weight.grad = torch.randn_like(weight) * scale
    return weights


@pytest.mark.parametrize("limit", [0.1, 100.0])
def test_clipping_by_the_norm_equals_torchs_own(limit: float) -> None:
    ours, theirs = weights_with_gradients(), weights_with_gradients()
    norm = math.sqrt(squared_norm(ours))
    told = torch.nn.utils.clip_grad_norm_(theirs.values(), limit)
    scale_gradients(ours.values(), clip_share(norm, limit))
    assert norm == pytest.approx(float(told), rel=1e-6)
    for name, weight in ours.items():
        assert weight.grad is not None
        torch.testing.assert_close(weight.grad, theirs[name].grad)


def test_no_limit_means_no_clip() -> None:
    assert clip_share(1e9, 0.0) == 1.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_one_gradient_that_is_no_number_shows_in_the_norm(bad: float) -> None:
    weights = weights_with_gradients()
    grad = weights["b"].grad
    assert grad is not None
    grad[2, 1] = bad
    assert not math.isfinite(squared_norm(weights))


def test_an_update_equals_torchs_adamw_without_decay_and_moments_are_float32() -> None:
    ours, theirs = weights_with_gradients(), weights_with_gradients()
    optimizer = adamw(ours, torch.device("cpu"))
    reference = torch.optim.AdamW(theirs.values(), lr=0.01, eps=1e-8, weight_decay=0.0)
    for _ in range(3):
        set_rate(optimizer, 0.01)
        optimizer.step()
        reference.step()
    for name, weight in ours.items():
        torch.testing.assert_close(weight, theirs[name])
        assert optimizer.state[weight]["exp_avg"].dtype == torch.float32
