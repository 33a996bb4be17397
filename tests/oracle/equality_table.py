"""The whole grid, by command: `python -m tests.oracle.equality_table [MODEL ...]`.

Prints one line a point and ends with the worst; exit code 1 when any is beyond 1e-5.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

from tests.oracle.grid import TOLERANCE, Ground, measure, whole_grid
from tests.oracle.stages import Workers


def main() -> int:
    """Run the grid (of the named models) and print it."""
    os.environ.update({"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
    wanted = set(sys.argv[1:])
    points = [point for point in whole_grid() if not wanted or point.model in wanted]
    worst, started = 0.0, time.monotonic()
    print(f"{'run (stages x micro-batches)':<52} {'loss':>8} {'norm':>8} {'held out':>8} empty")
    with tempfile.TemporaryDirectory() as folder:
        ground, workers = Ground(Path(folder)), Workers()
        try:
            for point in points:
                found = measure(workers, ground, point)
                worst = max(worst, found.loss, found.held_out)
                print(
                    f"{point!s:<52} {found.loss:8.1e} {found.norm:8.1e} "
                    f"{found.held_out:8.1e} {found.empty_micro_batches:5d}",
                    flush=True,
                )
        finally:
            workers.close()
    took = time.monotonic() - started
    print(f"{len(points)} runs in {took:.0f} s, largest difference {worst:.1e}")
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
