"""Quantized weights weigh what bitsandbytes' own tensors weigh, and what using them takes."""

from typing import Any

import bitsandbytes as bnb
import pytest
import torch
from bitsandbytes.nn.parametrize import replace_parameter_4bit
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from stage_runtime.costs import Prices
from stage_runtime.model_facts import Linear, facts_from_config
from stage_runtime.places import CardPlace, Device, Price
from stage_runtime.quantized_costs import StoredWeights
from tests.oracle.live_bytes import LiveBytes
from tests.oracle.memory_models import MODELS
from tests.unit.stage_runtime.small_models import CONFIGS, UNFUSED
from tests.unit.stage_runtime.test_costs import a_setting

CUDA = Device("cuda")


def bytes_of(tensors: list[Tensor]) -> int:
    """Of their storages, each once."""
    return sum(
        {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values()
    )


def tensors_of(state: Any) -> list[Tensor]:
    """What a QuantState holds beside the packed weight."""
    found = [state.absmax, state.code]
    if state.nested:
        found += [state.offset, state.state2.absmax, state.state2.code]
    return found


def stored(linear: Linear, quantization: str) -> int:
    """The price of a layer with this one projection and nothing else."""
    facts = facts_from_config(CONFIGS["llama"])
    only = facts.__class__(
        **(vars(facts) | {"linears": (linear,), "layer_params": (linear.params,)})
    )
    return StoredWeights(only, a_setting(dtype="bfloat16", quantization=quantization)).layer(0)


@pytest.mark.parametrize("shape", [(512, 512), (2048, 1024), (320, 192)])
def test_a_projection_in_nf4_weighs_what_its_tensors_weigh(shape: tuple[int, int]) -> None:
    outputs, inputs = shape
    weight = bnb.nn.Params4bit(
        torch.randn(outputs, inputs), quant_type="nf4", compress_statistics=True
    ).to("cpu")
    held = bytes_of([weight.data, *tensors_of(weight.quant_state)])
    assert stored(Linear("one", inputs, outputs, bias=False), "nf4") == held


def test_a_projection_in_int8_weighs_one_byte_a_weight_and_a_scale_a_row() -> None:
    layer = bnb.nn.Linear8bitLt(256, 128, bias=False, has_fp16_weights=False)
    layer.load_state_dict({"weight": torch.randn(128, 256)})
    layer = layer.to("cpu")
    layer(torch.randn(2, 256, dtype=torch.float16))
    held = bytes_of([layer.state.CB, layer.state.SCB])
    assert stored(Linear("one", 256, 128, bias=False), "int8") == held


def _mixture() -> Any:
    """A real one-layer mixture whose experts are stored in 4 bits."""
    config = AutoConfig.for_model(**(UNFUSED["mixtral"] | {"num_hidden_layers": 1}))
    torch.manual_seed(0)
    model: Any = AutoModel.from_config(config, dtype=torch.bfloat16)
    model.requires_grad_(False)
    experts = model.layers[0].mlp.experts
    for name in ("gate_up_proj", "down_proj"):
        replace_parameter_4bit(experts, name, quant_type="nf4", compress_statistics=True)
    return model


@pytest.mark.parametrize("recompute", [False, True])
def test_four_bit_experts_keep_16_bit_copies_for_backward_unless_recomputed(
    recompute: bool,
) -> None:
    def kept(model: nn.Module) -> int:
        counter = LiveBytes()
        for weight in model.parameters():
            counter.hold(weight)
        before = counter.now
        given = torch.randn(1, 64, 256, dtype=torch.bfloat16, requires_grad=True)
        if recompute:
            model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
        with counter:
            out = model.train()(inputs_embeds=given, use_cache=False)
            held = counter.now - before
        del out
        return held

    facts = facts_from_config(UNFUSED["mixtral"])
    settings = a_setting(dtype="bfloat16", quantization="nf4", recompute=recompute)
    copies = StoredWeights(facts, settings).expert_copies()
    assert copies == 2 * 3 * 4 * 256 * 768
    config = AutoConfig.for_model(**(UNFUSED["mixtral"] | {"num_hidden_layers": 1}))
    plain: Any = AutoModel.from_config(config, dtype=torch.bfloat16).requires_grad_(False)
    more = kept(_mixture()) - kept(plain)
    assert more == pytest.approx(0 if recompute else copies, abs=0.01 * copies)


def _price(model: str, **changes: Any) -> Price:
    facts = facts_from_config(MODELS[model])
    values = {"dtype": "bfloat16", "seq_len": 512, "batch_size": 1, "micro_batches": 1} | changes
    place = CardPlace(0, 1, 0, facts.num_layers - 1)
    return Prices(facts, a_setting(**values)).of(place, CUDA)


def test_a_14b_model_needs_about_8_gb_of_layers_in_nf4_and_its_tables_stay_16_bit() -> None:
    four, sixteen = _price("qwen3-14b", quantization="nf4"), _price("qwen3-14b")
    assert 6.5e9 < four.weights < 7.5e9
    assert sixteen.weights / four.weights == pytest.approx(3.87, abs=0.05)
    # The largest projection is unpacked into a buffer: 178 MB.
    assert four.embeddings - sixteen.embeddings == pytest.approx(178e6, rel=0.05)
    eight = _price("qwen3-14b", quantization="int8")
    assert four.weights < eight.weights < sixteen.weights


def test_recompute_saves_a_mixture_in_4_bits_from_holding_itself_in_16() -> None:
    kept = _price("qwen3-30b-a3b", quantization="nf4")
    again = _price("qwen3-30b-a3b", quantization="nf4", recompute=True)
    plain = _price("qwen3-30b-a3b")
    assert kept.weights < 0.31 * plain.weights
    assert kept.tensor_bytes > plain.tensor_bytes
    assert again.tensor_bytes < 0.4 * plain.tensor_bytes
    assert again.activations > 1.2e9  # one layer's experts, unpacked


def test_int8_leaves_fused_experts_as_they_are() -> None:
    eight, sixteen = _price("mixtral-8x7b", quantization="int8"), _price("mixtral-8x7b")
    assert 0.9 * sixteen.weights < eight.weights < sixteen.weights
