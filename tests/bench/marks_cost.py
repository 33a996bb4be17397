"""What the engine's marks cost: switches of a step times the price of one, against the step.

An A/B of whole steps would need thousands to see 0.2 % in a machine's noise, so the two factors are
measured by themselves: the switches are counted in real steps, one switch is timed in a loop. The
tiny model is the worst case: its steps are the shortest.

    python -m tests.bench.marks_cost --steps 40
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from stage_runtime import train
from stage_runtime.checkpoint import open_checkpoint
from stage_runtime.marks import FORWARD, Marks
from stage_runtime.process_group import make_group
from tests.oracle.grid import Ground, Point
from transport.direct import PipelineLinks
from transport.link import LinkName

LIMIT = 0.002


class Counter:
    """How often marks were switched since they are watched."""

    def __init__(self) -> None:
        self.switches = 0

    def watch(self) -> AbstractContextManager[object]:
        """Count while open."""
        switch = Marks._switch

        def counted(marks: Marks, name: str) -> str:
            self.switches += 1
            return switch(marks, name)

        return mock.patch.object(Marks, "_switch", counted)


def switch_s() -> float:
    """Seconds of one switch, a mark being two; the best of many loops."""
    marks, best = Marks(), float("inf")
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(1000):
            with marks.of(FORWARD):
                pass
        best = min(best, (time.perf_counter() - began) / 2000)
    return best


def steps_of(folder: Path, steps: int, counter: Counter) -> list[dict[str, Any]]:
    """Real steps of a tiny model on one stage, with recompute: StepDone's values."""
    ground = Ground(folder)
    case = ground.case(Point("llama", 1))
    changes = {"steps": steps, "recompute": True, "eval_sequences": 0}
    settings = case.settings.model_copy(update=changes)
    (order,) = case.orders([(0, case.num_layers - 1)])
    order = order.model_copy(update={"settings": settings})
    tokens = ground.cache / "tokens" / f"{case.tokens.digest}.safetensors"
    told: list[dict[str, Any]] = []

    def report(kind: Any, **values: Any) -> None:
        if kind.__name__ == "StepDone":
            told.append({**values, "switches": counter.switches})

    run = train.load(order, open_checkpoint(ground.model("llama")), tokens, report, 0)
    links = PipelineLinks.open(LinkName(order.job_id, 1, 0, 0), 1, "127.0.0.1")
    group = make_group(order, links, [train.boundary_of(run)])
    train.train(run, group, report, folder / "work")
    group.close()
    return told


def main() -> None:
    """Measure, print, and fail past the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    counter = Counter()
    with tempfile.TemporaryDirectory() as folder, counter.watch():
        told = steps_of(Path(folder), parser.parse_args().steps, counter)
    step_s = statistics.median(one["step_s"] for one in told[3:])
    per_step = statistics.median(b["switches"] - a["switches"] for a, b in pairwise(told[3:]))
    price_s = switch_s()
    share = per_step * price_s / step_s
    print(f"{per_step:.0f} switches of {1e6 * price_s:.2f} us in a step of {1e3 * step_s:.1f} ms")
    print(f"marks cost {100 * share:.3f} % of the step (limit {100 * LIMIT:.1f} %)")
    sys.exit(share > LIMIT)


if __name__ == "__main__":
    main()
