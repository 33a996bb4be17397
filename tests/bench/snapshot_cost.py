"""What saving costs the step's thread, by the engine's own marks, and whole steps beside it.

A random llama of a small model's shape (hidden 576, 12 layers) trains on short sequences, so that
steps are short and the share is high; the leader's file side takes what is saved. Rounds without
saving, with a save after every step, and without again are interleaved: A/B beside A/A.

    OMP_NUM_THREADS=1 python -m tests.bench.snapshot_cost --steps 25 --rounds 3
"""

import argparse
import os
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from stage_runtime import train
from stage_runtime.checkpoint import open_checkpoint
from stage_runtime.leader_files import LeaderAccess
from stage_runtime.marks import SNAPSHOT
from stage_runtime.process_group import make_group
from stage_runtime.snapshot import SavePlace
from tests.oracle import checkpoints
from tests.oracle.grid import Ground, Point
from tests.oracle.leader_twin import TOKEN, LeaderTwin
from tests.oracle.stages import Case
from transport.direct import PipelineLinks
from transport.link import LinkName

MODEL = "llama-576"
SHAPE = {
    "hidden_size": 576,
    "num_hidden_layers": 12,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "max_position_embeddings": checkpoints.POSITIONS,
    "tie_word_embeddings": True,
}
EVERY_STEP, EVERY_50 = 0.03, 0.005
FIRST = 3  # steps that are not counted: storages are followed there


def steps_of(case: Case, folder: Path, leader: LeaderTwin, model: Path) -> list[dict[str, Any]]:
    """StepDone's values of a run on one stage, and what its thread spent on saving after each."""
    (order,) = case.orders([(0, case.num_layers - 1)])
    tokens = case.cache / "tokens" / f"{case.tokens.digest}.safetensors"
    told: list[dict[str, Any]] = []

    def report(kind: Any, **values: Any) -> None:
        if kind.__name__ == "StepDone":
            told.append(values)

    run = train.load(order, open_checkpoint(model), tokens, report, 0)
    links = PipelineLinks.open(LinkName(order.job_id, 1, 0, 0), 1, "127.0.0.1")
    group = make_group(order, links, [train.boundary_of(run)])
    place = SavePlace(LeaderAccess(leader.url, TOKEN, None), folder / "snapshots")
    train.train(run, group, report, folder / "work", place)
    group.close()
    return told[FIRST:]


def main() -> None:
    """Measure, print, and fail past the limits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    checkpoints.TINY[MODEL] = ("llama", SHAPE)
    leader = LeaderTwin().start()
    plain: list[list[float]] = [[], []]
    saving: list[float] = []
    spent: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        ground = Ground(Path(name))
        made = ground.case(Point(MODEL, 1))
        values = {"steps": asked.steps, "eval_sequences": 0}
        for _ in range(asked.rounds):
            for place, every in ((0, 0), (2, 1), (1, 0)):
                settings = made.settings.model_copy(
                    update={**values, "snapshot_every_steps": every}
                )
                case = replace(made, settings=settings, leader_url=leader.url)
                told = steps_of(case, Path(name), leader, ground.model(MODEL))
                times = [one["step_s"] for one in told]
                if every:
                    saving += times
                    spent += [one["marks"].get(SNAPSHOT, 0.0) for one in told]
                else:
                    plain[place] += times
    leader.stop()
    step_s = statistics.median(saving)
    # Not every step is saved when the last one is still on its way: the dearest tell the price.
    price_s = statistics.median(sorted(spent)[-max(1, len(leader.results)) :])
    size = max(len(data) for url, data in leader.results.items() if "/snapshots/" in url)
    share = sum(spent) / sum(saving)
    print(f"one save: {1e3 * price_s:.2f} ms for {size / 1e6:.2f} MB in a step of {step_s:.3f} s")
    print(f"a save after every step: {100 * share:.2f} % (limit {100 * EVERY_STEP:.0f} %)")
    print(f"every 50 steps: {2 * price_s / step_s:.3f} % (limit {100 * EVERY_50:.1f} %)")
    a, b = (statistics.median(one) for one in plain)
    print(f"whole steps, saving / not saving: {step_s / a:.3f} (A/A {b / a:.3f})")
    sys.exit(share > EVERY_STEP or price_s / step_s / 50 > EVERY_50)


if __name__ == "__main__":
    main()
