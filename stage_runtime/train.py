"""The run of one stage: load, evaluate, step, evaluate, save. Tells each as a report.

Gets an order, files and a group; gives reports and a file. Does not know processes, channels or
how the links came about.
"""

import gc
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stage_runtime.adapters import digest_of, make_trainable
from stage_runtime.agreement import agree, fingerprint, refuse_nothing_to_train
from stage_runtime.batches import Batch, Seams, Sequences, indices_of_step, open_data
from stage_runtime.bottleneck import Bottleneck, make_bottleneck, named
from stage_runtime.boundaries import Boundaries
from stage_runtime.card_memory import CardMeter, device_of
from stage_runtime.checkpoint import Checkpoint
from stage_runtime.checkpoint_share import StageSpan
from stage_runtime.costs import Prices
from stage_runtime.evaluate import evaluate, forward_batch, num_evaluated
from stage_runtime.load import LoadedStage, load_stage
from stage_runtime.loss import StageLoss
from stage_runtime.loss_scale import LossScale
from stage_runtime.marks import BACKWARD, DATA, FORWARD, LOSS, SNAPSHOT, marks_on
from stage_runtime.optim import adamw
from stage_runtime.places import CardPlace, Device
from stage_runtime.process_group import SwarmGroup, TensorKind
from stage_runtime.progress import StepLog, tell_data, tell_share
from stage_runtime.recompute import Rebuilds
from stage_runtime.result import SavedFile, save_trained
from stage_runtime.saved_state import read_constants, read_loss_scale, restore
from stage_runtime.snapshot import SavePlace, Saver
from stage_runtime.stage import (
    DTYPES,
    BlockPlan,
    Moment,
    StageModule,
    pipeline_stage,
    schedule_for,
    wrap_blocks,
)
from stage_runtime.stage_group import StageGroup, torch_group
from stage_runtime.step import RunningStage, StepOutcome, run_batch, run_step
from stage_runtime.tied import tied_kinds, tied_table
from transport.errors import SwarmError
from transport.orders import StageOrder
from transport.reports import Evaluated, MemoryMeasured, StageLoaded, StepDone
from transport.units import human_bytes

log = logging.getLogger(__name__)

COUNTED_STEPS = 2
"""Steps whose every storage is counted: shapes are fixed, so the peak lies in them."""
Report = Callable[..., None]


@dataclass
class LoadedRun:
    """A stage in memory that has no group yet."""

    order: StageOrder
    stage: LoadedStage
    meter: CardMeter
    devices: list[torch.device]
    trained: dict[str, torch.nn.Parameter]
    sequences: Sequences | Seams | None
    """On the first and the last stage; on those between where they must know documents."""
    bottleneck: Bottleneck | None = None


def span_of(order: StageOrder) -> StageSpan:
    """The order's layers and its place in the pipeline."""
    return StageSpan(order.first_layer, order.last_layer, order.is_first, order.is_last)


def load(
    order: StageOrder, checkpoint: Checkpoint, token_file: Path | None, report: Report, fetched: int
) -> LoadedRun:
    """Read the stage's share onto its cards, make what trains, and tell StageLoaded.

    Raises:
        SwarmError: cannot-fit before anything is allocated; whatever the files are refused for.
        torch.OutOfMemoryError: a card's budget is passed after all.
    """
    started = time.monotonic()
    _refuse_unlike(order, checkpoint)
    devices = [device_of(card) for card in order.cards]
    priced = _price(order, checkpoint, devices)
    meter = CardMeter(order.cards, devices)
    dtype = torch.float32 if order.settings.method == "full" else DTYPES[order.settings.dtype]
    with meter.counting():
        quantization, place_of = order.settings.quantization, _device_of(order, devices)
        stage = load_stage(checkpoint, span_of(order), dtype, quantization, place_of)
        trained = make_trainable(stage, order.settings)
        _place(stage, order, meter, devices)
        hidden = checkpoint.facts.hidden
        bottleneck = make_bottleneck(order, hidden, DTYPES[order.settings.dtype], devices)
        if bottleneck is not None:
            trained |= named(bottleneck, order)
        refuse_nothing_to_train(order, trained)
    sequences = None
    if token_file is not None:
        sequences = open_data(order, token_file, checkpoint.facts.vocab)
    load_s = time.monotonic() - started
    tell_share(order, meter.held_bytes(), len(trained), load_s)
    report(
        StageLoaded,
        weight_bytes=meter.held_bytes(),
        priced_bytes=priced,
        load_s=load_s,
        downloaded_bytes=fetched,
        adapters_digest=digest_of(trained),
    )
    return LoadedRun(order, stage, meter, devices, trained, sequences, bottleneck)


