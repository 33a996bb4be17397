"""How far training in 16 bits strays, split over stages and in one process.

    python -m tests.oracle.half_precision [MODEL ...]

The same 20 LoRA steps three times: in float32 in one process, in bfloat16 in one process, and in
bfloat16 over three stages. A split run must be no further from float32 than 1.5 times what the
one process in bfloat16 is: root mean square over the losses of the steps, and the held-out losses.
Prints one line a family; exit code 1 when one is further.
"""

import math
import os
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from tests.oracle.checkpoints import BLOCKS, TINY
from tests.oracle.grid import Ground, Point
from tests.oracle.stages import Workers, run_to_end
from transport.reports import Evaluated, StepDone

FURTHEST = 1.5
BF16 = ("dtype", "bfloat16")


@dataclass(frozen=True)
class Strayed:
    """Root mean squares of differences from the float32 run."""

    split: float
    one_process: float

    @property
    def ratio(self) -> float:
        """Split over one process."""
        return self.split / self.one_process


def stray(workers: Workers, ground: Ground, point: Point, timeout_s: float = 60.0) -> Strayed:
    """Run a point in bfloat16 and hold it against float32."""
    narrow = replace(point, changes=(*point.changes, BF16))
    exact, one = ground.reference(point), ground.reference(narrow)
    run = run_to_end(workers, ground.case(narrow), narrow.stages, timeout_s)
    steps = [step.loss for step in run.workers[-1].of(StepDone)]
    held_out = [done.loss for done in run.workers[-1].of(Evaluated)]
    assert None not in (exact.base, exact.trained, one.base, one.trained)
    wanted = [*exact.losses, exact.base[0], exact.trained[0]]  # type: ignore[index]
    alone = [*one.losses, one.base[0], one.trained[0]]  # type: ignore[index]
    return Strayed(_distance([*steps, *held_out], wanted), _distance(alone, wanted))


def _distance(found: list[float], wanted: list[float]) -> float:
    pairs = zip(found, wanted, strict=True)
    return math.sqrt(sum((a - b) ** 2 for a, b in pairs) / len(wanted))


def points(models: list[str]) -> list[Point]:
    """Three stages and four micro-batches of each, and the packed ones in both formats."""
    plain = [Point(model, 3, 4) for model in TINY if model in models or not models]
    packed = [
        Point(model, 3, 4, changes=(("quantization", stored),))
        for model in BLOCKS
        for stored in ("nf4", "int8")
        if model in models or not models
    ]
    return plain + packed


def main() -> int:
    """Print the table."""
    os.environ.update({"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
    worst = 0.0
    print(f"{'run':<60} {'split':>8} {'one':>8} {'ratio':>6}")
    with tempfile.TemporaryDirectory() as folder:
        ground, workers = Ground(Path(folder)), Workers()
        try:
            for point in points(sys.argv[1:]):
                found = stray(workers, ground, point, 900.0)
                worst = max(worst, found.ratio)
                line = f"{found.split:8.1e} {found.one_process:8.1e} {found.ratio:6.2f}"
                print(f"{point!s:<60} {line}", flush=True)
        finally:
            workers.close()
    print(f"largest ratio {worst:.2f} (limit {FURTHEST})")
    return int(worst > FURTHEST)


if __name__ == "__main__":
    sys.exit(main())
