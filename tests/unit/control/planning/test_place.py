"""Plans hold together, say why they would wait, and never overflow a card in silence."""

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control.planning.difference import holds
from control.planning.place import place
from control.planning.plan import Plan
from control.planning.search import PlannedModel
from control.planning.usable import FellowNow
from tests.unit.control.planning.pools import (
    GB,
    QWEN3_14B,
    SMOLLM2,
    a_card,
    a_fellow,
    a_job,
    a_model,
)
from transport.api.plans import DataShape, PlannedCard
from transport.errors import SwarmError

LETTERS = "abcdefghijkmnpqrstuv"


def a_pool(*gb: float, **card: Any) -> list[FellowNow]:
    return [a_fellow(letter, a_card(gb=size, **card)) for letter, size in zip(LETTERS, gb)]


def _counts(plan: Plan) -> list[int]:
    return [stage.last_layer - stage.first_layer + 1 for stage in plan.stages]


def _used(plan: Plan) -> list[PlannedCard]:
    return [card for card in plan.view.cards if card.used]


def _reasons(plan: Plan) -> dict[str, str]:
    return {card.hostname: card.reason for card in plan.view.cards if not card.used}


def _assert_sound(plan: Plan, num_layers: int) -> None:
    """Every layer once, every bar exact, no card over its end unsaid, orders as shown."""
    layers = [i for s in plan.stages for i in range(s.first_layer, s.last_layer + 1)]
    assert layers == (list(range(num_layers)) if plan.stages else [])
    on_cards = [
        i for s in plan.stages for c in s.cards for i in range(c.first_layer, c.last_layer + 1)
    ]
    assert on_cards == layers
    for card in plan.view.cards:
        sizes = {segment.kind: segment.bytes for segment in card.segments}
        overflow = sizes.pop("overflow", 0)
        if card.free_bytes is not None:
            assert sum(sizes.values()) == card.total_bytes
        assert card.used == (card.reason == "")
        if card.used:
            planned = sum(sizes.values()) - sizes.get("other", 0) - sizes.get("free", 0)
            assert planned + overflow == card.planned_bytes
            assert overflow == max(0, (card.planned_bytes or 0) - (card.free_bytes or 0))
            assert not (overflow and plan.fits)
    assert (plan.plan_id is not None) == plan.fits == (plan.reason == "")
    assert plan.view.plan_id == plan.plan_id


CARD = st.tuples(st.floats(0.05, 6.0), st.floats(0.0, 1.0), st.sampled_from(["cpu", "cuda"]))
FELLOW = st.tuples(
    st.lists(CARD, min_size=1, max_size=3), st.sampled_from(["ready"] * 4 + ["offline"])
)


def _drawn_pool(drawn: list[Any]) -> list[FellowNow]:
    return [
        a_fellow(
            letter,
            *[
                a_card(i, gb=gb, free_gb=gb * share, kind=kind)
                for i, (gb, share, kind) in enumerate(cards)
            ],
            standing=standing,
        )
        for letter, (cards, standing) in zip(LETTERS, drawn)
    ]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    drawn=st.lists(FELLOW, max_size=5),
    layers=st.integers(1, 12),
    batch=st.sampled_from(["auto", 1, 6, 16]),
    method=st.sampled_from(["lora", "full"]),
)
def test_every_plan_is_sound(drawn: list[Any], layers: int, batch: Any, method: str) -> None:
    pool = _drawn_pool(drawn)
    model = a_model(num_hidden_layers=layers, tie_word_embeddings=layers % 2 == 0)
    job = a_job(train__batch_size=batch, method=method)
    plan = place(model, job, pool)
    _assert_sound(plan, layers)
    assert Plan.model_validate_json(plan.model_dump_json()) == plan
    assert place(model, job, list(reversed(pool))) == plan
    assert holds(plan, pool) == plan.fits


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_200_mb_of_jitter_never_breaks_a_plan_that_still_fits(seed: int) -> None:
    dice = random.Random(seed)
    pool = a_pool(3.0, 2.0, 4.0)
    plan = place(a_model(), a_job(train__batch_size=8), pool)
    roomy = all((c.free_bytes or 0) - (c.planned_bytes or 0) > 0.2 * GB for c in _used(plan))
    assert roomy
    jittered = [
        a_fellow(letter, a_card(gb=size, free_gb=size + dice.uniform(-0.2, 0.0)))
        for letter, size in zip(LETTERS, (3.0, 2.0, 4.0))
    ]
    assert holds(plan, jittered)


