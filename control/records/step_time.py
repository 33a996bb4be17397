"""Where a job's step went, from what its stages marked: the waits told apart, the limit named.

Pure. A stage knows that it waited, not why. The step is played again from the measured work of all
stages with links that take no time: what a stage would wait even then is the bubble, the rest is
the link's. The same play predicts what a change would save.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from control.records.pipeline_clock import Course, StageWork, step_s
from transport.api.step_time import StageTime, StepTime

WORTH = 0.03
"""A suggestion that saves less is none."""
NOISE = 0.02
_COMPUTED = ("forward", "loss", "recompute", "backward", "optimizer")
_TOLD = (*_COMPUTED, "data", "transfer", "wait", "snapshot")


@dataclass(frozen=True)
class Marked:
    """One stage's mean seconds by mark, and its layers."""

    layers: int
    spent: Mapping[str, float]

    def of(self, *names: str) -> float:
        """Seconds of some marks together."""
        return sum(self.spent.get(name, 0.0) for name in names)

    @property
    def total_s(self) -> float:
        """Of the step."""
        return sum(self.spent.values())

    @property
    def busy_s(self) -> float:
        """All but waiting."""
        return self.total_s - self.of("wait")

    def work(self, parts: int) -> StageWork:
        """What the stage needs for each of so many micro-batches."""
        moving = self.of("transfer") / 2
        forward = (self.of("forward", "loss") + moving) / parts
        backward = (self.of("recompute", "backward") + moving) / parts
        return StageWork(forward, backward, self.busy_s - parts * (forward + backward))

    def but(self, **changes: float) -> "Marked":
        """With other seconds of some marks."""
        return replace(self, spent={**self.spent, **changes})


@dataclass(frozen=True)
class Run:
    """What of a job's settings shapes its step."""

    batch_size: int
    micro_batches: int
    schedule: str
    compressed: bool

    @property
    def course(self) -> Course:
        """As it ran."""
        return Course(self.micro_batches, self.schedule)


