"""How true a predicted step is: two real CPU fellows, one held to a quarter of a core.

    python -m tests.acceptance.true_at_the_start [--runs N] [--hidden D] [--micro-batches M]

Starts a leader and two fellows as processes, holds one to a quarter of a core by a control group
(as root), lets both go before other work, has both measured while that is so, and runs the same
job as the planner splits it and with `partition: equal`. One line for each run: the step predicted,
the step measured, their ratio.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from agents.demo.processes import Child, wait_until
from tests.acceptance.control_group import ControlGroup, put_first
from tests.acceptance.real_pool import RealPool
from tests.oracle.checkpoints import VOCAB, write_byte_tokenizer
from transport.api.fellows import FELLOWS_GET, FELLOWS_MEASURE, FellowsGet, FellowsMeasure
from transport.api.jobs import JOBS_RECORDS, JobsRecords
from transport.cards import Speed

CARDS = ("cpu:3GB:1", "cpu:3GB:1")
"""One thread each; the second one is held."""
SHARE = 0.25
STEPS, UNCOUNTED = 7, 2
"""The first steps also count every storage, which takes time."""
LAYERS, HIDDEN, SEQ_LEN, BATCH, MICRO_BATCHES = 8, 512, 128, 8, 2

Partition = Literal["weighted", "equal"]


@dataclass(frozen=True)
class Run:
    """One job: its layers on each stage, the step predicted and the step measured."""

    partition: Partition
    layers: list[int]
    predicted_s: float
    measured_s: float

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured_s / self.predicted_s


def write_model(folder: Path, hidden: int) -> None:
    """A random llama whose steps are nearly all matrix products."""
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 4,
        num_hidden_layers=LAYERS,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=SEQ_LEN,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    write_byte_tokenizer(folder)


@contextmanager
def held_pool(folder: Path, group: ControlGroup, hidden: int = HIDDEN) -> Iterator[RealPool]:
    """A pool of two fellows, the second one in the group, with a model and a bucket."""
    write_model(folder / "model", hidden)
    pool = RealPool(folder)
    try:
        for card in CARDS:  # one after the other, so that they are listed in this order
            pool.join([card])
        pool.add_model(folder / "model", "model")
        pool.add_rows("rows", [{"text": f"{n} In the beginning was. " * 8} for n in range(300)])
        quick, held = pool.fellow_daemons
        put_first(quick.process.pid)
        group.add(held.process.pid)
        # Loading torch takes all of a quarter of a core for a while: not what is measured here.
        wait_until("the forkservers", lambda: all(map(is_warm, (quick, held))), 90, pool.household)
        yield pool
    finally:
        pool.close()


def is_warm(daemon: Child) -> bool:
    """Whether a daemon's forkserver has loaded all that it keeps."""
    return "forkserver ready" in daemon.log.read_text("utf-8", errors="replace")


def measure(pool: RealPool) -> list[float]:
    """Measure the fellows one after the other; TFLOPS of each in float32."""
    figures = []
    for row in pool.fellows():
        ask = FellowsGet(fellow_id=row.fellow_id)
        before = pool.client.call(FELLOWS_GET, ask).cards[0].speeds
        pool.client.call(FELLOWS_MEASURE, FellowsMeasure(fellow_id=row.fellow_id))

        def told(ask: FellowsGet = ask, before: Sequence[Speed] = before) -> Sequence[Speed] | None:
            view = pool.client.call(FELLOWS_GET, ask)
            speeds = view.cards[0].speeds
            return speeds if view.fellow.status == "ready" and speeds != before else None

        found = wait_until("the measuring", told, 60, pool.household)
        figures += [one.tflops for one in found if one.number_format == "float32"]
    return figures


def a_config(partition: Partition, micro_batches: int) -> dict[str, Any]:
    """The job that is compared."""
    return {
        "model": {"id": "local:model", "dtype": "float32"},
        "data": {"bucket": "rows"},
        "partition": partition,
        "train": {
            "steps": STEPS,
            "seq_len": SEQ_LEN,
            "batch_size": BATCH,
            "micro_batches": micro_batches,
            "learning_rate": 1e-4,
            "eval_sequences": 0,
        },
    }


def run(pool: RealPool, partition: Partition, micro_batches: int = MICRO_BATCHES) -> Run:
    """Plan a job, run exactly that plan, and compare its step."""
    pool.wait_ready()
    plan = pool.plan(a_config(partition, micro_batches))
    assert plan.layout is not None, plan.reason
    assert plan.layout.step_s is not None
    job = pool.wait_end(pool.submit(plan).job_id)
    assert job.state == "completed", job.untrusted_error
    rows = pool.client.call(JOBS_RECORDS, JobsRecords(job_id=job.job_id)).steps
    times = [row.step_s for row in rows if row.step > UNCOUNTED]
    layers = [one.last_layer - one.first_layer + 1 for one in plan.layout.stages]
    return Run(partition, layers, plan.layout.step_s, statistics.median(times))


def tell(told: dict[str, Any]) -> None:
    """Print one line."""
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in told.items()}
    sys.stdout.write(json.dumps(rounded) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=HIDDEN, help="a multiple of 64")
    parser.add_argument("--micro-batches", type=int, default=MICRO_BATCHES)
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        ControlGroup.held_to(SHARE) as group,
        held_pool(Path(folder), group, asked.hidden) as pool,
    ):
        for _ in range(asked.runs):
            tell({"tflops": [round(one, 4) for one in measure(pool)], "load": os.getloadavg()[0]})
            for partition in ("weighted", "equal"):
                told = run(pool, partition, asked.micro_batches)
                tell({**asdict(told), "ratio": told.ratio})
    return 0


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