def _device_of(order: StageOrder, devices: list[torch.device]) -> Callable[[int], torch.device]:
    """The device of each block of the stage, by its number within it."""
    places = [
        device
        for card, device in zip(order.cards, devices)
        for _ in range(card.first_layer, card.last_layer + 1)
    ]
    return places.__getitem__


def _refuse_unlike(order: StageOrder, checkpoint: Checkpoint) -> None:
    if order.num_layers != checkpoint.facts.num_layers:
        raise SwarmError(
            "plan-changed",
            f"the order is for a model of {order.num_layers} layers, the files hold "
            f"{checkpoint.facts.num_layers}",
            hint="plan again",
        )
    longest = checkpoint.facts.max_positions
    if checkpoint.facts.learned_positions and longest and order.settings.seq_len > longest:
        raise SwarmError(
            "invalid-input",
            f"seq_len is {order.settings.seq_len}, but this model has {longest} positions",
            hint=f"use a seq_len of at most {longest}",
        )


def _price(order: StageOrder, checkpoint: Checkpoint, devices: list[torch.device]) -> int:
    """Price the share again on these very cards.

    Raises:
        SwarmError: cannot-fit; with both numbers.
    """
    prices = Prices(checkpoint.facts, order.settings)
    total = 0
    for place, card in enumerate(order.cards):
        price = prices.of(
            CardPlace(
                stage=order.stage,
                num_stages=order.num_stages,
                first_layer=card.first_layer,
                last_layer=card.last_layer,
                takes_input=place == 0,
                gives_output=place == len(order.cards) - 1,
            ),
            _device(devices[place]),
        )
        total += price.tensor_bytes
        if price.tensor_bytes > card.budget_bytes:
            raise SwarmError(
                "cannot-fit",
                f"this stage would hold {human_bytes(price.tensor_bytes)} on card {card.index}, "
                f"whose budget is {human_bytes(card.budget_bytes)}",
                hint="lower seq_len or batch_size, or turn recompute on; then plan again",
                facts={"needed_bytes": price.tensor_bytes, "budget_bytes": card.budget_bytes},
            )
    return total


def _device(device: torch.device) -> Device:
    if device.type == "cpu":
        return Device("cpu")
    return Device("cuda", flash=torch.cuda.get_device_capability(device) >= (8, 0))


def _place(
    stage: LoadedStage, order: StageOrder, meter: CardMeter, devices: list[torch.device]
) -> None:
    """Move each part to its card and count it there: embeddings first, norm and head last."""
    first, last = 0, len(order.cards) - 1
    for card, share in enumerate(order.cards):
        for layer in range(share.first_layer, share.last_layer + 1):
            block = stage.blocks[layer - stage.span.first_layer].to(devices[card])
            meter.move((*block.parameters(), *block.buffers()), card)
    blocks = stage.layers_name
    for name, child in stage.body.named_children():
        if name != blocks:
            ends = name == stage.facts.family.final_norm.split(".")[-1]
            card = last if ends else first
            meter.move(child.to(devices[card]).parameters(), card)
    if stage.head is not None:
        meter.move(stage.head.to(devices[last]).parameters(), last)


def boundary_of(run: LoadedRun, width: int | None = None) -> TensorKind:
    """A micro-batch of hidden states, or of `width` values a token: it crosses this stage's
    boundaries, as its gradient does.
    """
    settings = run.order.settings
    rows = settings.batch_size // settings.micro_batches
    shape = (rows, settings.seq_len, width or run.stage.facts.hidden)
    return TensorKind(DTYPES[settings.dtype], shape)


