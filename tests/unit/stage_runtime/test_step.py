"""What the pipeline agrees on in a step, seen on a stage that runs alone or beside a twin."""

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from stage_runtime.checkpoint import open_checkpoint
from stage_runtime.marks import Marks
from stage_runtime.process_group import make_group
from stage_runtime.stage_group import StageGroup
from stage_runtime.step import RunningStage, run_step
from stage_runtime.train import LoadedRun, _assemble, _batch, boundary_of, load, train
from stage_runtime.worker import failure_of
from tests.oracle.grid import Ground, Point
from transport.direct import PipelineLinks
from transport.errors import SwarmError
from transport.link import LinkName
from transport.orders import StageOrder


class TwinGroup:
    """A group whose other stages say what the test wants: adds their values to the exchange."""

    def __init__(self, inner: StageGroup, others: list[float]) -> None:
        self._inner = inner
        self.others = others
        self.wait_s, self.sent_bytes, self.received_bytes = 0.0, 0, 0
        self.marks, self.engine_mark = Marks(), inner.engine_mark

    def begin_step(self, step: int) -> None:
        self._inner.begin_step(step)

    def check(self) -> None:
        self._inner.check()

    def fail(self, error: SwarmError) -> None:
        self._inner.fail(error)

    def exchange(self, values: Any, timeout_s: float | None = None) -> list[float]:
        totals = self._inner.exchange(values, timeout_s)
        if len(totals) != len(self.others):  # not the step's own: the check of the first gradients
            return totals
        return [a + b for a, b in zip(totals, self.others, strict=True)]

    def close(self, drain_s: float = 2.0) -> None:
        self._inner.close(drain_s)


class Alone:
    """A loaded run of one stage, its group, and what it reported."""

    def __init__(self, ground: Ground, point: Point, **changes: Any) -> None:
        case = ground.case(point)
        settings = case.settings.model_copy(update=changes)
        (self.order,) = case.orders([(0, case.num_layers - 1)])
        self.order = self.order.model_copy(update={"settings": settings})
        self.reports: list[Any] = []
        token_file = ground.cache / "tokens" / f"{case.tokens.digest}.safetensors"
        checkpoint = open_checkpoint(ground.model(point.model))
        self.run: LoadedRun = load(self.order, checkpoint, token_file, self._report, 0)
        self.group = a_group(self.order, self.run)

    def _report(self, kind: Any, **values: Any) -> None:
        self.reports.append((kind.__name__, values))


def a_group(order: StageOrder, run: LoadedRun) -> StageGroup:
    links = PipelineLinks.open(LinkName(order.job_id, 1, 0, 0), 1, "127.0.0.1")
    return make_group(order, links, [boundary_of(run)])


@pytest.fixture
def alone(ground: Ground) -> Iterator[Alone]:
    made = Alone(ground, Point("llama", 1, 2))
    yield made
    made.group.close()


def weights_of(stage: RunningStage) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in stage.trained.items()}


def test_a_gradient_that_is_no_number_leaves_every_weight_as_it_was(alone: Alone) -> None:
    stage = _assemble(alone.run, alone.group)
    name = min(stage.trained)
    handle = stage.trained[name].register_hook(lambda grad: grad * float("inf"))  # type: ignore[no-untyped-call]
    before = weights_of(stage)
    outcome = run_step(stage, 1, _batch(alone.run, 1))
    assert (outcome.skipped, outcome.grad_norm) == (True, None)
    assert math.isfinite(outcome.loss)
    assert all(torch.equal(before[n], w) for n, w in stage.trained.items())
    assert all(weight.grad is None for weight in stage.trained.values())

    handle.remove()
    outcome = run_step(stage, 2, _batch(alone.run, 2))
    assert not outcome.skipped
    assert any(not torch.equal(before[n], w) for n, w in stage.trained.items())


