"""The probe tells cards, proves their number formats and measures them."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from stage_runtime import probe, speed
from stage_runtime.quantize import Int8Weight, Narrow, Nf4Weight
from stage_runtime.speed import Shape, Work, tflops
from transport.cards import CardReport, Speed

CPU = torch.device("cpu")
SMALL = Shape(sequences=2, tokens=8, hidden=64, inner=96)


def test_a_cpu_budget_is_told_as_a_card_with_proven_formats(
    capsys: pytest.CaptureFixture[str],
) -> None:
    threads = torch.get_num_threads()
    try:
        assert probe.main(["--cpu", "4000000000:2"]) == 0
    finally:
        torch.set_num_threads(threads)
    told = json.loads(capsys.readouterr().out)
    card = CardReport.model_validate_json(json.dumps(told["cards"][-1]))
    assert (card.kind, card.total_bytes, card.free_bytes) == ("cpu", 4 * 10**9, 4 * 10**9)
    formats = ["float32", "bfloat16", "int8", "nf4"]
    assert (card.threads, card.number_formats, card.speeds) == (2, formats, [])
    assert told["error"] == ""


def test_one_card_is_measured_in_the_formats_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "CPU_SHAPE", SMALL)
    monkeypatch.setattr(speed, "CPU_SIZES", (Shape(2, 32, 64, 80), Shape(2, 8, 128, 96)))
    monkeypatch.setattr(speed, "FEW", Shape(1, 4, 64, 80))
    monkeypatch.setattr(speed, "MEASURE_S", 0.01)
    monkeypatch.setattr(speed, "SIZE_S", 0.01)
    words = ["--kind", "cpu", "--uuid", "cpu-0", "--formats", "float32,bfloat16,nf4"]
    assert probe.main(words) == 0
    told = json.loads(capsys.readouterr().out)
    speeds = [Speed.model_validate(one) for one in told["speeds"]]
    assert [one.number_format for one in speeds] == ["float32", "bfloat16"]
    for one in speeds:
        assert one.tflops > 0
        params = [size.layer_params for size in one.sizes]
        assert params == sorted(params)
        assert len(params) == 3
        assert min(size.tflops for size in one.sizes) > 0
        assert one.block_s is not None
        assert 0 <= one.block_s < 0.1


def test_a_card_s_parts_are_measured_beside_the_work_of_a_stage() -> None:
    (speed,), why = probe.measure(CPU, ["float32"], SMALL)
    assert why == ""
    parts = (speed.cold_tflops, speed.matmul_tflops, speed.attention_tflops)
    assert all(part is not None and 0 < part < 1000 for part in parts)
    assert speed.memory_bytes_s is not None
    assert 1e7 < speed.memory_bytes_s < 1e13


def test_a_card_that_is_not_there_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert probe.main(["--kind", "cuda", "--uuid", "GPU-none"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["speeds"] == []
    assert "GPU-none" in told["error"]


@pytest.mark.parametrize("budget", ["4GB:2", "0:1", "1000:0", "1000", "5:-1", "10:99999"])
def test_a_wrong_budget_is_refused(budget: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        probe.main(["--cpu", budget])
    assert ending.value.code == 2
    assert "BYTES:THREADS" in capsys.readouterr().err


def test_a_format_whose_product_is_wrong_fails_its_self_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert probe.self_test(CPU, "float32") == ""
    right = torch.Tensor.__matmul__

    def halved(left: Tensor, other: Tensor) -> Tensor:
        product: Tensor = right(left, other)
        return product / 2 if left.dtype == torch.bfloat16 else product

    monkeypatch.setattr(torch.Tensor, "__matmul__", halved)
    assert "bfloat16" in probe.self_test(CPU, "bfloat16")
    assert probe.measure(CPU, ["bfloat16"], SMALL)[0] == []


@pytest.mark.parametrize("name", ["int8", "nf4"])
def test_a_stored_format_is_proved_by_a_product_and_its_gradient(
    name: Narrow, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert probe.self_test(CPU, name) == ""
    kind: Any = {"int8": Int8Weight, "nf4": Nf4Weight}[name]
    right = kind.whole
    monkeypatch.setattr(kind, "whole", lambda self, dtype: right(self, dtype) * 1.2)
    assert probe.self_test(CPU, name).startswith(f"{name}: a product is wrong by 0.2")


def test_the_kernel_that_mistakes_where_a_block_ends_does_not_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """bitsandbytes 0.50.2 undoes a weight row by row on processors."""

    def by_rows(packed: Nf4Weight, dtype: torch.dtype) -> Tensor:
        scales = torch.ops.bitsandbytes.dequantize_blockwise(
            packed.scales, packed.scale_scales, packed.scale_table, 256, torch.float32
        )
        whole: Tensor = torch.ops.bitsandbytes.dequantize_4bit(
            packed.codes, scales + packed.mean_scale, 64, "nf4", packed.shape, dtype
        )
        return whole

    monkeypatch.setattr(Nf4Weight, "whole", by_rows)
    assert "nf4: a product is wrong by 0.2" in probe.self_test(CPU, "nf4")


def test_what_was_proved_is_printed_by_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert probe.main(["--prove"]) == 0
    told = json.loads(capsys.readouterr().out)["proven"]["cpu"]
    assert told == {"formats": ["float32", "bfloat16", "int8", "nf4"], "failed": ""}


def test_speed_is_the_operations_of_all_passes_over_their_whole_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two of three passes go fast and one is held up, as under a quota: a median would hide it."""
    monkeypatch.setattr(speed, "MEASURE_S", 10.0)
    readings = iter([0.0, 1.0, 2.0, 12.0])
    told = tflops(SMALL, CPU, torch.float32, lambda: next(readings))
    assert told == pytest.approx(3 * SMALL.operations / 12 / 1e12)


def test_the_operations_are_those_of_the_work_s_own_products() -> None:
    work = Work(SMALL, CPU, torch.float32)
    assert sum(weight.numel() for weight in work.weights.values()) == SMALL.params
    assert not any(weight.requires_grad for weight in work.weights.values())
    products = ("mm", "addmm", "bmm")
    with FlopCounterMode(display=False) as counter:
        work.run()
    counted = counter.get_flop_counts()["Global"]
    found = sum(n for op, n in counted.items() if str(op).removeprefix("aten.") in products)
    # Adapters are run, and counted as what a block does besides: 6 a parameter and token.
    pairs = [one for pair in work.adapters.values() for one in pair]
    beside = 6 * sum(one.numel() for one in pairs) * SMALL.sequences * SMALL.tokens
    assert found - beside == SMALL.operations


def test_seconds_that_do_not_grow_with_tokens_are_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A card of 10^12 operations a second that takes 2 ms for every block beside them."""

    def fixed(shape: Shape, *_: object) -> float:
        return shape.operations / (shape.operations / 1e12 + 0.002) / 1e12

    monkeypatch.setattr(speed, "tflops", fixed)
    told = speed.sized(SMALL, fixed(SMALL), CPU, torch.float32, lambda: 0.0)
    assert told["block_s"] == pytest.approx(0.002, rel=1e-6)
    assert max(one["tflops"] for one in told["sizes"]) == pytest.approx(1.0)
