"""B7: how long planning takes, and how far the found order may be from the best there is.

CPU time of one process, the best of a few rounds. 16 fellows are the most that one job takes: of
larger pools the planner picks 16 by room for the default plan. The exact split alone is timed for
as many stages as there are fellows too. Where memory is tight fellows are left out one after
another, so several shares of the room are tried, and the slowest one is told.

    python -m tests.bench.planner_time [--rounds N] [--pools NAME ...]
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from control.planning.exact import best_counts
from control.planning.inventory import files_of
from control.planning.offers import offers
from control.planning.pace import Links, Uplink
from control.planning.place import Inputs
from control.planning.plan import Plan
from control.planning.terms import LIVE, Terms
from control.planning.usable import FellowNow
from tests.unit.control.planning.pools import GB, a_card, a_fellow, a_job, a_model
from transport.ids import FellowId

SIZES = ((16, 48, 0.05), (64, 128, 0.3), (256, 512, 2.0))
"""(fellows, layers, limit in seconds)."""
FORMATS = ["float32", "float16"]
SHARES = (0.05, 0.1, 0.15, 0.3, 0.5, 0.7)
"""Of the room that a model as a whole asks for: at a tenth most fellows have to be left out."""
POOLS = ("roomy", "tight", "4 bits", "several cards", "windows", "small disks")
"""Kinds of pools; all but the first at every share of the room."""


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


LLAMA = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 6144,
    "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 32000,
    "tie_word_embeddings": False, "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
}  # fmt: skip
WINDOWS = LLAMA | {"model_type": "gemma3_text", "head_dim": 128, "sliding_window": 512}


def inputs_of(fellows: int, layers: int, *, lines: bool = False, kind: str = "roomy") -> Inputs:
    """A pool and a llama of so many layers."""
    config = (WINDOWS if kind == "windows" else LLAMA) | {"num_hidden_layers": layers}
    pool = a_pool(fellows, layers)
    model = a_model(config)
    if kind == "small disks":
        model = replace(model, files=files_of(model.facts, config))
    return Inputs(model, pool, terms=lines_of(pool) if lines else LIVE)


def squeezed(inputs: Inputs, kind: str, share: float, seed: int = 0) -> Inputs:
    """The same pool with a share of its room, as its kind is."""
    dice = random.Random(seed)
    return replace(
        inputs, inventory=[_squeezed(one, kind, share, dice) for one in inputs.inventory]
    )


def _squeezed(fellow: FellowNow, kind: str, share: float, dice: random.Random) -> FellowNow:
    beat = fellow.heartbeat
    assert beat is not None
    assert beat.cards[0].free_bytes is not None
    room = int(beat.cards[0].free_bytes * share * dice.uniform(0.5, 1.5))
    count = dice.randint(1, 4) if kind == "several cards" else 1
    machine = beat.machine
    if kind == "4 bits":
        machine = machine.model_copy(update={"features": [*machine.features, "nf4"]})
    if kind == "small disks":
        free = int(dice.uniform(0.3, 3.0) * GB)
        machine = machine.model_copy(update={"disk_free_bytes": free})
    cards = [
        beat.cards[0].model_copy(
            update={"index": i, "uuid": f"uuid-{i}", "free_bytes": room // count}
        )
        for i in range(count)
    ]
    beat = beat.model_copy(update={"cards": cards, "machine": machine})
    return replace(fellow, heartbeat=beat)


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


def measure(
    size: tuple[int, int, float], rounds: int, *, with_lines: bool, kind: str
) -> dict[str, Any]:
    """One row: the slowest plan of this kind of pool."""
    fellows, layers, limit_s = size
    roomy = inputs_of(fellows, layers, lines=with_lines, kind=kind)
    shares = [1.0] if kind == "roomy" else SHARES
    jobs = [a_job(train__seq_len=length) for length in ([512] if kind == "roomy" else [512, 2048])]
    told: list[tuple[float, Plan]] = []
    for inputs in (squeezed(roomy, kind, share) if share < 1 else roomy for share in shares):
        told += [(best_of(rounds, partial(inputs.place, j)), inputs.place(j)) for j in jobs]
    slowest, plan = max(told, key=lambda one: one[0])
    row = {
        "fellows": fellows, "layers": layers, "lines": with_lines, "pools": kind,
        "plans": len(told), "fit": sum(one.fits for _, one in told), "plan_s": round(slowest, 4),
        "limit_s": limit_s, "largest_gap_to_bound": _largest_gap([one for _, one in told]),
    }  # fmt: skip
    if kind == "roomy":
        lines = curves(fellows, layers)
        exact_s = best_of(rounds, lambda: best_counts(lines, layers, 32))
        offers_s = best_of(1, lambda: offers(plan, roomy))
        row |= {"exact_split_s": round(exact_s, 4), "offers_s": round(offers_s, 3)}
    return row


def _largest_gap(plans: list[Plan]) -> float | None:
    layouts = [one.view.layout for one in plans]
    gaps = [one.step_s / one.bound_s - 1 for one in layouts if one.bound_s and one.step_s]
    return round(max(gaps), 4) if gaps else None


def main() -> None:
    """Print the rows; fail past a limit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pools", choices=POOLS, nargs="+", default=POOLS)
    asked = parser.parse_args()
    failed = False
    for kind in asked.pools:
        for size in SIZES:
            for lines in (False, True):
                row = measure(size, asked.rounds, with_lines=lines, kind=kind)
                print(json.dumps(row), flush=True)
                failed |= max(row["plan_s"], row.get("exact_split_s", 0.0)) > row["limit_s"]
    sys.exit(failed)


if __name__ == "__main__":
    main()
