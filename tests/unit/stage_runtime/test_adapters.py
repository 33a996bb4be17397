"""What trains, how it is named, and where its first values come from."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from stage_runtime.adapters import digest_of, make_trainable
from stage_runtime.checkpoint import open_checkpoint
from stage_runtime.checkpoint_share import StageSpan
from stage_runtime.load import load_stage
from tests.oracle.checkpoints import TINY
from tests.oracle.grid import Ground, Point
from tests.oracle.settings import some_settings
from transport.errors import SwarmError
from transport.orders import LoraSettings, TrainSettings


def trained_over(
    ground: Ground, model: str, settings: TrainSettings, ends: list[int]
) -> dict[str, torch.nn.Parameter]:
    """What the stages ending before these layers train, together."""
    checkpoint = open_checkpoint(ground.model(model))
    found: dict[str, torch.nn.Parameter] = {}
    for start, end in zip([0, *ends], ends):
        span = StageSpan(start, end - 1, start == 0, end == checkpoint.facts.num_layers)
        found |= make_trainable(load_stage(checkpoint, span, torch.float32), settings)
    return found


@pytest.mark.parametrize("model", TINY)
def test_adapters_of_all_stages_are_those_that_peft_makes_on_the_whole_model(
    ground: Ground, model: str
) -> None:
    settings = ground.settings(Point(model, 2))
    assert settings.lora is not None
    whole = get_peft_model(
        AutoModelForCausalLM.from_pretrained(ground.model(model), dtype=torch.float32),
        LoraConfig(
            r=settings.lora.rank,
            target_modules=list(settings.lora.target_modules),
            fan_in_fan_out=model == "gpt2",
        ),
    )
    theirs = {
        name.replace(".default.", "."): weight.shape
        for name, weight in whole.named_parameters()
        if "lora_" in name
    }
    layers = open_checkpoint(ground.model(model)).facts.num_layers
    ours = trained_over(ground, model, settings, [2, 3, layers])
    assert {name: weight.shape for name, weight in ours.items()} == theirs
    assert all(weight.dtype == torch.float32 for weight in ours.values())


def test_first_values_depend_on_seed_and_name_and_not_on_the_split(ground: Ground) -> None:
    settings = some_settings()
    one = trained_over(ground, "llama", settings, [6])
    three = trained_over(ground, "llama", settings, [1, 4, 6])
    other = trained_over(ground, "llama", some_settings(seed=4), [6])
    assert one.keys() == three.keys()
    assert all(torch.equal(one[name], three[name]) for name in one)
    a, b = (next(n for n in one if f".layers.{i}." in n and "lora_A" in n) for i in (0, 1))
    assert not torch.equal(one[a], other[a])
    assert not torch.equal(one[a], one[b])
    assert all(not weight.any() for name, weight in one.items() if "lora_B" in name)


def test_first_values_are_spread_as_pefts_own(ground: Ground) -> None:
    found = trained_over(ground, "llama", some_settings(), [6])
    values = torch.cat([w.detach().reshape(-1) for n, w in found.items() if "lora_A" in n])
    bound = 1 / 64**0.5
    assert values.abs().max() <= bound
    assert values.std() == pytest.approx(bound / 3**0.5, rel=0.05)


def test_only_adapters_train_and_a_full_fine_tune_trains_all(ground: Ground) -> None:
    checkpoint = open_checkpoint(ground.model("llama"))
    span = StageSpan(0, 5, True, True)
    lora = load_stage(checkpoint, span, torch.float32)
    trained = make_trainable(lora, some_settings())
    assert {id(w) for w in trained.values()} == {
        id(w) for w in lora.body.parameters() if w.requires_grad
    }
    full = load_stage(checkpoint, span, torch.float32)
    weights = make_trainable(full, some_settings(method="full", lora=None))
    assert sum(w.numel() for w in weights.values()) == checkpoint.facts.total_params
    assert all(w.requires_grad for w in weights.values())


def test_a_table_on_two_stages_belongs_to_the_first_and_has_a_gradient_on_the_last(
    ground: Ground,
) -> None:
    checkpoint = open_checkpoint(ground.model("llama"))
    settings, names = some_settings(method="full", lora=None), list[str]()
    for span in (StageSpan(0, 2, True, False), StageSpan(3, 5, False, True)):
        stage = load_stage(checkpoint, span, torch.float32)
        names += make_trainable(stage, settings)
    assert len(names) == len(set(names))
    assert "lm_head.weight" not in names
    assert stage.head is not None
    assert stage.head.weight.requires_grad


def test_a_target_that_the_family_lacks_is_refused_with_those_it_has(ground: Ground) -> None:
    lora = LoraSettings(rank=4, alpha=8.0, dropout=0.0, target_modules=["c_attn"])
    with pytest.raises(SwarmError, match="c_attn") as refusal:
        trained_over(ground, "llama", some_settings(lora=lora), [6])
    assert "q_proj" in refusal.value.hint


def test_the_digest_changes_with_any_value_and_any_name() -> None:
    base = {"a": torch.zeros(3), "b": torch.ones(2)}
    digests = {
        digest_of(base),
        digest_of({**base, "a": torch.tensor([0.0, 0.0, 1e-7])}),
        digest_of({"a": base["a"], "c": base["b"]}),
    }
    assert len(digests) == 3
    assert digest_of(base) == digest_of(dict(reversed(base.items())))