def test_the_demo_is_split_by_free_memory_and_said_in_words() -> None:
    plan = place(a_model(), a_job(train__batch_size=8), a_pool(1.0, 1.6, 1.2))
    assert plan.fits
    assert [stage.fellow_id for stage in plan.stages] == ["f-aaaaaaaa", "f-bbbbbbbb", "f-cccccccc"]
    assert _counts(plan)[1] == max(_counts(plan))
    shares = [(card.planned_bytes or 0) / (card.free_bytes or 1) for card in _used(plan)]
    assert max(shares) - min(shares) < 0.05
    assert "host-b layers" in plan.view.summary
    assert "limited by host-" in plan.view.layout.limit
    assert plan.view.layout.idle_share == pytest.approx(2 / 6)
    assert [stage.sees_tokens for stage in plan.view.layout.stages] == [True, False, True]


def test_a_stage_is_spread_over_its_fellows_cards_to_the_same_share() -> None:
    pool = [
        a_fellow("a", a_card(0, 6, kind="cuda"), a_card(1, 12, kind="cuda")),
        a_fellow("b", a_card(0, 24, kind="cuda")),
    ]
    plan = place(a_model(QWEN3_14B), a_job(train__batch_size=1), pool)
    assert plan.fits
    small, large = plan.stages[0].cards
    assert small.last_layer + 1 == large.first_layer
    assert small.last_layer - small.first_layer < large.last_layer - large.first_layer
    shares = [(card.planned_bytes or 0) / (card.free_bytes or 1) for card in _used(plan)]
    assert max(shares) - min(shares) < 0.12  # one layer of the smallest card


def test_the_largest_batch_that_fits_is_taken_and_recompute_only_when_needed() -> None:
    job = a_job(train__seq_len=512)
    roomy, tight, tiny = (place(a_model(), job, a_pool(size)) for size in (16.0, 2.0, 0.6))
    assert roomy.view.settings is not None
    assert (roomy.view.settings.batch_size, roomy.view.settings.recompute) == (32, False)
    assert tight.view.settings is not None
    assert 1 <= tight.view.settings.batch_size < 32
    assert tight.view.settings.recompute is False
    long = place(a_model(), a_job(train__seq_len=4096, train__batch_size=1), a_pool(3.5))
    assert long.view.settings is not None
    assert (long.fits, long.view.settings.recompute) == (True, True)
    never = a_job(train__seq_len=4096, train__batch_size=1, train__recompute=False)
    assert not place(a_model(), never, a_pool(3.5)).fits
    assert not tiny.fits


def test_a_pool_without_memory_waits_with_both_numbers() -> None:
    plan = place(a_model(QWEN3_14B), a_job(), a_pool(6.0, 6.0, kind="cuda"))
    _assert_sound(plan, 40)
    assert not plan.fits
    assert plan.plan_id is None
    assert plan.reason.startswith("not enough memory even at batch 1")
    assert "12 GB free" in plan.reason
    assert any(segment.kind == "overflow" for card in plan.view.cards for segment in card.segments)


@pytest.mark.parametrize("pool", [[], [a_fellow("a", standing="offline")]])
def test_a_pool_without_a_ready_card_waits_for_fellows(pool: list[FellowNow]) -> None:
    plan = place(a_model(), a_job(), pool)
    assert not plan.fits
    assert plan.reason.startswith("not enough ready fellows: 0 with a usable card, 1 needed")
    _assert_sound(plan, 30)


def test_min_workers_waits_until_so_many_are_ready() -> None:
    plan = place(a_model(), a_job(min_workers=3), a_pool(4.0, 4.0))
    assert plan.reason.startswith("not enough ready fellows: 2 with a usable card, 3 needed")


def test_a_fellow_too_small_for_a_stage_is_left_out_with_the_reason() -> None:
    plan = place(a_model(), a_job(train__batch_size=32), a_pool(4.0, 0.11, 4.0))
    assert plan.fits
    assert [stage.fellow_id for stage in plan.stages] == ["f-aaaaaaaa", "f-cccccccc"]
    assert "a stage needs free" in _reasons(plan)["host-b"]


def test_the_two_largest_take_the_ends_when_the_tables_fit_nowhere_else() -> None:
    plan = place(a_model(), a_job(train__batch_size=1), a_pool(0.1, 2.0, 2.0))
    assert plan.fits
    assert [stage.fellow_id for stage in plan.stages] == ["f-bbbbbbbb", "f-aaaaaaaa", "f-cccccccc"]


@pytest.mark.parametrize(
    ("job", "stages", "why"),
    [
        ({"max_workers": 2}, 2, "not needed: max_workers is 2"),
        ({"use_all_workers": False}, 1, "not needed: use_all_workers is off, min_workers 1"),
        ({"layer_index": [10]}, 2, "not needed: layer_index makes 2 stages"),
    ],
)
def test_no_more_fellows_than_asked_for_and_those_with_the_most_room(
    job: dict[str, Any], stages: int, why: str
) -> None:
    plan = place(a_model(), a_job(train__batch_size=1, **job), a_pool(3.0, 6.0, 4.0))
    assert plan.fits
    assert len(plan.stages) == stages
    assert _reasons(plan)["host-a"].startswith(why)