def mean_marks(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each mark over some steps; {} when a step did not tell."""
    told = list(rows)
    if not told or not all(told):
        return {}
    names = {name for row in told for name in row}
    return {name: statistics.fmean(row.get(name, 0.0) for row in told) for name in sorted(names)}


def where_it_went(stages: Sequence[Marked], run: Run, num_steps: int) -> StepTime:
    """The shares of each stage, the limit and the best change."""
    step = max(stage.total_s for stage in stages)
    ideal = _played(stages, run)
    times = [_stage_time(k, stage, ideal) for k, stage in enumerate(stages)]
    gain, words = max(_changes(stages, run, step), default=(0.0, ""))
    return StepTime(
        steps=num_steps,
        step_s=step,
        stages=times,
        limit=_limit(stages, times, run),
        suggestion=words if gain >= WORTH else None,
        gain=round(gain, 3) if gain >= WORTH else None,
    )


def _played(stages: Sequence[Marked], run: Run, hop_s: float = 0.0) -> float:
    return step_s([stage.work(run.micro_batches) for stage in stages], run.course, hop_s)


def _stage_time(k: int, stage: Marked, ideal_s: float) -> StageTime:
    waited = stage.of("wait")
    bubble = min(waited, max(0.0, ideal_s - stage.busy_s))
    known = stage.of(*_TOLD)
    return StageTime(
        stage=k,
        forward_s=stage.of("forward"),
        loss_s=stage.of("loss"),
        recompute_s=stage.spent.get("recompute"),
        backward_s=stage.of("backward"),
        optimizer_s=stage.of("optimizer"),
        data_s=stage.of("data"),
        transfer_s=stage.of("transfer"),
        link_s=waited - bubble,
        bubble_s=bubble,
        snapshot_s=stage.of("snapshot"),
        # Marks of a newer fellow that this leader has no word for are of no neighbour either.
        control_s=stage.total_s - known,
    )


def _limit(stages: Sequence[Marked], times: Sequence[StageTime], run: Run) -> str:
    """The largest part of the busiest stage's step, in words."""
    k = max(range(len(stages)), key=lambda i: stages[i].of(*_COMPUTED))
    told, step = times[k], stages[k].total_s
    parts = {
        f"the compute of stage {k}": stages[k].of(*_COMPUTED),
        "the links": told.link_s,
        f"the bubble of {run.micro_batches} micro-batches over {len(stages)} stages": told.bubble_s,
        f"reading data on stage {k}": told.data_s,
        f"packing and copying on stage {k}": told.transfer_s,
        f"saving on stage {k}": told.snapshot_s,
        f"the engine's own work on stage {k}": told.control_s,
    }
    name = max(parts, key=lambda part: parts[part])
    share = 100 * parts[name] / step if step else 0.0
    return f"{name}: {share:.0f} % of the busiest stage's step"


def _changes(stages: Sequence[Marked], run: Run, now_s: float) -> Iterable[tuple[float, str]]:
    """(share of the step saved, in words) of each change that could be made."""
    hop = _hop_s(stages, run, now_s)
    played = _played(stages, run, hop)

    def saves(changed: Sequence[Marked], how: Run, hop_s: float) -> float:
        return 1 - _played(changed, how, hop_s) / played if played else 0.0

    for parts in _more_parts(run, len(stages)):
        finer = replace(run, micro_batches=parts)
        shorter = hop * run.micro_batches / parts
        yield saves(stages, finer, shorter), f"set train.micro_batches to {parts}"
    if not run.compressed and len(stages) > 1:
        words = "compress what crosses the stages to a quarter (compression), or use faster links"
        yield saves(stages, run, hop / 4), words
    if any(stage.of("recompute") for stage in stages):
        kept = [stage.but(recompute=0.0) for stage in stages]
        yield saves(kept, run, hop), "set train.recompute to false, if a plan still fits"
    if any(stage.of("data") for stage in stages):
        ready = [stage.but(data=0.0) for stage in stages]
        yield saves(ready, run, hop), "put the fellows' cache on a faster disk"
    if any(stage.of("snapshot") for stage in stages):
        unsaved = [stage.but(snapshot=0.0) for stage in stages]
        yield saves(unsaved, run, hop), "save less often (train.snapshot_every_steps)"
    moved = _moved(stages, run)
    if moved is not None:
        starts = [sum(one.layers for one in moved[:k]) for k in range(1, len(moved))]
        yield saves(moved, run, hop), f"set layer_index to {starts}, if a plan still fits"


def _more_parts(run: Run, num_stages: int) -> list[int]:
    """Finer cuts of the batch that are worth a try."""
    most = min(run.batch_size, 4 * num_stages)
    return [m for m in range(run.micro_batches + 1, most + 1) if run.batch_size % m == 0]


def _hop_s(stages: Sequence[Marked], run: Run, now_s: float) -> float:
    """The seconds of a hop with which the played step is as long as the measured one.

    A play that comes near without any is believed: where stages have slack, many lengths of a hop
    give the same step, and a little noise would be told as a slow network.
    """
    now_s *= 1 - NOISE
    if len(stages) == 1 or _played(stages, run) >= now_s:
        return 0.0
    low, high = 0.0, now_s
    for _ in range(14):
        middle = (low + high) / 2
        low, high = (middle, high) if _played(stages, run, middle) < now_s else (low, middle)
    return low


def _moved(stages: Sequence[Marked], run: Run) -> Sequence[Marked] | None:
    """Layers moved one by one off the slowest stage while it gets faster; None when none do.

    A layer takes as long as the other layers of the stage it comes to.
    """
    best = list(stages)
    while True:
        slowest = max(range(len(best)), key=lambda k: _part_s(best[k], run))
        if best[slowest].layers < 2:
            break
        tries = [_with_layer_moved(best, slowest, k) for k in range(len(best)) if k != slowest]
        tried = min(tries, key=lambda one: max(_part_s(s, run) for s in one), default=best)
        if max(_part_s(s, run) for s in tried) >= _part_s(best[slowest], run) * (1 - 1e-9):
            break
        best = tried
    return None if [s.layers for s in best] == [s.layers for s in stages] else best


def _part_s(stage: Marked, run: Run) -> float:
    work = stage.work(run.micro_batches)
    return work.forward_s + work.backward_s


def _with_layer_moved(stages: list[Marked], k: int, to: int) -> list[Marked]:
    changed = list(stages)
    for place, by in ((k, -1), (to, 1)):
        one = changed[place]
        grown = (one.layers + by) / one.layers
        names = [name for name in ("forward", "recompute", "backward") if name in one.spent]
        scaled = {name: one.spent[name] * grown for name in names}
        changed[place] = replace(one.but(**scaled), layers=one.layers + by)
    return changed
