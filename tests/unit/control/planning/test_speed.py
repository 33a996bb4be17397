"""Speed, links, disks and old versions: what moves layers, and what the plan says of it."""

from typing import Any

import pytest

from control.planning.place import place
from control.planning.plan import Plan
from control.planning.usable import FellowNow
from tests.unit.control.planning.papers import NEMOTRON, a_model_job, machine, on_paper
from tests.unit.control.planning.pools import a_card, a_fellow, a_job, a_model

FAST, SLOW = {"float32": 20.0}, {"float32": 2.0}


def _pool(*gb: float, second: dict[str, float] | None = None) -> list[FellowNow]:
    first = a_fellow("a", a_card(gb=gb[0], tflops=SLOW))
    return [first, a_fellow("b", a_card(gb=gb[1], tflops=FAST if second is None else second))]


def _split(plan: Plan) -> str:
    (found,) = [one for one in plan.view.chosen if one.setting == "split"]
    return found.reason


def _counts(plan: Plan) -> dict[str, int]:
    return {s.fellow_id[-1]: s.last_layer - s.first_layer + 1 for s in plan.stages}


def test_layers_go_to_the_fast_card_and_the_reason_shows_both_splits() -> None:
    plan = place(a_model(), a_job(train__batch_size=1), _pool(6.0, 6.0))
    assert _counts(plan)["b"] == 29
    assert "by measured float32 speed" in _split(plan)
    assert "by free memory), a step predicted" in _split(plan)
    even = place(a_model(), a_job(train__batch_size=16), _pool(6.0, 6.0, second=SLOW))
    assert sorted(_counts(even).values()) == [11, 19]  # the head is as large as eight layers


def test_a_gaining_card_keeps_a_gigabyte_free_and_a_giving_one_does_not() -> None:
    plan = place(a_model(), a_job(train__batch_size=4, train__seq_len=512), _pool(6.0, 3.0))
    used = {card.hostname: card for card in plan.view.cards}
    gaining, giving = used["host-b"], used["host-a"]
    assert (gaining.free_bytes or 0) - (gaining.planned_bytes or 0) >= 1_000_000_000
    tight = place(a_model(), a_job(train__batch_size=4), _pool(6.0, 1.2))
    assert "by free memory; no layer moved" in _split(tight) or _counts(tight)["b"] < 15
    assert giving.used


def test_a_card_without_a_figure_leaves_the_split_by_memory_and_is_named() -> None:
    plan = place(a_model(), a_job(train__batch_size=1), _pool(6.0, 6.0, second={}))
    assert _split(plan) == "by free memory: no measured speed for host-b's CPU #0"
    assert plan.view.layout.step_s is None


@pytest.mark.parametrize(
    ("job", "counts"), [({"layer_index": [20]}, {10, 20}), ({"partition": "equal"}, {15})]
)
def test_pinned_boundaries_and_an_equal_split_are_never_moved(
    job: dict[str, Any], counts: set[int]
) -> None:
    plan = place(a_model(), a_job(train__batch_size=1, **job), _pool(6.0, 6.0))
    assert set(_counts(plan).values()) == counts
    assert plan.view.layout.step_s is not None


def test_a_fellow_of_an_old_version_keeps_a_job_to_two_and_is_named() -> None:
    pool = [a_fellow(letter, a_card(gb=size)) for letter, size in zip("abc", (2.0, 3.0, 4.0))]
    old = [*pool, a_fellow("d", a_card(gb=6.0), version="0.0.9")]
    plan = place(a_model(), a_job(train__batch_size=1), old)
    assert {stage.fellow_id[-1] for stage in plan.stages} == {"c", "d"}
    left = {card.hostname: card.reason for card in plan.view.cards if not card.used}
    assert "host-d runs a version from before pipelines of more than two stages" in left["host-a"]
    waits = place(a_model(), a_job(train__batch_size=1, min_workers=3), old)
    assert not waits.fits
    assert "host-d runs a version" in waits.reason
    assert "swarm update" in waits.reason
    assert plan.view.settings is not None
    assert not plan.view.settings.recompute


