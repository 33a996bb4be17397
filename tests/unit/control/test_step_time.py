"""Where a step went: the play of it, the two kinds of waiting, the limit, the best change."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.records.pipeline_clock import Course, StageWork, actions, step_s
from control.records.step_time import Marked, Run, mean_marks, where_it_went

PARTS = st.integers(1, 12)
STAGES = st.lists(
    st.builds(StageWork, st.floats(0.01, 9), st.floats(0.01, 9), st.floats(0, 3)),
    min_size=1,
    max_size=6,
)


def marked(layers: int = 6, **spent: float) -> Marked:
    return Marked(layers, spent)


def run(parts: int = 4, *, batch: int = 8, compressed: bool = False) -> Run:
    return Run(batch, parts, "1f1b", compressed)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("stages", "parts"), [(1, 3), (2, 4), (4, 8), (3, 2)])
def test_equal_stages_idle_by_the_share_that_the_textbook_says(
    schedule: str, stages: int, parts: int
) -> None:
    played = step_s([StageWork(1.0, 2.0)] * stages, Course(parts, schedule))
    assert played == pytest.approx(3.0 * (parts + stages - 1))


@given(STAGES, PARTS, st.sampled_from(["1f1b", "gpipe"]), st.floats(0, 5))
def test_a_step_is_never_shorter_than_its_busiest_stage_nor_longer_with_faster_links(
    stages: list[StageWork], parts: int, schedule: str, hop_s: float
) -> None:
    course = Course(parts, schedule)
    fast, slow = step_s(stages, course), step_s(stages, course, hop_s)
    busiest = max(s.once_s + parts * (s.forward_s + s.backward_s) for s in stages)
    in_a_row = sum(s.once_s + parts * (s.forward_s + s.backward_s) for s in stages)
    assert busiest <= fast * (1 + 1e-9)
    assert fast <= in_a_row * (1 + 1e-9)
    assert fast <= slow * (1 + 1e-9)


@given(st.integers(1, 6), PARTS)
def test_every_micro_batch_goes_once_each_way_with_as_many_open_as_stages_follow(
    stages: int, parts: int
) -> None:
    for stage in range(stages):
        told = actions(stage, stages, Course(parts, "1f1b"))
        assert sorted(told) == sorted((way, m) for way in (True, False) for m in range(parts))
        opened = [sum(1 if fwd else -1 for fwd, _ in told[:k]) for k in range(len(told) + 1)]
        assert min(opened) == 0
        assert max(opened) <= (min(parts, stages - stage) if parts >= stages else parts)


def test_waiting_that_links_do_not_cause_is_bubble_and_the_rest_is_theirs() -> None:
    # Two equal stages, 4 micro-batches of 1 + 1 s: 8 s of work in a step of 10 s, so 2 s of bubble.
    stages = [marked(forward=4.0, backward=4.0, wait=3.0) for _ in range(2)]
    told = where_it_went(stages, run(), 20)
    assert [(s.bubble_s, s.link_s) for s in told.stages] == [(2.0, 1.0)] * 2
    assert told.limit.startswith("the compute of stage 0: 73 %")
    assert (told.steps, told.step_s) == (20, 11.0)


@given(
    st.lists(
        st.fixed_dictionaries(
            {name: st.floats(0, 9) for name in ("forward", "backward", "wait", "control", "new")}
        ),
        min_size=1,
        max_size=5,
    )
)
def test_the_parts_of_a_stage_add_up_to_its_step(spent: list[dict[str, float]]) -> None:
    told = where_it_went([Marked(4, one) for one in spent], run(), 3)
    for shown, one in zip(told.stages, spent, strict=True):
        parts = shown.model_dump(exclude={"stage"})
        assert sum(v or 0.0 for v in parts.values()) == pytest.approx(sum(one.values()), abs=1e-9)
        assert min(v or 0.0 for v in parts.values()) >= -1e-9


def test_a_bubble_is_answered_by_more_micro_batches_with_the_gain_that_they_bring() -> None:
    stages = [marked(forward=4.0, backward=4.0, wait=8.0) for _ in range(2)]
    told = where_it_went(stages, run(1), 20)
    assert told.suggestion == "set train.micro_batches to 8"
    assert told.gain == pytest.approx(1 - 9.0 / 16.0, abs=1e-3)  # 8 * (8 + 1) / 8 s


def test_a_slow_link_is_answered_by_compression_unless_it_is_on() -> None:
    stages = [marked(forward=4.0, backward=4.0, wait=20.0) for _ in range(2)]
    told = where_it_went(stages, run(8), 20)
    assert told.limit.startswith("the links")
    assert told.suggestion is not None
    assert told.suggestion.startswith("compress")
    assert told.gain is not None
    assert told.gain > 0.4
    again = where_it_went(stages, run(8, compressed=True), 20)
    assert again.suggestion is None or "compress" not in again.suggestion


def test_an_uneven_split_is_answered_by_where_its_boundaries_should_be() -> None:
    slow = marked(10, forward=10.0, backward=10.0, wait=0.0)
    fast = marked(2, forward=1.0, backward=1.0, wait=18.0)
    told = where_it_went([slow, fast], run(8), 20)
    assert told.suggestion == "set layer_index to [4], if a plan still fits"
    assert told.gain is not None
    assert told.gain > 0.5


def test_recompute_data_and_saving_are_named_when_they_cost_most() -> None:
    again = [marked(forward=4.0, recompute=4.0, backward=4.0) for _ in range(1)]
    assert "recompute" in str(where_it_went(again, run(), 1).suggestion)
    reading = [marked(forward=1.0, backward=1.0, data=5.0)]
    told = where_it_went(reading, run(), 1)
    assert told.limit.startswith("reading data on stage 0")
    assert "disk" in str(told.suggestion)
    saving = [marked(forward=4.0, backward=4.0, snapshot=2.0)]
    assert "snapshot_every_steps" in str(where_it_went(saving, run(), 1).suggestion)


def test_a_single_busy_stage_is_told_that_nothing_single_helps() -> None:
    told = where_it_went([marked(forward=4.0, backward=4.0, control=0.1)], run(8), 20)
    assert (told.suggestion, told.gain) == (None, None)
    assert told.stages[0].recompute_s is None


def test_means_are_over_all_steps_and_unknown_when_one_did_not_tell() -> None:
    assert mean_marks([{"wait": 1.0}, {"wait": 3.0, "data": 2.0}]) == {"data": 1.0, "wait": 2.0}
    assert mean_marks([{"wait": 1.0}, {}]) == mean_marks([]) == {}
