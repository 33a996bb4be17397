"""What a verification compares and allows: the probe's settings, tolerances, differences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.jobs.verdict import (
    EQUAL,
    Losses,
    largest_difference,
    probe_settings,
    tolerance_of,
)
from tests.oracle.settings import some_settings
from transport.orders import CompressionSettings, LoraSettings


def test_a_probe_trains_at_full_rate_without_dropout_and_says_what_it_changed() -> None:
    lora = LoraSettings(rank=4, alpha=8.0, dropout=0.1, target_modules=["q_proj"])
    asked = some_settings(steps=500, warmup_steps=50, batch_size=8, micro_batches=4, lora=lora)
    probe, differs = probe_settings(asked)
    assert (probe.steps, probe.warmup_steps, probe.lr_schedule) == (4, 0, "constant")
    assert (probe.batch_size, probe.micro_batches) == (4, 4)
    assert probe.lora is not None
    assert probe.lora.dropout == 0.0
    assert "steps 4 instead of 500" in differs
    assert "no dropout instead of 0.1" in differs
    kept = {"learning_rate", "seq_len", "dtype", "quantization", "compression", "schedule", "seed"}
    assert {name: getattr(probe, name) for name in kept} == {
        name: getattr(asked, name) for name in kept
    }


@pytest.mark.parametrize(
    ("changes", "stages", "nats"),
    [
        ({}, 3, EQUAL),
        ({"quantization": "nf4"}, 3, EQUAL),
        ({"dtype": "bfloat16"}, 2, 0.02),
        ({"dtype": "float16", "method": "full", "lora": None}, 2, 0.005),
        ({"compression": CompressionSettings(kind="rotation", bits=4)}, 1, EQUAL),
        ({"compression": CompressionSettings(kind="rotation", bits=4)}, 3, EQUAL + 0.05),
        ({"compression": CompressionSettings(kind="rotation", bits=2)}, 5, EQUAL + 0.3),
    ],
)
def test_number_format_and_compression_decide_what_is_allowed(
    changes: dict[str, object], stages: int, nats: float
) -> None:
    assert tolerance_of(some_settings(**changes), stages).nats == pytest.approx(nats)


LOSS = st.floats(0, 20)


@given(st.lists(st.tuples(LOSS, LOSS), min_size=1, max_size=4))
def test_the_largest_difference_is_named_by_its_place(pairs: list[tuple[float, float]]) -> None:
    ours, theirs = (list(one) for one in zip(*pairs))
    found = largest_difference(Losses(ours, [1.0]), Losses(theirs, [1.0]))
    assert found is not None
    apart, place = found
    assert apart == max(abs(a - b) for a, b in pairs)
    if apart:
        number = int(place.removeprefix("step "))
        assert abs(ours[number - 1] - theirs[number - 1]) == apart


def test_runs_of_other_lengths_have_no_difference() -> None:
    assert largest_difference(Losses([1.0], []), Losses([1.0, 2.0], [])) is None
    assert largest_difference(Losses([1.0], [2.0]), Losses([1.0], [])) is None
    assert largest_difference(Losses([], []), Losses([], [])) is None