def _on_lines(bytes_per_s: float) -> Plan:
    line = {"up_bytes_per_s": bytes_per_s, "down_bytes_per_s": 4 * bytes_per_s}
    inputs = on_paper(
        NEMOTRON, machine("atlas", "RTX 4090", **line), machine("borealis", "RTX 4090", **line),
        machine("cedar", "RTX 4090", **line),
    )  # fmt: skip
    return inputs.place(a_model_job(NEMOTRON, 4, train__batch_size=8, train__seq_len=512))


def test_links_with_figures_enter_the_step_and_the_limiting_one_is_named() -> None:
    slow, fast = _on_lines(2.5e6), _on_lines(1.25e10)
    assert "limits the step" in slow.view.layout.network
    assert "uplink of 20 Mb/s" in slow.view.layout.network
    assert "compression to a quarter pays" in slow.view.layout.network
    assert "does not pay" in fast.view.layout.network
    assert (slow.view.layout.step_s or 0) > 2 * (fast.view.layout.step_s or 0)
    assert "the network counted" in slow.view.summary


def test_without_figures_the_network_is_left_out_and_that_is_said() -> None:
    inputs = on_paper(
        NEMOTRON, machine("atlas", "RTX 4090", up_bytes_per_s=1e6, down_bytes_per_s=1e6),
        machine("borealis", "RTX 4090"),
    )  # fmt: skip
    plan = inputs.place(a_model_job(NEMOTRON, 4))
    assert plan.view.layout.network == ""
    assert "links have no figures" in " ".join(plan.view.notes)


def test_the_first_and_last_stage_see_tokens_and_no_order_is_proven_faster() -> None:
    plan = _on_lines(1.25e9)
    assert [stage.sees_tokens for stage in plan.view.layout.stages] == [True, False, True]
    assert plan.view.layout.bound_s is not None
    assert plan.view.layout.bound_s <= (plan.view.layout.step_s or 0) * (1 + 1e-9)


def test_a_gaining_fellow_needs_the_disk_for_its_files() -> None:
    def split(disk_gb: float) -> dict[str, int]:
        inputs = on_paper(
            NEMOTRON,
            machine(
                "atlas", {"card": "GTX 1660 SUPER", "count": 2, "free_gb": 5.8}, disk_free_gb=99
            ),
            machine("borealis", {"card": "RTX A4000", "free_gb": 12.4}, disk_free_gb=disk_gb),
        )
        job = a_model_job(NEMOTRON, 4, train__seq_len=384, train__batch_size=1)
        plan = inputs.place(job)
        assert plan.fits
        for stage in plan.view.layout.stages:
            assert (stage.download_bytes or 0) + 5e8 <= (stage.disk_free_bytes or 0)
        return {s.hostname: s.last_layer - s.first_layer + 1 for s in plan.view.layout.stages}

    assert split(99)["borealis"] == 40
    assert 28 <= split(20)["borealis"] < 40


def test_slow_lines_stand_at_the_ends_and_the_bound_is_near() -> None:
    def line(mbit: float) -> dict[str, float]:
        return {"up_bytes_per_s": mbit * 125e3, "down_bytes_per_s": mbit * 125e3}

    rates = {"a": 20, "b": 1000, "c": 1000, "d": 40, "e": 1000, "f": 1000}
    inputs = on_paper(
        NEMOTRON, *[machine(name, "RTX 3060", **line(rate)) for name, rate in rates.items()]
    )
    layout = inputs.place(a_model_job(NEMOTRON, 4, train__batch_size=8)).view.layout
    hosts = [stage.hostname for stage in layout.stages]
    assert {hosts[0], hosts[-1]} == {"a", "d"}
    assert layout.bound_s is not None
    assert layout.step_s is not None
    assert layout.step_s <= 1.2 * layout.bound_s
