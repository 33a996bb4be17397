"""The whole grid, by command: `python -m tests.oracle.equality_table [WORD | NAME=FOLDER ...]`.

`spread=SEED` runs a spread of it instead: of each family and method a point of each count of
stages, schedule and recompute.

Prints one line a point, then model x way (lora, full, nf4, int8, documents) -> largest difference,
and ends with the worst; exit code 1 when any is beyond 1e-5. A LoRA or full run that is so far from
one process in float32 is held against one in float64, and the line says how far float32's own
rounding moved the one process. Words choose models and ways. A real checkpoint, given as
NAME=FOLDER, runs the LoRA part of the grid.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

from tests.oracle.grid import (
    TOLERANCE,
    Ground,
    Point,
    adopt,
    documents_grid,
    measure,
    measure_exactly,
    packed_grid,
    spread_grid,
    whole_grid,
)
from tests.oracle.stages import Workers

# What a job without a learning rate gets. At 3e-3 the rounding of float32 alone grows past 1e-5 in
# 20 steps of SmolLM2: summing the reference's own loss in float64 moved its losses by 2e-5.
REAL = (("learning_rate", 2e-4),)


def main() -> int:
    """Run the grid (of the named models) and print it."""
    os.environ.update({"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
    wanted = {name for name in sys.argv[1:] if "=" not in name}
    real = dict(name.split("=", 1) for name in sys.argv[1:] if "=" in name)
    seed = real.pop("spread", None)
    grid = whole_grid() + packed_grid() + documents_grid()
    points = [
        point
        for point in (grid if seed is None else spread_grid(int(seed)))
        if {point.model, point.way} & wanted or not (wanted or real)
    ]
    worst: dict[tuple[str, str], float] = {}
    started = time.monotonic()
    print(f"{'run (stages x micro-batches)':<52} {'loss':>8} {'norm':>8} {'held out':>8} empty")
    with tempfile.TemporaryDirectory() as folder:
        ground, workers = Ground(Path(folder)), Workers()
        for name, path in real.items():
            adopt(ground, name, Path(path))
            points += [
                Point(name, stages, micro_batches, "lora", clips, layout, changes=REAL)
                for layout in ("packed", "ragged")
                for clips in (True, False)
                for stages in (1, 2, 3)
                for micro_batches in (1, 2, 4)
            ]
        try:
            for number, point in enumerate(points, 1):
                found = measure(workers, ground, point, timeout_s=900.0)
                print(
                    f"{point!s:<52} {found.loss:8.1e} {found.norm:8.1e} "
                    f"{found.held_out:8.1e} {found.empty_micro_batches:5d} "
                    f"{number:4d} of {len(points)}, {time.monotonic() - started:.0f} s",
                    flush=True,
                )
                if max(found.loss, found.held_out) > TOLERANCE and point.way in ("lora", "full"):
                    exactly = measure_exactly(workers, ground, point, timeout_s=900.0)
                    found = exactly.run
                    print(
                        f"    against float64: {found.loss:.1e}, held out {found.held_out:.1e}; "
                        f"one process in float32 is {exactly.reference:.1e} from it",
                        flush=True,
                    )
                kind = point.model, point.way
                worst[kind] = max(worst.get(kind, 0.0), found.loss, found.held_out)
        finally:
            workers.close()
    took = time.monotonic() - started
    print("\nlargest difference of loss and held-out loss")
    for (model, method), found_worst in worst.items():
        print(f"{model:<20} {method:<6} {found_worst:8.1e}")
    largest = max(worst.values(), default=0.0)
    print(f"{len(points)} runs in {took:.0f} s, largest difference {largest:.1e}")
    return int(largest > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
