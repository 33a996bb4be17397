"""What a job leaves open is chosen with a reason; what it sets is never changed."""

from dataclasses import replace
from typing import Any

import pytest

from control.planning import auto
from control.planning.usable import Card
from stage_runtime.families import FAMILIES
from stage_runtime.model_facts import facts_from_config
from tests.oracle.memory_models import MODELS
from tests.unit.control.planning.pools import QWEN3_14B, SMOLLM2, a_card, a_fellow, a_job
from transport.errors import SwarmError
from transport.orders import TrainSettings

FACTS = facts_from_config(SMOLLM2)


def _asked(num_stages: int = 2, sequences: int | None = None, **job: Any) -> auto.Asked:
    return auto.Asked(a_job(**job), FACTS, "float32", num_stages, sequences)


def _first(asked: auto.Asked) -> TrainSettings:
    saving = auto.Saving(bool(asked.config.train.recompute), "none")
    return auto.settings(asked, auto.batches(asked)[0], saving)


def _cards(*cards: Any) -> list[Card]:
    return [Card(a_fellow("a", *cards), card) for card in cards]


@pytest.mark.parametrize(
    ("job", "params", "rate"),
    [
        ({}, SMOLLM2, 2e-4),
        ({"method": "boundary", "compression": {"kind": "learned"}}, SMOLLM2, 1e-4),
        ({"method": "full"}, SMOLLM2, 5e-5),
        ({"method": "full"}, QWEN3_14B | {"num_hidden_layers": 8}, 2e-5),
        ({"method": "full"}, QWEN3_14B, 1e-5),
    ],
)
def test_the_learning_rate_follows_from_what_trains(
    job: dict[str, Any], params: dict[str, Any], rate: float
) -> None:
    assert auto.learning_rate(a_job(**job), facts_from_config(params))[0] == rate


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        ({"steps": 1000}, (2e-4, "cosine", 50)),
        ({"steps": 100_000}, (2e-4, "cosine", 100)),
        ({"steps": 1000, "learning_rate": 1e-3}, (1e-3, "constant", 0)),
        ({"steps": 1000, "warmup_steps": 7}, (2e-4, "cosine", 7)),
        ({"steps": 5, "warmup_steps": 7}, (2e-4, "cosine", 5)),
        ({"steps": 9, "learning_rate": 1e-3, "lr_schedule": "cosine"}, (1e-3, "cosine", 0)),
    ],
)
def test_rate_schedule_and_warm_up(train: dict[str, Any], expected: tuple[Any, ...]) -> None:
    assert auto.learning_rate(a_job(train=train), FACTS) == expected


@pytest.mark.parametrize(
    ("batch", "stages", "parts"), [(32, 3, 4), (8, 2, 4), (1, 4, 1), (6, 2, 3), (7, 3, 1)]
)
def test_micro_batches_are_the_largest_divisor_up_to_twice_the_stages(
    batch: int, stages: int, parts: int
) -> None:
    assert auto.micro_batches(batch, stages) == parts


def test_batches_are_tried_from_32_down_and_a_set_one_is_the_only_one() -> None:
    assert auto.batches(_asked()) == [32, 16, 8, 4, 2, 1]
    assert auto.batches(_asked(train__batch_size=6)) == [6]


@pytest.mark.parametrize(
    ("asked", "choices"), [(None, (False, True)), (True, (True,)), (False, (False,))]
)
def test_recompute_is_tried_last_and_never_against_the_callers_word(
    asked: bool | None, choices: tuple[bool, ...]
) -> None:
    told = auto.savings(a_job(train__recompute=asked), "none", FACTS)
    assert tuple(one.recompute for one in told) == choices


@pytest.mark.parametrize(
    ("model", "stored", "asked", "choices"),
    [
        ("mixtral-8x7b", "nf4", None, (True,)),
        ("mixtral-8x7b", "nf4", False, (False,)),
        ("mixtral-8x7b", "int8", None, (False, True)),
        ("qwen3-14b", "nf4", None, (False, True)),
    ],
)
def test_experts_in_4_bits_are_recomputed_with_the_reason(
    model: str, stored: auto.Quantization, asked: bool | None, choices: tuple[bool, ...]
) -> None:
    facts = facts_from_config(MODELS[model])
    told = auto.savings(a_job(train__recompute=asked), stored, facts)
    assert tuple(one.recompute for one in told) == choices
    question = auto.Asked(a_job(train__recompute=asked), facts, "bfloat16", 2)
    reasons = {
        one.setting: one.reason
        for one in auto.explain(question, auto.settings(question, 1, told[0]), "")
    }
    wanted = "experts in 4 bits would stay unpacked" if choices == (True,) else None
    assert ("experts in 4 bits" in reasons.get("train.recompute", "")) == (wanted is not None)


