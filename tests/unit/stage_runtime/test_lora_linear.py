"""The lean adapter gives what peft's layer gives, and keeps its input once."""

from typing import Any

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from stage_runtime import lora_linear
from stage_runtime.lora_linear import AdapterShape, LoraLinear, put_adapters
from tests.oracle.drawn_dropout import DrawnDropout

INPUTS, OUTPUTS, RANK = 24, 40, 4


class Layer(nn.Module):
    """Two projections side by side, as query and key are."""

    def __init__(self, kind: str, dtype: torch.dtype) -> None:
        super().__init__()
        make: Any = nn.Linear if kind == "linear" else lambda i, o: Conv1D(o, i)
        self.left, self.right = (make(INPUTS, OUTPUTS).to(dtype) for _ in range(2))

    def forward(self, given: Tensor) -> Tensor:
        out: Tensor = self.left(given) * self.right(given)
        return out


def twins(kind: str, dtype: torch.dtype, dropout: float = 0.0) -> tuple[Layer, Layer]:
    """The same layer with our adapters and with peft's, weights alike, frozen but for these."""
    torch.manual_seed(7)
    ours, theirs = Layer(kind, dtype), Layer(kind, dtype)
    theirs.load_state_dict(ours.state_dict())
    ours.requires_grad_(False)
    put_adapters(ours, ["left", "right"], AdapterShape(RANK, 1.5, dropout))
    config = LoraConfig(
        r=RANK,
        lora_alpha=6,
        lora_dropout=dropout,
        target_modules=["left", "right"],
        fan_in_fan_out=kind == "conv1d",
    )
    inject_adapter_in_model(config, theirs)
    for (name, mine), (other, yours) in zip(adapters(ours), adapters(theirs), strict=True):
        assert name == other.replace(".default", "")
        values = torch.randn(mine.shape) / RANK
        mine.data, yours.data = values.clone(), values.clone()
    return ours, theirs


def adapters(layer: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, w) for name, w in layer.named_parameters() if "lora_" in name]


def run(layer: nn.Module, dtype: torch.dtype, rows: int = 30) -> list[Tensor]:
    """Output, the input's gradient and the adapters' gradients."""
    torch.manual_seed(8)
    given = torch.randn(2, rows // 2, INPUTS, dtype=dtype, requires_grad=True)
    out = layer(given)
    out.backward(torch.randn_like(out))
    found = [out.detach(), given.grad, *(w.grad for _, w in adapters(layer))]
    assert all(one is not None for one in found)
    return [one for one in found if one is not None]


@pytest.mark.parametrize("kind", ["linear", "conv1d"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_values_and_gradients_are_pefts(kind: str, dtype: torch.dtype) -> None:
    ours, theirs = twins(kind, dtype)
    for mine, yours in zip(run(ours, dtype), run(theirs, dtype), strict=True):
        assert mine.dtype == yours.dtype
        torch.testing.assert_close(mine, yours)


def test_dropout_is_pefts_when_both_draw_alike_and_none_in_evaluation() -> None:
    ours, theirs = twins("linear", torch.float32, dropout=0.4)
    for seed, side in enumerate(("left", "right")):
        adapted = getattr(ours, side)
        assert isinstance(adapted, LoraLinear)
        adapted.dropout_seed = seed
        drawn = DrawnDropout(0.4)
        drawn.seed = seed
        getattr(theirs, side).lora_dropout["default"] = drawn
    dropped = run(ours, torch.float32)
    for mine, yours in zip(dropped, run(theirs, torch.float32), strict=True):
        torch.testing.assert_close(mine, yours)
    plain = run(ours.eval(), torch.float32)[0]
    assert not torch.allclose(plain, dropped[0])
    torch.testing.assert_close(plain, run(theirs.eval(), torch.float32)[0])


def test_pieces_of_rows_give_what_all_rows_at_once_give(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _ = twins("linear", torch.float32, dropout=0.4)
    for side in (ours.left, ours.right):
        assert isinstance(side, LoraLinear)
        side.dropout_seed = 3
    whole = run(ours, torch.float32)
    for _, weight in adapters(ours):
        weight.grad = None
    monkeypatch.setattr(lora_linear, "ROWS", 7)
    for mine, yours in zip(run(ours, torch.float32), whole, strict=True):
        torch.testing.assert_close(mine, yours)


def kept_bytes(layer: nn.Module, dtype: torch.dtype) -> int:
    """Bytes that autograd keeps from forward to backward, parameters left out."""
    known = {weight.untyped_storage().data_ptr() for weight in layer.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    given = torch.randn(64, INPUTS, dtype=dtype, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = layer(given)
    assert out.requires_grad
    return sum(kept.values())


def test_the_input_is_kept_once_however_many_projections_read_it() -> None:
    ours, theirs = twins("linear", torch.bfloat16)
    outputs = 2 * 64 * OUTPUTS * 2  # of the product of the two, which is not the adapters' matter
    assert kept_bytes(ours, torch.bfloat16) == outputs + 64 * INPUTS * 2
    assert kept_bytes(theirs, torch.bfloat16) >= outputs + 2 * 64 * INPUTS * 4


def test_a_frozen_input_gets_no_gradient_and_the_adapters_theirs() -> None:
    ours, _ = twins("linear", torch.float32)
    ours(torch.randn(3, INPUTS)).sum().backward()
    assert all(weight.grad is not None for _, weight in adapters(ours))
