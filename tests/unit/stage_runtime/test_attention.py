"""Which kernel computes attention, and that none that keeps whole scores ever does."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend

from stage_runtime.attention import Call, attend, choose
from stage_runtime.places import Device
from transport.errors import SwarmError

AMPERE = Call("cuda", (8, 6), torch.bfloat16, 128, has_mask=False)
TURING = replace(AMPERE, capability=(7, 5), dtype=torch.float16)


@pytest.mark.parametrize(
    ("call", "shares"),
    [
        (AMPERE, True),
        (replace(AMPERE, dtype=torch.float32), False),
        (replace(AMPERE, has_mask=True), False),
        (replace(AMPERE, head_size=512), False),
        (TURING, False),
        (Call("cpu", (0, 0), torch.float32, 64, has_mask=False), True),
        (Call("cpu", (0, 0), torch.float32, 64, has_mask=True), False),
        (Call("mps", (0, 0), torch.float16, 64, has_mask=False), False),
    ],
)
def test_heads_stay_shared_only_where_a_kernel_takes_them_so(call: Call, shares: bool) -> None:
    choice = choose(call)
    assert choice.shares_heads == shares
    assert SDPBackend.MATH not in choice.kernels


@pytest.mark.parametrize("number_bytes", [2, 4])
@pytest.mark.parametrize("flash", [True, False])
def test_prices_take_for_granted_what_the_engine_does(flash: bool, number_bytes: int) -> None:
    call = replace(AMPERE if flash else TURING)
    if number_bytes == 4:
        call = replace(call, dtype=torch.float32)
    priced = Device("cuda", flash=flash).kernels(number_bytes).shared_heads
    assert choose(call).shares_heads == priced


def plain(query: Any, key: Any, value: Any, mask: Any) -> Any:
    """Scores, softmax, values, head by head."""
    groups = query.shape[1] // key.shape[1]
    key, value = (one.repeat_interleave(groups, dim=1) for one in (key, value))
    scores = query @ key.transpose(2, 3) * 0.3
    length = query.shape[2]
    seen = torch.ones(length, length, dtype=torch.bool).tril() if mask is None else mask
    return (scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value).transpose(1, 2)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("window", [None, 3])
def test_values_and_gradients_are_those_of_plain_attention(
    kv_heads: int, window: int | None
) -> None:
    torch.manual_seed(0)
    given = [torch.randn(2, heads, 9, 8, requires_grad=True) for heads in (4, kv_heads, kv_heads)]
    twin = [one.detach().clone().requires_grad_() for one in given]
    mask = None
    if window is not None:
        seen = torch.ones(9, 9, dtype=torch.bool).tril()
        mask = (seen & ~seen.tril(-window))[None, None].expand(2, 1, 9, 9)
    query, key, value = given
    found, _ = attend(nn.Identity(), query, key, value, mask, scaling=0.3)
    wanted = plain(twin[0], twin[1], twin[2], mask)
    torch.testing.assert_close(found, wanted)
    for out in (found, wanted):
        out.sin().sum().backward()
    for ours, theirs in zip(given, twin, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_call_that_no_fused_kernel_takes_is_refused_in_words() -> None:
    query, key, value = (torch.randn(1, 2, 4, size) for size in (8, 8, 16))
    # PyTorch alone computes it, whole scores and all.
    functional.scaled_dot_product_attention(query, key, value)
    with pytest.raises(SwarmError, match="without keeping all scores") as refusal:
        attend(nn.Identity(), query, key, value, None)
    assert refusal.value.code == "stage-failed"