def test_a_full_fine_tune_of_a_tied_model_takes_several_fellows_and_one_set_of_moments() -> None:
    job = a_job(
        method="full", train__batch_size=2, model__dtype="float32", train__snapshot_every_steps=0
    )
    plan = place(a_model(), job, a_pool(2.0, 2.0, 2.0))
    assert plan.fits
    assert len(plan.stages) == 3
    moments = [sum(s.bytes for card in _used(plan) for s in card.segments if s.kind == "optimizer")]
    assert sum(moments) == 8 * a_model().facts.total_params


def test_room_that_recompute_leaves_is_used_for_early_blocks_and_a_margin_is_kept() -> None:
    def planned(gb: float) -> Plan:
        job = a_job(train__batch_size=16, train__seq_len=512, train__recompute=True)
        return place(a_model(), job, a_pool(gb, gb, gb))

    tight, roomy = planned(0.5), planned(4.0)
    assert tight.view.settings is not None
    assert roomy.view.settings is not None
    assert tight.view.settings.early_recompute == 0
    assert roomy.view.settings.early_recompute > 1
    assert _counts(tight) == _counts(roomy)
    for card in _used(roomy):
        free, used = card.free_bytes or 0, card.planned_bytes or 0
        assert free - used >= 0.1 * free
    whole = place(a_model(), a_job(train__batch_size=1), a_pool(4.0, 4.0, 4.0))
    assert whole.view.settings is not None
    assert (whole.view.settings.recompute, whole.view.settings.early_recompute) == (False, 0)


def test_no_more_than_16_fellows_and_no_more_than_layers() -> None:
    many = place(a_model(), a_job(train__batch_size=1), a_pool(*[4.0] * 18))
    assert len(many.stages) == 16
    few = place(a_model(num_hidden_layers=2), a_job(), a_pool(4.0, 5.0, 4.0))
    assert _counts(few) == [1, 1]
    assert "the model has only 2 layers" in "".join(_reasons(few).values())


def test_cards_beyond_the_layers_of_a_stage_are_not_needed() -> None:
    pool = [a_fellow("a", *[a_card(i, 4.0) for i in range(4)])]
    plan = place(a_model(num_hidden_layers=2), a_job(), pool)
    _assert_sound(plan, 2)
    assert plan.fits
    assert len(_used(plan)) == 2


def test_boundaries_are_where_they_are_pinned() -> None:
    plan = place(a_model(), a_job(layer_index=[5, 12], train__batch_size=4), a_pool(4.0, 4.0, 4.0))
    assert _counts(plan) == [5, 7, 18]
    equal = place(a_model(), a_job(partition="equal"), a_pool(2.0, 4.0, 8.0))
    assert _counts(equal) == [10, 10, 10]


@pytest.mark.parametrize(
    "job",
    [
        {"layer_index": [5, 30]},
        {"layer_index": [5, 12], "max_workers": 2},
        {"layer_index": [5], "min_workers": 3},
        {"min_workers": 31},
        {"exclude_cards": ["f-zzzzzzzz:0"]},
    ],
)
def test_contradictory_pins_are_refused_with_what_to_do(job: dict[str, Any]) -> None:
    with pytest.raises(SwarmError) as refusal:
        place(a_model(), a_job(**job), a_pool(4.0, 4.0, 4.0))
    assert refusal.value.code == "invalid-input"
    assert refusal.value.hint


def test_an_excluded_card_is_left_out_by_you() -> None:
    plan = place(a_model(), a_job(exclude_cards=["f-bbbbbbbb:0"]), a_pool(4.0, 4.0))
    assert _reasons(plan) == {"host-b": "left out by you"}


def test_without_the_memory_check_a_plan_is_made_and_its_overflow_shown() -> None:
    job = a_job(memory_check=False, train__batch_size=8)
    plan = place(a_model(), job, a_pool(0.2, 0.2))
    assert plan.fits
    assert "unchecked" in " ".join(plan.view.notes)
    assert all(c.budget_bytes >= c.planned_bytes for s in plan.stages for c in s.cards)
    assert any(s.kind == "overflow" for card in _used(plan) for s in card.segments)
    assert holds(plan, a_pool(0.2, 0.2))


def _with_files(total_gb: float) -> PlannedModel:
    model = a_model()
    layers = {f"model.layers.{i}.w.weight": int(total_gb * GB / 30) for i in range(30)}
    files = {"model.safetensors": {"model.embed_tokens.weight": 10, **layers}}
    return PlannedModel(model.source, model.facts, files)