def crossing_kinds(run: LoadedRun) -> list[TensorKind]:
    """Every kind of tensor that crosses this stage's boundaries."""
    squeezed = [boundary_of(run, run.bottleneck.dim)] if run.bottleneck is not None else []
    return [boundary_of(run), *squeezed, *tied_kinds(run.stage, run.order)]


def train(
    run: LoadedRun,
    group: StageGroup,
    report: Report,
    work_folder: Path,
    place: SavePlace | None = None,
) -> SavedFile:
    """Run the whole training of the stage, or the rest of it; returns its saved result.

    place: where its state is saved on the way, and what it goes on from.

    Raises:
        SwarmError, torch.OutOfMemoryError: possibly inside what the engine raises.
    """
    order, meter = run.order, run.meter
    with meter.counting():
        agree(group, order, fingerprint(order, run.trained))
        stage = _assemble(run, group)
        boundaries = _boundaries(run, group, place)
        done = _go_on(stage, place)
        if order.evaluate_base:
            _evaluate(run, stage, "base", 0, report)
        boundaries.open(lambda count: _calibrate(run, stage, count))
        _renew_engine(run, stage)
        if stage.saver is not None:
            stage.saver.keep(boundaries.state())
    tell_data(order)
    group.marks.lap()
    steps = StepLog(order.settings.steps)
    for step in range(done + 1, order.settings.steps + 1):
        outcome = _one_step(run, stage, step, is_counted=step - done <= COUNTED_STEPS)
        steps.tell(outcome)
        _tell_step(outcome, report)
        if stage.saver is not None:
            with group.marks.of(SNAPSHOT):
                scale = stage.scale.told()
                stage.saver.after_step(step, outcome.step_s, stage.savers_busy, scale)
        if step == min(done + COUNTED_STEPS, order.settings.steps):
            _tell_memory(meter, report)
        if _is_due(order, step):
            _evaluate(run, stage, "during", step, report)
            group.marks.lap()  # an evaluation is of no step
    _evaluate(run, stage, "trained", order.settings.steps, report)
    if run.bottleneck is not None:
        boundaries.shut()
        _renew_engine(run, stage)
        _evaluate(run, stage, "bypassed", order.settings.steps, report)
    _tell_memory(meter, report)
    if stage.saver is not None:
        stage.saver.close()
    return save_trained(work_folder, order, run.trained)


def _go_on(stage: RunningStage, place: SavePlace | None) -> int:
    """Put a saved step back, and begin to save; the number of steps that are done."""
    order, done = stage.order, 0
    if order.resume is not None:
        assert place is not None
        found = restore(order, stage.trained, stage.optimizer, place.resumed)
        done = found.step
        stage.scale.go_on(read_loss_scale(order, place.resumed))
        if stage.tied is not None:
            stage.tied.spread()  # the last stage's copy of the table is not saved
        log.info("goes on after step %d, from %d saved tensors", done, found.tensors)
    if order.settings.snapshot_every_steps and place is not None and place.leader.url:
        stage.saver = Saver(order, stage.trained, stage.optimizer, place)
    return done


def _assemble(run: LoadedRun, group: StageGroup) -> RunningStage:
    order, settings = run.order, run.order.settings
    moment = Moment(settings.seed)
    rebuilds = Rebuilds(settings.early_recompute) if settings.recompute else None
    if rebuilds is not None and isinstance(group, SwarmGroup):
        group.while_waiting = rebuilds.rebuild_one
    first = run.devices[0]
    marks = group.marks = marks_on(first)
    plan = BlockPlan(moment, group.check, run.meter.enter_card, rebuilds, marks)
    places = [
        (card, run.devices[card])
        for card, share in enumerate(order.cards)
        for _ in range(share.first_layer, share.last_layer + 1)
    ]
    wrap_blocks(run.stage, plan, places)
    module = StageModule(run.stage, moment, settings, run.bottleneck, rebuilds)
    loss = None
    if run.stage.head is not None:
        loss = StageLoss(run.stage.head, settings.loss_chunk_tokens)
    return RunningStage(
        order=order,
        module=module,
        group=group,
        schedule=_schedule(run, module, group, loss),
        loss=loss,
        trained=run.trained,
        optimizer=adamw(run.trained, first),
        device=first,
        tied=tied_table(run.stage, order, torch_group(group)),
        scale=LossScale.of(settings.dtype),
    )


