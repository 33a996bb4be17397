"""Facts read from a configuration agree with the classes that will run it."""

from typing import Any

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from transformers import AutoConfig, AutoModelForCausalLM

from stage_runtime.checkpoint_share import (
    StageSpan,
    download_bytes,
    needs,
    part_of,
    refuse_missing_layers,
    refuse_without_safetensors,
    share_of,
)
from stage_runtime.families import FAMILIES
from stage_runtime.model_facts import facts_from_config
from tests.oracle.memory_models import MODELS
from tests.unit.stage_runtime.small_models import CONFIGS, SMOLLM2, UNFUSED
from transport.errors import SwarmError


def _whole(config: dict[str, Any]) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))


def test_every_known_family_has_a_configuration_in_these_tests() -> None:
    assert CONFIGS.keys() | UNFUSED.keys() == FAMILIES.keys()


ALL = CONFIGS | UNFUSED


@pytest.mark.parametrize("family", ALL)
def test_parameters_and_module_names_are_those_of_the_real_class(family: str) -> None:
    facts, model = facts_from_config(ALL[family]), _whole(ALL[family])
    blocks = model.get_submodule(facts.family.layers)
    tables = [model.get_submodule(name) for name in facts.family.embeddings]

    assert [sum(p.numel() for p in block.parameters()) for block in blocks] == list(
        facts.layer_params
    )
    assert sum(p.numel() for table in tables for p in table.parameters()) == facts.embedding_params
    head = model.get_submodule(facts.family.head)
    assert sum(p.numel() for p in head.parameters()) == facts.head_params
    norm = model.get_submodule(facts.family.final_norm)
    assert sum(p.numel() for p in norm.parameters()) == facts.final_norm_params
    assert sum(p.numel() for p in model.parameters()) == facts.total_params
    assert facts.tied == model.config.tie_word_embeddings


@pytest.mark.parametrize("family", CONFIGS)
def test_adapter_targets_hit_every_projection_of_a_block_once(family: str) -> None:
    facts, model = facts_from_config(CONFIGS[family]), _whole(CONFIGS[family])
    targets = [*facts.attention_targets, *facts.mlp_targets]
    inject_adapter_in_model(
        LoraConfig(r=3, target_modules=targets, fan_in_fan_out=family == "gpt2"), model
    )
    adapted = {n: p for n, p in model.named_parameters() if ".lora_" in n}

    per_layer = sum(3 * (one.inputs + one.outputs) for one in facts.linears)
    assert sum(p.numel() for p in adapted.values()) == per_layer * facts.num_layers
    assert len(adapted) == 2 * len(facts.linears) * facts.num_layers


@pytest.mark.parametrize(
    "family", ["mistral", "qwen2", "qwen3", "gemma3_text", "gemma2", "mixtral", "gpt_oss"]
)
def test_layer_types_and_window_are_the_classes_own(family: str) -> None:
    facts = facts_from_config(ALL[family])
    config = AutoConfig.for_model(**ALL[family])
    if family not in ("mistral", "mixtral"):
        assert list(facts.layer_types) == config.layer_types
    slides = "sliding_attention" in facts.layer_types
    assert facts.window == (config.sliding_window if slides else None)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "mamba"},
        {"model_type": None},
        {"auto_map": {"AutoModel": "evil.Model"}},
        {"quantization_config": {"bits": 4}},
        {"num_hidden_layers": 0},
        {"num_hidden_layers": 10**9},
        {"hidden_size": "576"},
        {"hidden_size": True},
        {"num_key_value_heads": 4},
        {"vocab_size": None},
    ],
)
def test_what_cannot_be_trained_is_refused_with_what_to_do(changes: dict[str, Any]) -> None:
    with pytest.raises(SwarmError) as refusal:
        facts_from_config(SMOLLM2 | changes)
    assert refusal.value.code == "invalid-input"
    assert refusal.value.hint


def test_an_unknown_family_is_answered_with_those_that_work() -> None:
    with pytest.raises(SwarmError) as refusal:
        facts_from_config({"model_type": "mamba"})
    assert refusal.value.facts["families"] == sorted(FAMILIES)


@pytest.mark.parametrize(
    ("model", "billions"),
    [("mixtral-8x7b", 46.7), ("qwen3-30b-a3b", 30.5), ("gpt-oss-20b", 20.9), ("qwen3-14b", 14.8)],
)
def test_known_models_have_the_parameters_that_their_cards_tell(
    model: str, billions: float
) -> None:
    assert facts_from_config(MODELS[model]).total_params / 1e9 == pytest.approx(billions, abs=0.06)


