"""Figures that are told of real pools, from inventories; where ours differ, both are shown."""

import pytest

from control.planning.maximize import maximized, with_seq_len
from control.planning.plan import Plan
from tests.oracle.seed_figures import recompute_costs, weights_gb
from tests.unit.control.planning.papers import (
    NEMOTRON,
    QWEN_14B,
    a_model_job,
    machine,
    on_paper,
    three_cards,
)


def _counts(plan: Plan) -> list[int]:
    return [stage.last_layer - stage.first_layer + 1 for stage in plan.stages]


def test_a_14b_model_holds_30_gb_in_half_precision_and_8_to_10_in_4_bits() -> None:
    assert weights_gb("none") == pytest.approx(30, rel=0.03)
    # Told: about 8 GB. That is 4 bits for every layer (0.516 bytes a parameter, 6.8 GB) and one
    # table in 16 bits; this model's head is not its embedding, so there are two of 1.56 GB.
    assert weights_gb("nf4") == pytest.approx(8, rel=0.31)
    assert weights_gb("nf4") - 1.56 == pytest.approx(8, rel=0.12)


def test_qwen3_14b_trains_in_4_bits_on_two_4_gb_and_two_6_gb_cards() -> None:
    four = {"card": "GTX 1650", "count": 2}
    six = {"card": "GTX 1660 SUPER", "count": 2}
    inputs = on_paper(QWEN_14B, machine("a", four), machine("b", six))
    plan = inputs.place(a_model_job(QWEN_14B))
    assert plan.fits
    assert plan.view.settings is not None
    assert plan.view.settings.quantization == "nf4"
    why = {one.setting: one.reason for one in plan.view.chosen}
    assert why["model.quantization"].startswith("the job does not fit in float16")
    cards = ("GTX 1650", "GTX 1650", "GTX 1660 SUPER", "GTX 1660 SUPER")
    apart = on_paper(QWEN_14B, *[machine(name, card) for name, card in zip("abcd", cards)])
    assert apart.fits(a_model_job(QWEN_14B, train__batch_size=1))


def test_20_and_28_layers_by_memory_become_8_and_40_by_speed_and_a_step_43_percent_shorter() -> (
    None
):
    job = a_model_job(NEMOTRON, 4, train__seq_len=384, train__batch_size=1)
    plan = three_cards(5.8, 12.4).place(job)
    (split,) = [one for one in plan.view.chosen if one.setting == "split"]
    assert split.reason == (
        "8 + 40 by datasheet float16 speed within each card's memory (20 + 28 by free memory), "
        "a step predicted 43 % shorter"
    )
    assert _counts(plan) == [8, 40]


def test_with_less_free_memory_the_same_cards_split_16_and_32_because_every_card_pays_its_context(
) -> None:  # fmt: skip
    # Told: 20 + 28 is the share of free memory alone (10.6 and 14.9 GB). Each card also pays its
    # context and each end its table, which two small cards feel more: 16 + 32 fills them alike.
    job = a_model_job(NEMOTRON, 4, train__seq_len=512, train__batch_size=1)
    plan = three_cards(5.3, 14.9).place(job)
    (split,) = [one for one in plan.view.chosen if one.setting == "split"]
    assert "(16 + 32 by free memory)" in split.reason


def test_the_told_split_is_40_to_48_percent_shorter_wherever_it_is_pinned() -> None:
    pool = three_cards(5.8, 12.4)

    def step_s(boundary: int) -> float:
        job = a_model_job(
            NEMOTRON, 4, train__seq_len=384, train__batch_size=1, layer_index=[boundary]
        )
        found = pool.place(job).view.layout.step_s
        assert found is not None
        return found

    assert 0.40 <= 1 - step_s(8) / step_s(20) <= 0.48


@pytest.mark.parametrize(
    ("small_gb", "large_gb", "least", "most"),
    [
        # Told: 2,048 to 6,144 tokens. Adapters that keep their input once, a loss that keeps one
        # copy of its logits, all of the free memory and the better order of the fellows give more.
        (4.7, 13.5, 6144, 7000),
        (5.3, 14.9, 7600, 8900),
    ],
)
def test_14b_in_4_bits_reaches_a_few_thousand_tokens_with_recompute(
    small_gb: float, large_gb: float, least: int, most: int
) -> None:
    pool = three_cards(small_gb, large_gb)
    longest = maximized(pool, a_model_job(NEMOTRON, 4))
    assert least <= longest.train.seq_len <= most
    plan = pool.place(longest)
    assert plan.fits
    assert plan.view.settings is not None
    assert plan.view.settings.recompute
    assert not pool.place(with_seq_len(longest, longest.train.seq_len + 1)).fits
    assert not pool.place(a_model_job(NEMOTRON, 4, train__seq_len=65_536)).fits


def test_without_the_three_savings_about_512_tokens_are_the_most() -> None:
    old = three_cards(version="0.0.9")
    longest = maximized(old, a_model_job(NEMOTRON, 4))
    assert 350 <= longest.train.seq_len <= 800
    notes = " ".join(old.place(longest).view.notes)
    assert "atlas, borealis: an old version" in notes


def test_a_card_without_16_bits_makes_the_whole_job_float32() -> None:
    inputs = on_paper(
        "Qwen/Qwen3-0.6B", machine("a", "GTX 1050 Ti"), machine("b", "GTX 1660 SUPER")
    )
    settings = inputs.place(a_model_job("Qwen/Qwen3-0.6B")).view.settings
    assert settings is not None
    assert settings.dtype == "float32"


@pytest.mark.parametrize(("seq_len", "batches"), [(4096, 215), (512, 1723)])
def test_882_300_tokens_are_so_many_batches(seq_len: int, batches: int) -> None:
    inputs = on_paper("Qwen/Qwen3-0.6B", machine("a", "RTX 4090"), seq_len=seq_len, tokens=882_300)
    job = a_model_job("Qwen/Qwen3-0.6B", train__seq_len=seq_len, train__batch_size=1)
    data = inputs.place(job).view.data
    assert data is not None
    assert data.batches == batches


def test_recompute_costs_a_half_more_with_frozen_weights_and_a_third_in_a_full_fine_tune() -> None:
    # Told: a third, 4 passes for 3. Frozen weights have no gradient: 3 passes for 2.
    assert recompute_costs("lora") == pytest.approx(0.5, abs=0.05)
    assert recompute_costs("full") == pytest.approx(1 / 3, abs=0.02)
