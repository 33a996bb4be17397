"""Early recompute against late: real stage workers over a slow way between two stages.

`python -m tests.bench.early_recompute --rounds 3`. Every round runs late, early, early, late: the
first of each pair against the other is early / late, the two lates against each other show what the
machine's noise alone does. The way delays every 64 KB, so it bounds latency and rate together. The
saved weights must be the same bytes in all runs.
"""

import argparse
import hashlib
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.update({"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})

from transformers import AutoConfig, AutoModelForCausalLM

from agents.rehearse.ways import LOOPBACK, Ways
from tests.oracle.checkpoints import BOS, EOS, PAD, VOCAB, write_byte_tokenizer
from tests.oracle.settings import some_settings
from tests.oracle.stages import Case, Run, Workers, model_folder
from tests.oracle.tokens import packed_text
from transport.orders import LoraSettings
from transport.reports import StageBound, StepDone

LAYERS, STEPS, SKIPPED, TOKENS = 8, 8, 2, 128
SMOL = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "num_hidden_layers": LAYERS,
    "vocab_size": VOCAB,
    "tie_word_embeddings": True,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}
"""SmolLM2-135M's blocks; fewer of them, and a vocabulary of bytes."""


@dataclass(frozen=True)
class Outcome:
    """What one run took."""

    step_s: float
    """The middle one of its steps, the first two left out."""
    wait_s: float
    """Of the first stage, in all those steps."""
    digest: str


class SlowRun(Run):
    """Two stages whose link goes through a slow way."""

    def __init__(self, workers: Workers, case: Case, ways: Ways, delay_s: float) -> None:
        super().__init__(workers, case, 2)
        self._ways, self._delay_s = ways, delay_s

    def connect(self) -> None:
        """Put the way before the bound stage's socket, then hand out the links."""
        self.pump(lambda: all(worker.of(StageBound) for worker in self.workers))
        (bound,) = self.workers[1].of(StageBound)
        port = int(bound.endpoints[0].rpartition(":")[2])
        way = self._ways.open(self.work.name, port, self._delay_s)
        bound.endpoints[:] = [f"tcp://{LOOPBACK}:{way.port}"]
        super().connect()


def measure(workers: Workers, case: Case, ways: Ways, delay_s: float) -> Outcome:
    """Run to the end."""
    run = SlowRun(workers, case, ways, delay_s)
    run.connect()
    run.finish(300.0)
    assert not run.failures(), run.failures()
    steps = run.workers[0].of(StepDone)[SKIPPED:]
    digest = hashlib.sha256(b"".join(run.file_of(stage).read_bytes() for stage in (0, 1)))
    middle = statistics.median(step.step_s for step in steps)
    return Outcome(middle, sum(step.wait_s for step in steps), digest.hexdigest())


def a_case(cache: Path) -> Case:
    """Adapters on everything, recompute, four micro-batches."""
    folder = model_folder(cache, "smol")
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**SMOL)).save_pretrained(folder)
    write_byte_tokenizer(folder)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    changes: dict[str, Any] = {
        "lora": LoraSettings(rank=8, alpha=16.0, dropout=0.1, target_modules=targets),
        "recompute": True,
        "steps": STEPS,
        "seq_len": TOKENS,
        "micro_batches": 4,
        "eval_sequences": 0,
    }
    tokens = packed_text(cache, seq_len=TOKENS, sequences=40)
    return Case(cache, "smol", LAYERS, some_settings(**changes), tokens)


def main() -> int:
    """Print every round, then the middle ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay-ms", type=float, default=5.0, help="of every 64 KB")
    asked = parser.parse_args()
    workers, ways = Workers(), Ways()
    ratios, noise, digests = [], [], set()
    with tempfile.TemporaryDirectory() as folder:
        late = a_case(Path(folder))
        early = replace(late, settings=late.settings.model_copy(update={"early_recompute": LAYERS}))
        for number in range(asked.rounds):
            found = [
                measure(workers, case, ways, asked.delay_ms / 1000)
                for case in (late, early, early, late)
            ]
            digests |= {one.digest for one in found}
            ratios += [found[1].step_s / found[0].step_s, found[2].step_s / found[3].step_s]
            noise.append(found[3].step_s / found[0].step_s)
            told = " ".join(f"{one.step_s:.3f} s (waits {one.wait_s:.2f})" for one in found)
            print(f"round {number + 1}: late, early, early, late: {told}", flush=True)
    workers.close()
    ways.close()
    print(f"early / late {statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})")
    print(f"late / late  {statistics.median(noise):.3f} ({min(noise):.3f}-{max(noise):.3f})")
    print("the same bytes in all runs" if len(digests) == 1 else "THE RUNS DIFFER")
    return int(len(digests) != 1)


if __name__ == "__main__":
    sys.exit(main())
