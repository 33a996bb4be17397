"""What crosses between stages is planned to the byte, refused in a sentence, and paid for."""

from typing import Any

import pytest

from control.planning.place import place
from control.planning.plan import Plan
from tests.unit.control.planning.papers import NEMOTRON, a_model_job, machine, on_paper
from tests.unit.control.planning.pools import a_fellow, a_job, a_model
from transport.errors import SwarmError

ABLE = ["stage", "lora", "full", "boundary", "fixed_int8", "fixed_int4", "rotation", "learned"]


def _plan(kind: str, fellows: int = 2, dtype: str = "bfloat16", **job: Any) -> Plan:
    pool = [a_fellow(letter, features=ABLE) for letter in "abc"[:fellows]]
    model = {"id": "local:demo", "dtype": dtype}
    compression = {"kind": kind} | job.pop("compression", {})
    asked = a_job(
        model=model, train__batch_size=4, train__seq_len=64, compression=compression, **job
    )
    return place(a_model(), asked, pool)


@pytest.mark.parametrize(
    ("kind", "dtype", "token_bytes"),
    [
        ("none", "float32", 2304),
        ("none", "bfloat16", 1152),
        ("fixed_int8", "bfloat16", 578),
        ("fixed_int4", "float32", 290),
        ("rotation", "bfloat16", 288),
        ("rotation", "float32", 288),
        ("learned", "bfloat16", 290),
    ],
)
def test_a_plan_says_what_crosses_each_boundary(kind: str, dtype: str, token_bytes: int) -> None:
    boundary = _plan(kind, dtype=dtype).view.layout.boundary
    assert boundary is not None
    assert (boundary.kind, boundary.token_bytes) == (kind, token_bytes)
    assert boundary.step_bytes == 4 * 64 * token_bytes


def test_a_rotation_takes_a_quarter_or_the_bits_that_were_asked_for_and_says_so() -> None:
    view = _plan("rotation").view
    assert view.settings is not None
    assert view.settings.compression.bits == 4
    told = {one.setting: one.reason for one in view.chosen}
    assert told["compression.bits"] == "a quarter of float16's bytes"
    boundary = view.layout.boundary
    assert boundary is not None
    assert boundary.share == 0.25
    # 16,384 tokens each way as they are, and two bases of 576 x 576 numbers of 16 bits
    assert 2 * 16_384 * 1152 < boundary.before_bytes < 2 * (16_384 * 1152 + 700_000)
    eighth = _plan("rotation", compression={"bits": 2}).view.layout.boundary
    assert eighth is not None
    assert (eighth.token_bytes, eighth.share) == (144, 0.125)


def test_a_learned_bottleneck_is_half_the_width_and_has_adapters_on_the_feed_forward_layers() -> (
    None
):
    view = _plan("learned").view
    assert view.settings is not None
    assert (view.settings.compression.dim, view.settings.compression.bits) == (288, 8)
    told = {one.setting: one.reason for one in view.chosen}
    assert told["compression.bottleneck_dim"] == "half the hidden width"
    assert view.settings.lora is not None
    assert {"q_proj", "down_proj"} <= set(view.settings.lora.target_modules)
    assert "adapt to the learned bottleneck" in told["model.lora.target_modules"]
    for job in ({"mlp": False}, {"target_modules": ["q_proj"]}):
        model = {"id": "local:demo", "lora": job}
        pool = [a_fellow(letter, features=ABLE) for letter in "ab"]
        plan = place(a_model(), a_job(model=model, compression={"kind": "learned"}), pool)
        assert plan.view.settings is not None
        assert plan.view.settings.lora is not None
        assert "down_proj" not in plan.view.settings.lora.target_modules


def test_a_bottleneck_alone_trains_on_two_fellows_at_least_and_on_a_frozen_base() -> None:
    alone = _plan("learned", fellows=1, method="boundary")
    assert not alone.fits
    assert "1 with a usable card, 2 needed" in alone.view.reason
    view = _plan("learned", method="boundary", compression={"bottleneck_dim": 100}).view
    assert view.settings is not None
    assert (view.settings.method, view.settings.lora) == ("boundary", None)
    assert view.settings.compression.dim == 100
    trained = {
        card.stage: {segment.kind: segment.bytes for segment in card.segments}["lora"]
        for card in view.cards
        if card.used
    }
    # 576 x 100 and a bias on either side, in float32
    assert trained == {0: 4 * 100 * 577, 1: 4 * 576 * 101}


def test_one_stage_compresses_nothing_and_says_why() -> None:
    view = _plan("fixed_int8", fellows=1).view
    assert view.settings is not None
    assert view.settings.compression.kind == "none"
    assert view.layout.boundary is None
    told = [one for one in view.chosen if one.setting == "compression.kind"]
    assert told[0].reason == "one stage: nothing crosses a boundary"


def test_a_fellow_that_cannot_code_is_left_out_and_named() -> None:
    old = a_fellow("c")
    plan = place(
        a_model(),
        a_job(compression={"kind": "fixed_int8"}),
        [a_fellow("a", features=ABLE), a_fellow("b", features=ABLE), old],
    )
    left = {card.hostname: card.reason for card in plan.view.cards if not card.used}
    assert "cannot do fixed_int8" in left["host-c"]
    assert len(plan.stages) == 2


@pytest.mark.parametrize(
    ("job", "says"),
    [
        ({"compression": {"kind": "fixed_int8", "bits": 4}}, "it is 8"),
        ({"compression": {"kind": "learned", "bits": 4}}, "it is 8"),
        ({"compression": {"kind": "learned", "bottleneck_dim": 576}}, "no narrower than"),
        ({"method": "boundary"}, "kind is none"),
        ({"method": "boundary", "compression": {"kind": "learned"}, "max_workers": 1}, "needs two"),
        ({"compression": {"kind": "none", "bits": 4}}, "cannot be chosen"),
        ({"compression": {"kind": "rotation", "bits": 9}}, "2 to 8 bits"),
        ({"compression": {"kind": "fixed_int4", "bottleneck_dim": 64}}, "has no meaning"),
        ({"compression": {"kind": "fixed_int4"}, "train__backend": "gloo"}, "backend swarm"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(job: dict[str, Any], says: str) -> None:
    with pytest.raises(SwarmError) as refusal:
        place(a_model(), a_job(**job), [a_fellow("a", features=ABLE)])
    assert refusal.value.code == "invalid-input"
    assert says in refusal.value.message
    assert refusal.value.hint


def test_the_network_s_line_says_whether_the_codes_pay() -> None:
    def step(kind: str, rate: float) -> tuple[float, str]:
        line = {"up_bytes_per_s": rate, "down_bytes_per_s": 4 * rate}
        pool = on_paper(
            NEMOTRON, machine("atlas", "RTX 4090", **line), machine("borealis", "RTX 4090", **line)
        )
        job = a_model_job(
            NEMOTRON, 4, train__batch_size=8, train__seq_len=512, compression={"kind": kind}
        )
        layout = pool.place(job).view.layout
        return layout.step_s or 0.0, layout.network

    plain, _ = step("none", 2.5e6)
    coded, words = step("fixed_int8", 2.5e6)
    assert coded < 0.7 * plain
    assert "fixed_int8 pays" in words
    assert "fixed_int8 does not pay" in step("fixed_int8", 1.25e10)[1]
