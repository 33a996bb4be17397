"""Prices agree with the bytes that real stages hold, and behave as prices must."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stage_runtime.costs import Prices, live_micro_batches
from stage_runtime.model_facts import ModelFacts, facts_from_config
from stage_runtime.places import CardPlace, Device, Price
from tests.unit.stage_runtime.real_stage_bytes import Case, Counted, count
from tests.unit.stage_runtime.small_models import CONFIGS, SMOLLM2
from transport.orders import LoraSettings, TrainSettings

CPU = Device("cpu")


def a_setting(**changes: Any) -> TrainSettings:
    values: dict[str, Any] = {
        "method": "lora",
        "lora": {"rank": 8, "alpha": 16.0, "dropout": 0.0, "target_modules": ["q_proj"]},
        "dtype": "float32",
        "steps": 1,
        "seq_len": 128,
        "batch_size": 8,
        "micro_batches": 4,
        "schedule": "1f1b",
        "learning_rate": 1e-3,
        "lr_schedule": "constant",
        "warmup_steps": 0,
        "max_grad_norm": 1.0,
        "clip": "pipeline",
        "recompute": False,
        "seed": 0,
        "link_timeout_s": 600.0,
        "eval_every_steps": 0,
        "eval_sequences": 0,
        "backend": "swarm",
        "loss_chunk_tokens": 256,
    }
    return TrainSettings.model_validate(values | changes)


def settings_of(case: Case) -> TrainSettings:
    targets = case.targets
    lora = targets and LoraSettings(
        rank=case.rank, alpha=16.0, dropout=0.0, target_modules=list(targets)
    )
    return a_setting(
        method="lora" if targets else "full",
        lora=lora or None,
        dtype=str(case.dtype).removeprefix("torch."),
        seq_len=case.seq_len,
        batch_size=case.batch,
        micro_batches=case.micro_batches,
        recompute=case.recompute,
    )


def priced(case: Case) -> Price:
    first = case.stage * case.layers
    place = CardPlace(case.stage, case.num_stages, first, first + case.layers - 1)
    # The counted stages are built, not loaded.
    return Prices(facts_from_config(case.config), settings_of(case)).of(place, CPU)


def agreement(case: Case) -> float:
    counted: Counted = count(case)
    return priced(case).tensor_bytes / counted.peak


def targets_of(config: dict[str, Any], *, mlp: bool = False) -> tuple[str, ...]:
    facts = facts_from_config(config)
    return facts.attention_targets + (facts.mlp_targets if mlp else ())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_the_demos_stages_hold_what_was_planned(dtype: torch.dtype, stage: int) -> None:
    case = Case(SMOLLM2, 2, targets_of(SMOLLM2), dtype=dtype, stage=stage, batch=4, micro_batches=4)
    assert agreement(case) == pytest.approx(1, abs=0.005)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("mlp", [False, True], ids=["attention", "all-linear"])
@pytest.mark.parametrize("family", CONFIGS)
def test_a_stage_of_every_family_holds_what_was_planned(
    family: str, mlp: bool, dtype: torch.dtype
) -> None:
    config = CONFIGS[family]
    case = Case(config, 2, targets_of(config, mlp=mlp), dtype=dtype, stage=1, batch=4)
    assert agreement(case) == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("family", CONFIGS)
def test_a_first_stage_with_frozen_embeddings_holds_what_was_planned(family: str) -> None:
    config = CONFIGS[family]
    assert agreement(Case(config, 2, targets_of(config), stage=0, batch=4)) == pytest.approx(
        1, abs=0.01
    )


@pytest.mark.parametrize(
    ("batch", "micro_batches", "recompute"), [(8, 1, False), (8, 8, False), (8, 4, True)]
)
@pytest.mark.parametrize("stage", [0, 2])
def test_micro_batches_schedules_and_recompute_are_priced(
    stage: int, batch: int, micro_batches: int, recompute: bool
) -> None:
    config = CONFIGS["qwen3"]
    schedule = "1f1b" if micro_batches >= 3 else "gpipe"
    case = Case(config, 2, targets_of(config), stage=stage, batch=batch)
    case = replace(case, micro_batches=micro_batches, recompute=recompute, schedule=schedule)
    assert agreement(case) == pytest.approx(1, abs=0.06)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_full_fine_tune_holds_what_was_planned(
    family: str, stage: int, dtype: torch.dtype
) -> None:
    config = CONFIGS[family] | {"tie_word_embeddings": False}
    case = Case(config, 2, None, dtype=dtype, stage=stage, batch=4)
    assert agreement(case) == pytest.approx(1, abs=0.06)


FACTS = facts_from_config(CONFIGS["llama"])


@pytest.mark.parametrize(
    ("micro_batches", "live"), [(8, [4, 3, 2, 1]), (4, [4, 3, 2, 1]), (3, [3, 3, 3, 3])]
)
def test_1f1b_holds_fewer_micro_batches_and_gpipe_all(micro_batches: int, live: list[int]) -> None:
    settings = a_setting(batch_size=24, micro_batches=micro_batches)
    assert [live_micro_batches(settings, stage, 4) for stage in range(4)] == live
    gpipe = settings.model_copy(update={"schedule": "gpipe"})
    assert [live_micro_batches(gpipe, stage, 4) for stage in range(4)] == [micro_batches] * 4


def _places(cut: int, num_stages: int) -> tuple[CardPlace, CardPlace, CardPlace]:
    """A stage whole, and the same stage over two cards cut before layer `cut`."""
    whole = CardPlace(1, num_stages, 1, 4)
    return (
        whole,
        whole._replace(last_layer=cut - 1, gives_output=False),
        whole._replace(first_layer=cut, takes_input=False),
    )


@given(cut=st.integers(1, 5), num_stages=st.integers(2, 4))
def test_two_cards_hold_the_weights_and_adapters_of_the_whole_stage(
    cut: int, num_stages: int
) -> None:
    prices = Prices(FACTS, a_setting())
    whole, left, right = (prices.of(place, CPU) for place in _places(cut, num_stages))
    assert left.weights + right.weights == whole.weights
    assert left.embeddings + right.embeddings == whole.embeddings
    assert left.lora + right.lora == whole.lora
    assert left.optimizer + right.optimizer == whole.optimizer


@given(
    layers=st.integers(1, 5),
    batch=st.sampled_from([1, 2, 4, 8]),
    stage=st.integers(0, 3),
    recompute=st.booleans(),
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
)
def test_more_layers_and_larger_batches_never_cost_less(
    layers: int, batch: int, stage: int, recompute: bool, dtype: str
) -> None:
    def price(count: int, size: int) -> Price:
        settings = a_setting(batch_size=size, micro_batches=1, recompute=recompute, dtype=dtype)
        return Prices(FACTS, settings).of(CardPlace(stage, 4, 0, count - 1), CPU)

    small = price(layers, batch)
    assert min(small) >= 0
    assert price(layers + 1, batch).total > small.total
    assert price(layers, 2 * batch).total > small.total


def test_recompute_saves_memory_and_a_gpu_needs_its_context() -> None:
    place = CardPlace(1, 3, 0, 5)
    plain = Prices(FACTS, a_setting()).of(place, CPU)
    again = Prices(FACTS, a_setting(recompute=True)).of(place, CPU)
    assert again.total < plain.total
    assert Prices(FACTS, a_setting()).of(place, Device("cuda")).workspace > 500_000_000


def test_a_card_older_than_ampere_pays_for_repeated_heads() -> None:
    place = CardPlace(1, 3, 0, 5)
    prices = Prices(FACTS, a_setting(dtype="float16"))
    new, old = prices.of(place, Device("cuda")), prices.of(place, Device("cuda", flash=False))
    assert old.activations > new.activations


def test_a_14b_model_needs_about_30_gb_in_half_precision() -> None:
    facts: ModelFacts = facts_from_config(
        {
            "model_type": "qwen3",
            "hidden_size": 5120,
            "intermediate_size": 17408,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "num_hidden_layers": 40,
            "vocab_size": 151936,
        }
    )
    price = Prices(facts, a_setting(dtype="bfloat16")).of(CardPlace(0, 1, 0, 39), CPU)
    assert 29e9 < price.weights + price.embeddings < 31e9


def test_a_large_table_is_priced_once_whatever_its_files_hold() -> None:
    """Files are read in pieces: neither a second copy nor the float32 one ever exists."""
    facts = facts_from_config(SMOLLM2 | {"dtype": "float32"})
    settings = a_setting(dtype="bfloat16", batch_size=1, micro_batches=1, recompute=True)
    place, table = CardPlace(0, 3, 0, 0), 49152 * 576
    for device in (CPU, Device("cuda")):
        assert 2 * table < Prices(facts, settings).of(place, device).tensor_bytes < 3 * table
