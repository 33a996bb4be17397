"""The KV cache weighs what transformers' own cache weighs, and serving's prices add up."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModel
from transformers.cache_utils import DynamicCache

from stage_runtime.kv_costs import ServePrices, ServeShape, kept_tokens, token_bytes
from stage_runtime.model_facts import facts_from_config
from stage_runtime.places import CardPlace, Device
from tests.oracle.memory_models import MODELS
from tests.unit.stage_runtime.small_models import CONFIGS

CUDA = Device("cuda")


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text", "gpt2"])
def test_the_cache_holds_what_was_priced_after_one_more_token(family: str) -> None:
    config = AutoConfig.for_model(**CONFIGS[family])
    model = AutoModel.from_config(config, dtype=torch.bfloat16)
    cache = DynamicCache(config=config)
    tokens = torch.randint(0, 1000, (2, 160))
    with torch.no_grad():
        for part in (tokens[:, :159], tokens[:, 159:]):
            model(part, past_key_values=cache, use_cache=True)
    held = sum(
        one.untyped_storage().nbytes()
        for layer in cache.layers
        for one in (layer.keys, layer.values)
    )
    facts = facts_from_config(CONFIGS[family])
    kept = sum(kept_tokens(facts, layer, 160) for layer in range(facts.num_layers))
    # A sliding layer hands on its window and the new token, and drops the oldest with the next.
    slides = sum(kept_tokens(facts, layer, 160) < 160 for layer in range(facts.num_layers))
    exact, most = (2 * token_bytes(facts, "16bit") * n for n in (kept, kept + slides))
    assert exact <= held <= most


@pytest.mark.parametrize(
    ("model", "tokens", "megabytes"),
    [
        ("qwen3-14b", 32768, 5369),
        ("llama-3.1-70b", 4096, 1342),
        ("gemma3-12b", 32768, 2483),
        ("gpt-oss-20b", 32768, 808),
        ("qwen3-30b-a3b", 4096, 403),
    ],
)
def test_whole_models_need_the_cache_that_was_measured(
    model: str, tokens: int, megabytes: int
) -> None:
    facts = facts_from_config(MODELS[model])
    shape = ServeShape(tokens, prefill_tokens=0)
    told = ServePrices(facts, shape).cache_bytes(0, facts.num_layers - 1)
    assert told / 1e6 == pytest.approx(megabytes, abs=1)


@given(
    context=st.integers(1, 40_000),
    cut=st.integers(0, 47),
    storage=st.sampled_from(["16bit", "int8"]),
    model=st.sampled_from(["gemma3-12b", "qwen3-30b-a3b"]),
)
def test_serving_prices_never_fall_with_the_context_and_split_between_cards(
    context: int, cut: int, storage: str, model: str
) -> None:
    facts = facts_from_config(MODELS[model])
    shape = ServeShape(context, storage=storage, prefill_tokens=0)  # type: ignore[arg-type]
    prices, longer = (
        ServePrices(facts, one) for one in (shape, ServeShape(context + 1, storage="16bit"))
    )
    last = facts.num_layers - 1
    whole = CardPlace(0, 1, 0, last)
    both = prices.cache_bytes(0, cut) + prices.cache_bytes(cut + 1, last)
    assert prices.of(whole, CUDA).kv_cache == both
    assert prices.of(whole, CUDA).total <= longer.of(whole, CUDA).total


def test_int8_halves_the_cache_and_nf4_the_weights_by_almost_four() -> None:
    facts = facts_from_config(MODELS["qwen3-14b"])
    plain, small = (
        ServePrices(facts, shape).of(CardPlace(0, 1, 0, 39), CUDA)
        for shape in (
            ServeShape(32768),
            ServeShape(32768, storage="int8", quantization="nf4"),
        )
    )
    assert plain.kv_cache / small.kv_cache == pytest.approx(1.97, abs=0.01)
    assert plain.weights > 3.8 * small.weights
    assert plain.gradients == plain.optimizer == plain.lora == 0