def _schedule(
    run: LoadedRun, module: StageModule, group: StageGroup, loss: StageLoss | None
) -> Any:
    """The engine over the stage, with its computing marked."""
    order, device, marks = run.order, run.devices[0], group.marks
    engine = pipeline_stage(module, order, device, torch_group(group))
    for name, mark in (("forward_one_chunk", FORWARD), ("backward_one_chunk", BACKWARD)):
        setattr(engine, name, marks.timed(mark, getattr(engine, name)))
    return schedule_for(engine, order, marks.timed(LOSS, loss or _no_loss))


def _renew_engine(run: LoadedRun, stage: RunningStage) -> None:
    """What crosses has another width from here on: the engine's buffers are made anew."""
    if run.bottleneck is not None:
        stage.schedule = _schedule(run, stage.module, stage.group, stage.loss)
        gc.collect()  # the old engine is a circle: its buffers would stay until some later time


def _no_loss(*_: Any) -> torch.Tensor:
    """The engine trains a stage only if it has a loss function, which the last one alone calls."""
    raise AssertionError("only the last stage computes a loss")


def _boundaries(run: LoadedRun, group: StageGroup, place: SavePlace | None) -> Boundaries:
    """The stage's boundaries, with what a saved step has of them."""
    made = Boundaries(run.order, run.stage.facts.hidden, run.devices, group, run.bottleneck)
    if place is not None:
        made.load(read_constants(run.order, place.resumed))
    return made


def _calibrate(run: LoadedRun, stage: RunningStage, count: int) -> None:
    """Run the first batches without dropout, and change nothing: forward, and backward too where
    gradients will be coded by what they are.
    """
    stage.module.eval()
    for step in range(1, count + 1):
        stage.group.begin_step(0)
        stage.module.moment.begin_step(0)
        if run.bottleneck is None:
            run_batch(stage, _batch(run, step))
            stage.optimizer.zero_grad(set_to_none=True)
        else:
            forward_batch(stage, _batch(run, step))


def _one_step(run: LoadedRun, stage: RunningStage, step: int, *, is_counted: bool) -> StepOutcome:
    with stage.group.marks.of(DATA):
        batch = _batch(run, step)
    if is_counted:
        with run.meter.counting():
            return run_step(stage, step, batch)
    outcome = run_step(stage, step, batch)
    run.meter.check_resident()
    return outcome


def _batch(run: LoadedRun, step: int) -> Batch | None:
    if run.sequences is None:
        return None
    settings = run.order.settings
    indices = indices_of_step(
        settings.seed, step, settings.batch_size, run.order.tokens.train_sequences
    )
    return run.sequences.batch(indices, settings.seq_len)


def _tell_step(outcome: StepOutcome, report: Report) -> None:
    if outcome.skipped:
        why = "no supervised token" if not outcome.supervised_tokens else "a gradient not finite"
        log.warning("step %d: the update was skipped: %s", outcome.step, why)
    report(StepDone, **vars(outcome))


def _is_due(order: StageOrder, step: int) -> bool:
    every = order.settings.eval_every_steps
    return every > 0 and step % every == 0 and step < order.settings.steps


def _evaluate(run: LoadedRun, stage: RunningStage, moment: str, step: int, report: Report) -> None:
    if num_evaluated(run.order) == 0:
        return
    found = evaluate(stage, run.sequences, step)
    if found is None:
        return
    if not math.isfinite(found.loss):
        raise SwarmError(
            "stage-failed",
            f"the held-out loss after step {step} is not a finite number",
            hint="train in float32 or bfloat16" if step == 0 else "lower the learning rate",
        )
    log.info(
        "held-out loss (%s) after step %d: %.4f over %d tokens, %.1f %% of next tokens right",
        moment,
        step,
        found.loss,
        found.tokens,
        100 * found.accuracy,
    )
    report(Evaluated, moment=moment, step=step, **vars(found))


def _tell_memory(meter: CardMeter, report: Report) -> None:
    for peak in meter.peaks():
        report(MemoryMeasured, **vars(peak))
