"""Experts stored one by one become the fused weights that the model class computes with."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from stage_runtime.checkpoint import open_checkpoint
from stage_runtime.checkpoint_share import StageSpan
from stage_runtime.expert_files import ExpertTensors
from stage_runtime.load import load_stage
from stage_runtime.model_facts import facts_from_config
from tests.oracle.grid import Ground
from tests.unit.stage_runtime.small_models import UNFUSED
from transport.errors import SwarmError

FACTS = facts_from_config(UNFUSED["qwen3_moe"])


@pytest.mark.parametrize("model", ["mixtral", "qwen3_moe", "gpt_oss"])
def test_a_middle_stage_holds_the_whole_models_experts_bit_for_bit(
    ground: Ground, model: str
) -> None:
    whole: Any = AutoModelForCausalLM.from_pretrained(ground.model(model), dtype=torch.float32)
    stage = load_stage(
        open_checkpoint(ground.model(model)), StageSpan(2, 3, False, False), torch.float32
    )
    theirs = whole.model.layers[3].state_dict()
    ours = stage.blocks[1].state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def projections() -> dict[str, torch.Tensor]:
    hidden, experts = FACTS.hidden, FACTS.experts
    assert experts is not None
    shapes = {"gate_proj": (experts.width, hidden), "up_proj": (experts.width, hidden)}
    shapes["down_proj"] = (hidden, experts.width)
    return {
        f"layers.0.mlp.experts.{expert}.{part}.weight": torch.zeros(shape)
        for expert in range(experts.count)
        for part, shape in shapes.items()
    }


def test_a_missing_expert_is_named() -> None:
    taker, parts = ExpertTensors(FACTS, torch.float32), projections()
    del parts["layers.0.mlp.experts.5.up_proj.weight"]
    assert all(taker.take(name, tensor) for name, tensor in parts.items())
    with pytest.raises(SwarmError, match="first of expert 5"):
        taker.whole()


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("layers.0.mlp.experts.8.up_proj.weight", (128, 256)),
        ("layers.0.mlp.experts.0.up_proj.weight", (127, 256)),
        ("layers.0.mlp.experts.0.down_proj.weight", (128, 256)),
    ],
)
def test_an_expert_that_config_json_does_not_announce_is_refused(
    name: str, shape: tuple[int, int]
) -> None:
    with pytest.raises(SwarmError, match=name.rpartition(".")[0]) as refusal:
        ExpertTensors(FACTS, torch.float32).take(name, torch.zeros(shape))
    assert refusal.value.code == "invalid-input"


def test_what_is_no_expert_is_left_alone() -> None:
    taker = ExpertTensors(FACTS, torch.float32)
    assert not taker.take("layers.0.mlp.gate.weight", torch.zeros(8, 256))
    assert taker.renamed("layers.0.block_sparse_moe.gate.weight") == "layers.0.mlp.gate.weight"
    assert taker.whole() == {}