def test_an_automatic_batch_is_never_larger_than_the_data_nor_against_the_micro_batches() -> None:
    assert auto.batches(_asked(sequences=5)) == [4, 2, 1]
    assert auto.batches(_asked(train__micro_batches=4)) == [32, 16, 8, 4]
    assert auto.batches(_asked(train__micro_batches=3)) == [3]


def test_gpipe_takes_over_where_1f1b_refuses_fewer_micro_batches_than_stages() -> None:
    asked = _asked(4, train__batch_size=2)
    made = _first(asked)
    assert (made.micro_batches, made.schedule) == (2, "gpipe")
    told = {one.setting: one for one in auto.explain(asked, made, "")}
    assert told["train.schedule"].value == "gpipe"


def test_the_loss_makes_about_150_tokens_of_logits_at_a_vocabulary_of_152k() -> None:
    facts = facts_from_config(QWEN3_14B)
    asked = auto.Asked(a_job(), facts, "bfloat16", 2)
    assert 130 <= _first(asked).loss_chunk_tokens <= 160
    assert _first(_asked()).loss_chunk_tokens > 300


def test_a_setting_of_the_callers_own_is_not_among_the_chosen() -> None:
    asked = _asked(
        train__batch_size=8, train__learning_rate=1e-3, train__micro_batches=4,
        train__recompute=False, model={"id": "local:demo", "dtype": "float32"},
    )  # fmt: skip
    told = {one.setting for one in auto.explain(asked, _first(asked), "")}
    assert not told & {
        "train.batch_size", "train.learning_rate", "train.micro_batches", "train.recompute",
        "model.dtype", "train.schedule",
    }  # fmt: skip
    assert all(one.reason for one in auto.explain(asked, _first(asked), "why"))


@pytest.mark.parametrize(
    ("lora", "targets"),
    [
        ({}, ("q_proj", "k_proj", "v_proj", "o_proj")),
        ({"target_modules": ["up_proj", "q_proj", "up_proj"]}, ("up_proj", "q_proj")),
    ],
)
def test_adapter_targets(lora: dict[str, Any], targets: tuple[str, ...]) -> None:
    job = a_job(model={"id": "local:demo", "lora": lora})
    assert auto.lora_targets(job, FACTS) == targets


def test_adapters_on_the_feed_forward_are_added_when_asked() -> None:
    job = a_job(model={"id": "local:demo", "lora": {"mlp": True}})
    assert auto.lora_targets(job, FACTS)[-3:] == ("gate_proj", "up_proj", "down_proj")


@pytest.mark.parametrize(
    ("cards", "name"),
    [
        ([a_card(kind="cuda"), a_card(1, kind="cuda")], "bfloat16"),
        ([a_card(kind="cuda", formats=["float32", "float16"])], "float16"),
        (
            [
                a_card(kind="cuda", formats=["float32"]),
                a_card(1, kind="cuda", formats=["float32", "float16"]),
            ],
            "float32",
        ),
        ([a_card()], "float32"),
        ([a_card(tflops={"float32": 0.1, "bfloat16": 0.4})], "bfloat16"),
        ([a_card(tflops={"float32": 0.1, "bfloat16": 0.05})], "float32"),
        ([a_card(tflops={"float32": 0.1, "bfloat16": 0.4}), a_card(1)], "float32"),
    ],
)
def test_the_number_format_is_what_every_card_runs_best(cards: list[Any], name: str) -> None:
    assert auto.number_format(a_job(), FACTS, _cards(*cards)).name == name


@pytest.mark.parametrize("method", ["lora", "full"])
def test_cards_without_bfloat16_take_float16_but_for_models_whose_values_pass_its_range(
    method: str,
) -> None:
    old = _cards(a_card(kind="cuda", formats=["float32", "float16"]))
    job, llama = a_job(method=method), FACTS
    assert auto.number_format(job, llama, old).name == "float16"
    gemma = replace(llama, family=FAMILIES["gemma2"])
    assert auto.number_format(job, gemma, old).name == "float32"


@pytest.mark.parametrize(
    "job",
    [
        {"method": "boundary"},
        {"method": "full", "model": {"id": "local:demo", "quantization": {"bits": 4}}},
        {"method": "boundary", "compression": {"kind": "rotation"}},
        {"data": {"dataset": "wikitext"}},
        {"train__seq_len": 100_000},
        {"model": {"id": "local:demo", "lora": {"target_modules": ["c_attn"]}}},
    ],
)
def test_what_cannot_be_done_is_refused_in_a_sentence(job: dict[str, Any]) -> None:
    with pytest.raises(SwarmError) as refusal:
        auto.refuse_not_offered(a_job(**job), FACTS)
    assert refusal.value.code == "invalid-input"
    assert refusal.value.hint
