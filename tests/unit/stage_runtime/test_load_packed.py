"""A stage that loads packed: what is packed, what it computes, and how little it takes to load."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from stage_runtime.card_memory import CardMeter
from stage_runtime.checkpoint import Checkpoint, open_checkpoint
from stage_runtime.checkpoint_share import StageSpan
from stage_runtime.load import LoadedStage, Quantization, load_stage
from stage_runtime.quantize import Narrow, PackedExperts, PackedLinear
from tests.oracle.checkpoints import TINY
from tests.oracle.grid import Ground
from tests.unit.stage_runtime.small_models import CONFIGS
from tests.unit.stage_runtime.test_load import logits_of, spans
from transport.orders import CardShare

F32, BF16 = torch.float32, torch.bfloat16
KINDS: list[Narrow] = ["nf4", "int8"]


def unpacked(checkpoint: Checkpoint, kind: Narrow) -> Any:
    """The whole model of transformers, its projections and experts what the codes stand for."""
    whole = AutoModelForCausalLM.from_pretrained(checkpoint.folder, dtype=F32).eval()
    last = checkpoint.facts.num_layers - 1
    stage = load_stage(checkpoint, StageSpan(0, last, True, True), F32, kind)
    turned = checkpoint.facts.model_type == "gpt2"
    replaced = mixtures = 0
    for local, module in stage.body.named_modules():
        if isinstance(module, PackedLinear):
            weight = module.packed.whole(F32)
            plain = whole.get_submodule(stage.global_name(local))
            plain.weight.data = weight.T.contiguous() if turned else weight
            replaced += 1
        elif isinstance(module, PackedExperts):
            experts = whole.get_submodule(stage.global_name(local))
            for name in ("gate_up_proj", "down_proj"):
                getattr(experts, name).data = getattr(module, name)
            mixtures += 1
    assert replaced == len(checkpoint.facts.linears) * checkpoint.facts.num_layers
    packs_experts = checkpoint.facts.experts is not None and kind == "nf4"
    assert mixtures == (checkpoint.facts.num_layers if packs_experts else 0)
    return whole


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", TINY)
def test_packed_slices_compute_what_the_unpacked_whole_model_does(
    ground: Ground, model: str, kind: Narrow
) -> None:
    checkpoint = open_checkpoint(ground.model(model))
    ids = torch.arange(40).reshape(2, 20)
    stages = [
        load_stage(checkpoint, span, F32, kind) for span in spans(checkpoint.facts.num_layers, 2)
    ]
    with torch.no_grad():
        found, wanted = logits_of(stages, ids), unpacked(checkpoint, kind)(input_ids=ids).logits
    assert torch.allclose(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_only_projections_are_packed(ground: Ground, kind: Narrow) -> None:
    checkpoint = open_checkpoint(ground.model("phi"))  # biases everywhere
    stage = load_stage(checkpoint, StageSpan(0, 5, True, True), BF16, kind)
    for name, weight in stage.named_weights():
        assert weight.dtype == BF16, name
        assert not weight.requires_grad
        assert weight.untyped_storage().nbytes() == 2 * weight.numel(), name
    left = {name.split(".")[-1] for name, _ in stage.named_weights() if ".layers." in name}
    assert left == {"weight", "bias"}  # of the norms, and of the projections
    packed = [m for m in stage.body.modules() if isinstance(m, PackedLinear)]
    assert all(module.bias is not None for module in packed)


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Six layers of 0.8 M parameters in float32 files, with tables of 0.26 M."""
    folder: Path = tmp_path_factory.mktemp("larger")
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**CONFIGS["llama"]), dtype=F32)
    model.save_pretrained(folder, max_shard_size="3MB")
    return open_checkpoint(folder)


def loading(checkpoint: Checkpoint, kind: Quantization) -> tuple[LoadedStage, int, int]:
    """(stage, bytes held after loading it, bytes held at most on the way)."""
    share = CardShare(
        index=0, uuid="cpu", first_layer=0, last_layer=5, planned_bytes=0, budget_bytes=1 << 40
    )
    meter = CardMeter([share], [torch.device("cpu")])
    with meter.counting():
        stage = load_stage(checkpoint, StageSpan(0, 5, True, True), BF16, kind)
    return stage, meter.held_bytes(), meter.peak_bytes[0]


@pytest.mark.parametrize("kind", KINDS)
def test_loading_takes_what_is_packed_so_far_and_one_layer_in_16_bits(
    larger: Checkpoint, kind: Narrow
) -> None:
    _stage, held, peak = loading(larger, kind)
    layer = 2 * larger.facts.layer_params[0]
    assert held < 2 * larger.facts.total_params / 1.5  # it is packed
    assert peak <= held + layer


def test_loading_as_it_is_takes_nothing_beside_the_weights_themselves(larger: Checkpoint) -> None:
    """Not even the largest table a second time."""
    _stage, held, peak = loading(larger, "none")
    weights = 2 * larger.facts.total_params
    assert weights <= held < 1.01 * weights
    assert peak < 1.01 * weights
