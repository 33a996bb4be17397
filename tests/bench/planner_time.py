"""B7: how long planning takes, and how far the found order may be from the best there is.

CPU time of one process, the best of a few rounds. 16 fellows are the most that one job takes: of
larger pools the planner picks 16 by room for the default plan. The exact split alone is timed for
as many stages as there are fellows too.

    python -m tests.bench.planner_time
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from control.planning.exact import best_counts
from control.planning.offers import offers
from control.planning.pace import Links, Uplink
from control.planning.place import Inputs
from control.planning.plan import Plan
from control.planning.terms import LIVE, Terms
from control.planning.usable import FellowNow
from tests.unit.control.planning.pools import a_card, a_fellow, a_job, a_model
from transport.ids import FellowId

SIZES = ((16, 48, 0.05), (64, 128, 0.3), (256, 512, 2.0))
"""(fellows, layers, limit in seconds)."""
FORMATS = ["float32", "float16"]


def a_pool(fellows: int, layers: int, seed: int = 0) -> list[FellowNow]:
    """Cards of 4 to 24 GB and of ten speeds, with room for the model as a whole."""
    dice = random.Random(seed)
    pool = []
    for number in range(fellows):
        gb = dice.choice([4, 6, 8, 12, 16, 24]) * max(1.0, layers / 96)
        speed = gb * dice.uniform(0.5, 2.0)
        card = a_card(
            0, gb, gb * dice.uniform(0.8, 0.97), kind="cuda", formats=FORMATS,
            tflops={"float16": speed, "float32": speed / 2},
        )  # fmt: skip
        pool.append(_named(a_fellow("a", card), number))
    return pool


def _named(fellow: FellowNow, number: int) -> FellowNow:
    fellow_id: FellowId = "f-" + "".join("abcdefghjk"[int(digit)] for digit in f"{number:08d}")
    beat = fellow.heartbeat
    assert beat is not None
    machine = beat.machine.model_copy(update={"hostname": f"host-{number}"})
    beat = beat.model_copy(update={"fellow_id": fellow_id, "machine": machine})
    return replace(fellow, fellow_id=fellow_id, hostname=f"host-{number}", heartbeat=beat)


def lines_of(pool: list[FellowNow], seed: int = 1) -> Terms:
    """Lines of 24 Mb/s to 800 Mb/s."""
    dice = random.Random(seed)
    return Terms(
        links=Links(
            fellows={
                one.fellow_id: Uplink(
                    dice.choice([3e6, 2e7, 1e8]),
                    dice.choice([1e7, 1e8]),
                    dice.choice([0.001, 0.01]),
                )
                for one in pool
            }
        )
    )


def inputs_of(fellows: int, layers: int, *, lines: bool = False) -> Inputs:
    """A pool and a llama of so many layers."""
    config = {
        "model_type": "llama", "hidden_size": 2048, "intermediate_size": 6144,
        "num_attention_heads": 16, "num_key_value_heads": 8, "num_hidden_layers": layers,
        "vocab_size": 32000, "tie_word_embeddings": False, "max_position_embeddings": 8192,
    }  # fmt: skip
    pool = a_pool(fellows, layers)
    return Inputs(a_model(config), pool, terms=lines_of(pool) if lines else LIVE)


def best_of(rounds: int, call: Callable[[], Any]) -> float:
    """CPU seconds of the fastest round."""
    told = []
    for _ in range(rounds):
        began = time.process_time()
        call()
        told.append(time.process_time() - began)
    return min(told)


def curves(stages: int, layers: int, seed: int = 0) -> list[list[float]]:
    """Linear stages with caps, as single cards have them."""
    dice = random.Random(seed)
    told = []
    for _ in range(stages):
        each, cap = dice.uniform(0.5, 5.0), dice.randint(1, max(2, 4 * layers // stages))
        told.append([float("inf"), *(each * n if n <= cap else float("inf")
                                     for n in range(1, layers + 1))])  # fmt: skip
    return told


def measure(size: tuple[int, int, float], rounds: int, *, with_lines: bool) -> dict[str, Any]:
    """One row."""
    fellows, layers, limit_s = size
    inputs = inputs_of(fellows, layers, lines=with_lines)
    job = a_job(train__seq_len=512)
    made: list[Plan] = []
    plan_s = best_of(rounds, lambda: made.append(inputs.place(job)))
    layout = made[-1].view.layout
    gap = None
    if layout.bound_s and layout.step_s:
        gap = round(layout.step_s / layout.bound_s - 1, 4)
    lines = curves(fellows, layers)
    exact_s = best_of(rounds, lambda: best_counts(lines, layers, 32))
    offers_s = best_of(1, lambda: offers(made[-1], inputs))
    return {
        "fellows": fellows, "layers": layers, "lines": with_lines,
        "fits": made[-1].fits, "plan_s": round(plan_s, 4),
        "limit_s": limit_s, "gap_to_bound": gap, "exact_split_s": round(exact_s, 4),
        "offers_s": round(offers_s, 3),
    }  # fmt: skip


def main() -> None:
    """Print the rows; fail past a limit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    rows = [measure(size, rounds, with_lines=lines) for size in SIZES for lines in (False, True)]
    for row in rows:
        print(json.dumps(row))
    sys.exit(any(max(row["plan_s"], row["exact_split_s"]) > row["limit_s"] for row in rows))


if __name__ == "__main__":
    main()
