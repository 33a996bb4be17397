"""Counting live tensor bytes, and the budget of a CPU card."""

import mmap

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from stage_runtime.card_memory import CardMeter, cannot_fit, device_of, resident_bytes
from transport.errors import SwarmError
from transport.orders import CardShare

KB = 1000


def a_card(index: int = 0, budget: int = 1 << 40, uuid: str = "cpu-0") -> CardShare:
    return CardShare(
        index=index,
        uuid=uuid,
        first_layer=0,
        last_layer=0,
        planned_bytes=7,
        budget_bytes=budget,
    )


def a_meter(*cards: CardShare) -> CardMeter:
    return CardMeter(cards, [torch.device("cpu")] * len(cards))


def test_storages_count_from_birth_to_death_and_views_not_at_all() -> None:
    meter = a_meter(a_card())
    with meter.counting():
        a = torch.zeros(1000)
        view = a[10:].view(99, 10)
        b = a + 1
        assert meter.live_bytes == [8000]
        del a
        assert meter.live_bytes == [8000]
        del view
        assert meter.live_bytes == [4000]
    del b
    assert meter.live_bytes == [0]
    assert meter.peak_bytes == [8000]


def test_a_linears_forward_and_backward_hold_what_arithmetic_says() -> None:
    meter = a_meter(a_card())
    layer = nn.Linear(100, 50, bias=False)
    meter.move(layer.parameters(), 0)
    assert meter.live_bytes == [20_000]
    with meter.counting():
        given = torch.randn(10, 100)
        out = layer(given)
        assert meter.live_bytes == [20_000 + 4000 + 2000]
        out.backward(torch.ones_like(out))
    assert layer.weight.grad is not None
    assert meter.peak_bytes[0] == 20_000 + 4000 + 2000 + 2000 + 20_000


def test_recompute_holds_less_at_the_peak() -> None:
    def peak(*, recompute: bool) -> int:
        meter = a_meter(a_card())
        blocks = [
            nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.GELU(), nn.GELU()) for _ in range(12)
        ]
        with meter.counting():
            hidden = torch.randn(100, 64, requires_grad=True)
            for block in blocks:
                again = recompute
                hidden = checkpoint(block, hidden, use_reentrant=False) if again else block(hidden)
            hidden.sum().backward()  # type: ignore[no-untyped-call]
        return meter.peak_bytes[0]

    assert peak(recompute=True) < 0.6 * peak(recompute=False)


def test_each_card_counts_what_is_born_while_it_computes() -> None:
    meter = a_meter(a_card(0), a_card(1))
    with meter.counting():
        a = torch.zeros(10)
        meter.enter_card(1)
        b = torch.zeros(20)
    assert meter.live_bytes == [40, 80]
    meter.move([b], 0)
    assert meter.live_bytes == [120, 0]
    del a, b
    assert meter.live_bytes == [0, 0]
    assert [peak.peak_bytes for peak in meter.peaks()] == [120, 80]


def test_a_tensor_beyond_the_budget_is_out_of_memory_with_the_numbers() -> None:
    meter = a_meter(a_card(index=3, budget=10 * KB))
    with meter.counting():
        kept = torch.zeros(2000)
        with pytest.raises(torch.OutOfMemoryError) as refusal:
            torch.zeros(1000)
    told = cannot_fit(refusal.value)
    assert told.code == "cannot-fit"
    for part in ("card 3", "10 kB", "8 kB", "4 kB", "2000 bytes"):
        assert part in told.message
    assert told.hint
    assert kept.numel() == 2000


def test_the_budget_holds_inside_autograd() -> None:
    meter = a_meter(a_card(budget=70 * KB))
    layer = nn.Linear(100, 100, bias=False)
    meter.move(layer.parameters(), 0)
    with meter.counting():
        out = layer(torch.randn(20, 100))
        with pytest.raises(torch.OutOfMemoryError):
            out.sum().backward()


def test_growth_after_the_counted_steps_shows_in_resident_memory() -> None:
    if resident_bytes() is None:
        pytest.fail("this system tells no resident memory")
    meter = a_meter(a_card(budget=1000 * KB))
    meter.check_resident()
    meter.check_resident()
    # Fresh pages: an allocator may hand out again what an earlier test freed and the process kept.
    grown = torch.frombuffer(mmap.mmap(-1, 64_000_000), dtype=torch.float32).fill_(1.0)
    with pytest.raises(torch.OutOfMemoryError, match="resident"):
        meter.check_resident()
    assert grown.numel() == 16_000_000


def test_a_card_is_found_by_its_uuid_or_not_at_all() -> None:
    assert device_of(a_card(uuid="cpu-7f3a")) == torch.device("cpu")
    with pytest.raises(SwarmError) as refusal:
        device_of(a_card(uuid="GPU-00000000-0000-0000-0000-000000000000"))
    assert refusal.value.code == "unavailable"