def test_a_mixture_adapts_its_attention_and_never_its_router_or_experts() -> None:
    for family in ("mixtral", "qwen3_moe", "gpt_oss"):
        facts = facts_from_config(ALL[family])
        assert facts.mlp_targets == ()
        for router in ("gate", "router", "gate_up_proj", "down_proj", "experts"):
            assert facts.linear(router) == []


def test_a_loss_that_balances_routers_is_refused() -> None:
    with pytest.raises(SwarmError, match="output_router_logits") as refusal:
        facts_from_config(UNFUSED["mixtral"] | {"output_router_logits": True})
    assert "false" in refusal.value.hint


def test_experts_in_only_some_layers_are_refused() -> None:
    with pytest.raises(SwarmError, match="only some layers"):
        facts_from_config(UNFUSED["qwen3_moe"] | {"mlp_only_layers": [0]})
    with pytest.raises(SwarmError, match="num_experts_per_tok"):
        facts_from_config(UNFUSED["qwen3_moe"] | {"num_experts_per_tok": 9})


def test_the_text_part_of_a_model_that_sees_pictures_is_read() -> None:
    text = {k: v for k, v in CONFIGS["gemma3_text"].items() if k != "model_type"}
    facts = facts_from_config({"model_type": "gemma3", "text_config": text, "vision_config": {}})
    assert facts == facts_from_config(CONFIGS["gemma3_text"])


FILES = {
    "model-00001-of-00002.safetensors": {
        "model.embed_tokens.weight": 600,
        "model.layers.0.mlp.up_proj.weight": 10,
        "model.layers.1.mlp.up_proj.weight": 10,
        "vision_tower.encoder.layers.1.mlp.fc1.weight": 7,
    },
    "model-00002-of-00002.safetensors": {
        "model.layers.2.mlp.up_proj.weight": 10,
        "model.norm.weight": 1,
        "lm_head.weight": 600,
    },
}


def _tiny(*, tied: bool) -> Any:
    return facts_from_config(SMOLLM2 | {"num_hidden_layers": 3, "tie_word_embeddings": tied})


def test_a_stage_downloads_only_the_files_that_hold_its_share() -> None:
    facts, middle = _tiny(tied=False), StageSpan(1, 1, is_first=False, is_last=False)
    assert share_of(facts, FILES, middle) == {
        "model-00001-of-00002.safetensors": ["model.layers.1.mlp.up_proj.weight"]
    }
    assert download_bytes(facts, FILES, middle) == 627
    assert download_bytes(facts, FILES, StageSpan(0, 2, is_first=True, is_last=True)) == 1238


@pytest.mark.parametrize(
    ("tied", "head"), [(True, "model.embed_tokens.weight"), (False, "lm_head.weight")]
)
def test_the_last_stage_reads_a_tied_head_from_the_embedding(tied: bool, head: str) -> None:
    last = StageSpan(2, 2, is_first=False, is_last=True)
    read = [name for names in share_of(_tiny(tied=tied), FILES, last).values() for name in names]
    assert sorted(read) == sorted([head, "model.layers.2.mlp.up_proj.weight", "model.norm.weight"])


def test_gpt2_files_without_a_prefix_are_understood_and_positions_stay_on_the_first_stage() -> None:
    facts = facts_from_config(CONFIGS["gpt2"])
    last = StageSpan(5, 5, is_first=False, is_last=True)
    assert part_of(facts, "h.3.attn.c_attn.weight") == ("layer", 3)
    assert part_of(facts, "transformer.wte.weight") == ("embedding", -1)
    assert part_of(facts, "ln_f.bias") == ("final_norm", -1)
    assert needs(facts, last, "wte.weight")
    assert not needs(facts, last, "wpe.weight")
    assert needs(facts, StageSpan(0, 1, is_first=True, is_last=False), "wpe.weight")


def test_files_that_lack_a_layer_or_are_pickled_are_refused() -> None:
    facts = _tiny(tied=False)
    refuse_missing_layers(facts, FILES)
    with pytest.raises(SwarmError, match="layer 2"):
        refuse_missing_layers(facts, dict(list(FILES.items())[:1]))
    refuse_without_safetensors(["config.json", "model.safetensors"])
    with pytest.raises(SwarmError):
        refuse_without_safetensors(["config.json", "pytorch_model.bin"])