def test_a_fellow_without_disk_is_left_out_when_the_job_fits_the_others() -> None:
    pool = [a_fellow("a"), a_fellow("b", disk_gb=1.0), a_fellow("c", disk_gb=None)]
    plan = place(_with_files(2.0), a_job(), pool)
    assert plan.fits
    assert [stage.fellow_id for stage in plan.stages] == ["f-aaaaaaaa", "f-cccccccc"]
    assert "left out for disk: host-b has 1 GB free disk" in _reasons(plan)["host-b"]
    assert plan.view.layout.stages[0].download_bytes == pytest.approx(2.0 * GB, rel=0.01)


def test_a_job_that_no_disk_holds_waits_and_files_in_the_cache_still_count() -> None:
    short = a_fellow("a", disk_gb=1.0)
    plan = place(_with_files(2.0), a_job(), [short])
    assert plan.reason.startswith("not enough disk: host-a has 1 GB free disk, its share is 2 GB")
    cached = a_fellow("a", disk_gb=1.0, cached_models=["local/demo@" + "a" * 40])
    assert place(_with_files(2.0), a_job(), [cached]).fits


def _data(sequences: int) -> DataShape:
    return DataShape(
        bucket="bible", tokens=sequences * 128, sequences=sequences, held_out_sequences=4,
        batches=None, passes=None, supervised_share=1.0,
    )  # fmt: skip


def test_the_data_sets_batches_and_passes_and_is_refused_when_shorter_than_a_batch() -> None:
    job = a_job(train__batch_size=8, train__steps=30)
    plan = place(a_model(), job, a_pool(4.0), _data(85))
    assert plan.view.data is not None
    assert (plan.view.data.batches, plan.view.data.passes) == (10, 30 * 8 / 85)
    with pytest.raises(SwarmError, match="shorter than one batch"):
        place(a_model(), job, a_pool(4.0), _data(7))
    small = place(a_model(), a_job(), a_pool(4.0), _data(5))
    assert small.view.settings is not None
    assert small.view.settings.batch_size == 4


def test_a_step_is_predicted_only_when_every_card_is_measured() -> None:
    speeds = {"float32": 2.0}
    pool = a_pool(4.0, 4.0, tflops=speeds)
    plan = place(a_model(), a_job(train__batch_size=8), pool)
    layout, chosen = plan.view.layout, plan.view.settings
    assert chosen is not None
    facts = a_model().facts
    work = 4 * (8 // chosen.micro_batches) * 128 / 2e12
    stages = [n * facts.layer_params[0] * work for n in _counts(plan)]
    stages[-1] += facts.head_params * work
    expected = sum(stages) + (chosen.micro_batches - 1) * max(stages)
    assert layout.step_s == pytest.approx(expected)
    assert layout.step_is == "estimated"
    half = place(a_model(), a_job(train__batch_size=8), [pool[0], a_fellow("b")])
    assert (half.view.layout.step_s, half.view.layout.step_is) == (None, "unknown")
    assert "no measured speed for host-b's CPU #0" in " ".join(half.view.notes)


def test_the_same_inputs_have_the_same_name_and_other_inputs_another() -> None:
    def name(job: Any, *gb: float, **model: Any) -> str | None:
        return place(a_model(**model), job, a_pool(*gb)).plan_id

    job = a_job(train__batch_size=4)
    drifted = [*a_pool(3.2), a_fellow("b", a_card(gb=3.2, free_gb=3.1999))]
    assert name(job, 3.2, 3.2) == place(a_model(), job, drifted).plan_id
    others = {
        name(job, 3.2, 3.2),
        name(job, 3.2, 3.6),
        name(a_job(train__batch_size=4, train__seed=1), 3.2, 3.2),
        name(job, 3.2, 3.2, num_hidden_layers=29),
        name(job, 3.2),
    }
    assert len(others) == 5
    assert None not in others


def test_the_number_format_of_the_job_is_what_every_card_can_run() -> None:
    old = a_fellow("a", a_card(0, 4, kind="cuda", formats=["float32"]))
    new = a_fellow("b", a_card(0, 4, kind="cuda", formats=["float32", "float16"]))
    plan = place(a_model(SMOLLM2), a_job(), [old, new])
    assert plan.view.settings is not None
    assert plan.view.settings.dtype == "float32"
    assert len(plan.stages) == 2
    asked = place(
        a_model(SMOLLM2), a_job(model={"id": "local:demo", "dtype": "float16"}), [old, new]
    )
    assert _reasons(asked) == {"host-a": "does not run float16"}


def test_where_no_card_has_room_each_is_told_its_floor_and_not_a_format() -> None:
    small = a_fellow("a", a_card(0, 1, kind="cuda", formats=["float32", "float16"]))
    large = a_fellow("b", a_card(0, 2, kind="cuda", formats=["float32", "float16", "bfloat16"]))
    plan = place(a_model(QWEN3_14B), a_job(train__seq_len=32_768), [small, large])
    assert not plan.fits
    assert all("floor" in reason for reason in _reasons(plan).values()), _reasons(plan)
