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
from typing import Literal, cast

from control.planning.compression import FIXED_BITS, Crossed
from stage_runtime.checkpoint import open_checkpoint
from stage_runtime.codecs.scaled import ScaledCodec
from tests.oracle import coded_process
from tests.oracle.coded_process import Ways
from tests.oracle.grid import Ground, Point
from tests.oracle.stages import Run, Workers, even_cuts, run_to_end
from transport.orders import CompressionSettings
from transport.reports import StageDone, StepDone

Kind = Literal["fixed_int8", "fixed_int4"]
TOLERANCE = {"fixed_int8": 1e-3, "fixed_int4": 1e-2}
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

    def __str__(self) -> str:
        more = "-recompute" * self.recompute + "-clipped" * self.clips
        return f"{self.kind}-{self.model}-{self.stages}x{self.micro_batches}-{self.schedule}{more}"

    @property
    def tolerance(self) -> float:
        """Against plain transformers."""
        return TOLERANCE[self.kind]

    @property
    def point(self) -> Point:
        """As the grid names it."""
        changes = (
            ("compression", CompressionSettings(kind=self.kind, bits=FIXED_BITS[self.kind])),
            ("schedule", self.schedule),
            ("recompute", self.recompute),
            ("eval_sequences", 0),
        )
        return Point(self.model, self.stages, self.micro_batches, clips=self.clips, changes=changes)


@dataclass(frozen=True)
class Found:
    """Largest differences of a loss, and the bytes of every boundary and way."""

    own: float
    plain: float
    counted: set[int]
    planned: set[int]


def measure(workers: Workers, ground: Ground, coded: CodedPoint) -> Found:
    """Run a point, and the same in one process twice."""
    point, folder = coded.point, ground.model(coded.model)
    case, settings = ground.case(point), ground.settings(point)
    facts = open_checkpoint(folder).facts
    codec = ScaledCodec(facts.hidden, cast(Literal[4, 8], FIXED_BITS[coded.kind]))
    cuts = even_cuts(case.num_layers, coded.stages)
    boundaries = {first: Ways(codec, codec) for first, _ in cuts[1:]}
    token_file = ground.cache / "tokens" / f"{case.tokens.digest}.safetensors"
    own = coded_process.own_losses(case, folder, token_file, boundaries)
    plain = coded_process.train(folder, ground.sequences(point), settings, boundaries).losses
    run = run_to_end(workers, case, coded.stages)
    losses = [step.loss for step in run.workers[-1].of(StepDone)]
    planned = settings.steps * Crossed(facts, settings).step_bytes
    return Found(_apart(losses, own), _apart(losses, plain), _counted(run), {planned})


def _apart(ours: list[float], theirs: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))


def _counted(run: Run) -> set[int]:
    told = [one for worker in run.workers for one in worker.of(StageDone)[0].crossed]
    return {one.sent_bytes for one in told} | {one.received_bytes for one in told}


def whole_grid() -> list[CodedPoint]:
    """Kinds x families x stages x micro-batches x schedules x recompute."""
    kinds: tuple[Kind, ...] = ("fixed_int8", "fixed_int4")
    return [
        CodedPoint(kind, model, stages, micro_batches, schedule, recompute)
        for kind in kinds
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
                same = found.counted == found.planned
                wrong += found.own > 0 or found.plain > point.tolerance or not same
                told = "as planned" if same else f"{found.counted}, planned {found.planned}"
                print(f"{point!s:<44} {found.own:8.1e} {found.plain:8.1e} {told}", flush=True)
        finally:
            workers.close()
    print(f"{len(points)} runs in {time.monotonic() - started:.0f} s, {wrong} of them wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