def test_another_stages_bad_gradient_holds_this_stage_back_too(alone: Alone) -> None:
    twin = TwinGroup(alone.group, [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    stage = _assemble(alone.run, alone.group)
    stage.group = twin
    before = weights_of(stage)
    outcome = run_step(stage, 1, _batch(alone.run, 1))
    assert outcome.skipped
    assert all(torch.equal(before[n], w) for n, w in stage.trained.items())


@pytest.mark.parametrize("here", [True, False], ids=["this stage", "another stage"])
def test_an_overflow_in_float16_halves_the_scale_on_every_stage_and_training_goes_on(
    ground: Ground, here: bool
) -> None:
    made = Alone(ground, Point("llama", 1, 2), dtype="float16")
    try:
        stage = _assemble(made.run, made.group)
        first = stage.scale.value
        handle = None
        if here:
            weight = stage.trained[min(stage.trained)]
            handle = weight.register_hook(lambda grad: grad * float("inf"))  # type: ignore[no-untyped-call]
        else:
            stage.group = TwinGroup(made.group, [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
        before = weights_of(stage)
        skipped = run_step(stage, 1, _batch(made.run, 1))
        assert (skipped.skipped, stage.scale.value) == (True, first / 2)
        assert all(torch.equal(before[n], w) for n, w in stage.trained.items())
        assert all(weight.dtype == torch.float32 for weight in stage.trained.values())

        if handle is not None:
            handle.remove()
        stage.group = made.group
        outcome = run_step(stage, 2, _batch(made.run, 2))
        assert not outcome.skipped
        assert stage.scale.value == first / 2
    finally:
        made.group.close()


def test_the_norm_and_the_update_do_not_depend_on_the_loss_scale(ground: Ground) -> None:
    told = []
    for scale in (1.0, 2.0**12):
        made = Alone(ground, Point("llama", 1, 2), max_grad_norm=1e-3)
        try:
            stage = _assemble(made.run, made.group)
            stage.scale.value = scale
            outcome = run_step(stage, 1, _batch(made.run, 1))
            told.append((outcome.loss, outcome.grad_norm, weights_of(stage)))
        finally:
            made.group.close()
    assert told[0][0] == told[1][0]
    assert told[0][1] == pytest.approx(told[1][1], rel=1e-5)
    for name, weight in told[0][2].items():
        torch.testing.assert_close(weight, told[1][2][name])


def test_a_tensor_without_a_gradient_stops_the_first_step_by_name(alone: Alone) -> None:
    stage = _assemble(alone.run, alone.group)
    stage.trained["a.lora_A.weight"] = torch.nn.Parameter(torch.zeros(2))
    with pytest.raises(SwarmError, match=r"a\.lora_A\.weight got no gradient") as stopped:
        run_step(stage, 1, _batch(alone.run, 1))
    assert stopped.value.facts["echo"] is False


def note_norm(seen: list[float], weights: list[torch.nn.Parameter], *_: Any) -> None:
    """What an update is made with."""
    grads = [weight.grad for weight in weights if weight.grad is not None]
    seen.append(math.sqrt(sum(float(grad.square().sum()) for grad in grads)))


def test_the_clip_sees_the_norm_of_all_stages_or_of_this_one(ground: Ground) -> None:
    norms = {}
    for clip in ("pipeline", "stage"):
        made = Alone(ground, Point("llama", 1, 2), clip=clip, max_grad_norm=1e-3)
        try:
            stage = _assemble(made.run, made.group)
            stage.group = TwinGroup(made.group, [1e4, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
            seen: list[float] = []
            weights = list(stage.trained.values())
            stage.optimizer.register_step_pre_hook(partial(note_norm, seen, weights))
            outcome = run_step(stage, 1, _batch(made.run, 1))
        finally:
            made.group.close()
        assert outcome.grad_norm is not None
        assert outcome.grad_norm > 100
        norms[clip] = seen[0]
    assert norms["stage"] == pytest.approx(1e-3, rel=0.01)
    assert norms["pipeline"] < 0.1 * norms["stage"]


def test_a_step_without_any_target_changes_nothing_and_is_counted(alone: Alone) -> None:
    stage = _assemble(alone.run, alone.group)
    assert alone.run.sequences is not None
    nothing = alone.run.sequences.batch([-1] * 4, alone.order.settings.seq_len)
    before = weights_of(stage)
    outcome = run_step(stage, 1, nothing)
    assert (outcome.skipped, outcome.supervised_tokens, outcome.empty_micro_batches) == (True, 0, 2)
    assert all(torch.equal(before[n], w) for n, w in stage.trained.items())


def test_a_budget_passed_in_a_step_ends_in_a_refusal_with_the_numbers(
    alone: Alone, tmp_path: Path
) -> None:
    held = alone.run.meter.held_bytes()
    small = alone.run.meter.cards[0].model_copy(update={"budget_bytes": held + 10_000})
    alone.run.meter.cards[0] = small
    with pytest.raises((RuntimeError, torch.OutOfMemoryError)) as refusal:
        train(alone.run, alone.group, lambda *_, **__: None, tmp_path)
    told = failure_of(refusal.value)
    assert told.code == "cannot-fit"
    assert "budget" in told.message


def test_a_pause_stops_a_stage_within_a_block(alone: Alone) -> None:
    stage = _assemble(alone.run, alone.group)
    calls = 0
    check = alone.group.check

    def stop_at_the_fourth_block() -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            alone.group.fail(SwarmError("stage-failed", "enough"))
        check()

    for block in alone.run.stage.blocks:
        object.__setattr__(block.plan, "guard", stop_at_the_fourth_block)
    with pytest.raises(Exception) as stopped:
        run_step(stage, 1, _batch(alone.run, 1))
    assert failure_of(stopped.value).message == "enough"
    assert calls == 4


def test_a_model_of_other_layers_than_the_order_says_is_refused(ground: Ground) -> None:
    case = ground.case(Point("llama", 1))
    (order,) = case.orders([(0, 5)])
    with pytest.raises(SwarmError) as refusal:
        load(
            order.model_copy(update={"num_layers": 7}),
            open_checkpoint(ground.model("llama")),
            None,
            lambda *_, **__: None,
            0,
        )
    assert refusal.value.code == "plan-changed"


def test_more_positions_than_gpt2_has_are_refused(ground: Ground) -> None:
    with pytest.raises(SwarmError, match="64 positions") as refusal:
        Alone(ground, Point("gpt2", 1), seq_len=65)
    assert refusal.value.code == "invalid-input"
