"""Runs with codes at their boundaries against one process: `python -m
tests.oracle.compression_equality`.

Each run is held against one stage of ours that holds all layers and applies the same codec at the
same layers (equal to the last bit), and against plain transformers and peft (equal to a few steps
of a scale); and the bytes that its links counted against those of the plan.
"""

import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from control.planning.compression import Crossed
from stage_runtime.checkpoint import open_checkpoint
from tests.oracle import coded_process
from tests.oracle.grid import Ground, Point
from tests.oracle.stages import Run, Workers, even_cuts, run_to_end
from transport.orders import CompressionSettings
from transport.reports import StageDone, StepDone

Kind = Literal["fixed_int8", "fixed_int4", "rotation", "learned"]
BITS = {"fixed_int8": 8, "fixed_int4": 4, "rotation": 4, "learned": 8}
TOLERANCE = {"fixed_int8": 1e-3, "fixed_int4": 1e-2, "rotation": 1e-2, "learned": 1e-3}
DIM = 24
"""Of a learned bottleneck; the tiny models are 64 or 72 wide."""
"""Against plain transformers: what one value on the edge of two codes can do in twenty steps.
Measured: up to 2e-4 and 2e-3; 1e-7 where none lies there.
"""


@dataclass(frozen=True)
class CodedPoint:
    """One run."""

    kind: Kind
    model: str
    stages: int
    micro_batches: int
    schedule: str = "1f1b"
    recompute: bool = False
    clips: bool = False
    """The clip's norm is added up stage by stage, so with it the last bit may differ."""
    bits: int = 0
    """Of a rotation; 0 = a quarter of float16."""

    def __str__(self) -> str:
        more = "-recompute" * self.recompute + "-clipped" * self.clips
        more += f"-{self.bits}bits" * (self.bits > 0)
        return f"{self.kind}-{self.model}-{self.stages}x{self.micro_batches}-{self.schedule}{more}"

    @property
    def tolerance(self) -> float:
        """Against plain transformers."""
        return TOLERANCE[self.kind]

    @property
    def compression(self) -> CompressionSettings:
        """As an order has it."""
        dim = DIM if self.kind == "learned" else 0
        return CompressionSettings(kind=self.kind, bits=self.bits or BITS[self.kind], dim=dim)

    @property
    def point(self) -> Point:
        """As the grid names it."""
        changes = (
            ("compression", self.compression),
            ("schedule", self.schedule),
            ("recompute", self.recompute),
            ("eval_sequences", 0),
            ("steps", 10),
        )
        return Point(self.model, self.stages, self.micro_batches, clips=self.clips, changes=changes)


@dataclass(frozen=True)
class Found:
    """Largest differences of a loss; bytes of every boundary, each way in all steps, and both
    before them.
    """

    own: float
    plain: float
    counted: set[int]
    counted_before: set[int]
    planned: set[int]
    planned_before: set[int]

    @property
    def as_planned(self) -> bool:
        """Whether the links carried what the plan says, to the byte."""
        return (self.counted, self.counted_before) == (self.planned, self.planned_before)


def measure(workers: Workers, ground: Ground, coded: CodedPoint) -> Found:
    """Run a point, and the same in one process twice."""
    point, folder = coded.point, ground.model(coded.model)
    case, settings = ground.case(point), ground.settings(point)
    facts = open_checkpoint(folder).facts
    cuts = even_cuts(case.num_layers, coded.stages)
    token_file = ground.cache / "tokens" / f"{case.tokens.digest}.safetensors"
    own = coded_process.own_run(case, folder, token_file, cuts)
    sequences = ground.sequences(point)
    plain = coded_process.train(folder, sequences, settings, own.boundaries).losses
    run = run_to_end(workers, case, coded.stages)
    losses = [step.loss for step in run.workers[-1].of(StepDone)]
    crossed = Crossed(facts, settings, case.tokens.train_sequences)
    planned = {settings.steps * crossed.step_bytes}
    return Found(
        _apart(losses, own.losses), _apart(losses, plain),
        *_counted(run), planned, {crossed.before_bytes},
    )  # fmt: skip


def _apart(ours: list[float], theirs: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))


def _counted(run: Run) -> tuple[set[int], set[int]]:
    told = [one for worker in run.workers for one in worker.of(StageDone)[0].crossed]
    ways = {one.sent_bytes for one in told} | {one.received_bytes for one in told}
    return ways, {one.before_bytes for one in told}


def whole_grid() -> list[CodedPoint]:
    """Kinds x families x stages x micro-batches x schedules x recompute."""
    kinds: tuple[tuple[Kind, int], ...] = (
        ("fixed_int8", 0), ("fixed_int4", 0), ("rotation", 4), ("rotation", 2), ("learned", 8),
    )  # fmt: skip
    return [
        CodedPoint(kind, model, stages, micro_batches, schedule, recompute, bits=bits)
        for kind, bits in kinds
        for model in ("llama", "qwen3", "gpt2", "gemma3")
        for stages in (2, 3)
        for micro_batches in (2, 4)
        for schedule in ("1f1b", "gpipe")
        for recompute in (False, True)
    ]


def main() -> int:
    """Run the grid and print it; 1 when a run is not what one process is."""
    os.environ.update({"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
    wrong, started, points = 0, time.monotonic(), whole_grid()
    print(f"{'run (stages x micro-batches)':<44} {'own':>8} {'plain':>8} bytes")
    with tempfile.TemporaryDirectory() as folder:
        ground, workers = Ground(Path(folder)), Workers()
        try:
            for point in points:
                found = measure(workers, ground, point)
                wrong += found.own > 0 or found.plain > point.tolerance or not found.as_planned
                told = "as planned" if found.as_planned else f"{found}"
                print(f"{point!s:<44} {found.own:8.1e} {found.plain:8.1e} {told}", flush=True)
        finally:
            workers.close()
    print(f"{len(points)} runs in {time.monotonic() - started:.0f} s, {wrong} of them wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
