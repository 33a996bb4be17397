"""What adapters keep for backward, ours beside peft's: `python -m tests.oracle.lean_adapters`.

Adapters on every projection of transformers' own class in bfloat16, on fake tensors of the true
sizes: bytes that a micro-batch of 2,048 tokens keeps in a middle stage, counted storage by storage.
Ends with 1 when peft's own layers keep less than 1.25 times as much.
"""

import sys
from dataclasses import dataclass, replace

from tests.oracle.memory_grid import ALL_LINEAR, GPT2_ALL, NEOX_ALL, PHI_ALL
from tests.oracle.memory_models import MODELS
from tests.oracle.memory_oracle import Case, count

BAR = 1.25
TARGETS = {"gpt2": GPT2_ALL, "pythia-1.4b": NEOX_ALL, "phi-2": PHI_ALL}
COMPARED = (
    "qwen3-0.6b",
    "qwen3-8b",
    "qwen3-14b",
    "llama-3.1-8b",
    "llama-3.1-70b",
    "gemma3-12b",
    "mistral-7b",
    "gpt2",
    "pythia-1.4b",
    "phi-2",
)


@dataclass(frozen=True)
class Line:
    """Bytes kept by one micro-batch."""

    model: str
    ours: int
    pefts: int

    @property
    def ratio(self) -> float:
        """Above 1 when peft keeps more."""
        return self.pefts / self.ours


def compare(model: str) -> Line:
    """Count both."""
    seq_len = 1024 if model == "gpt2" else 2048
    case = Case(MODELS[model], 2, TARGETS.get(model, ALL_LINEAR), seq_len=seq_len)
    ours, pefts = count(case), count(replace(case, pefts_own=True))
    return Line(model, ours.held - ours.loaded, pefts.held - pefts.loaded)


def main() -> int:
    """Print the table."""
    print(f"{'model':<16} {'ours MB':>9} {'peft MB':>9} {'peft / ours':>12}")
    lines = [compare(model) for model in COMPARED]
    for line in lines:
        sizes = f"{line.ours / 1e6:9.1f} {line.pefts / 1e6:9.1f}"
        print(f"{line.model:<16} {sizes} {line.ratio:12.2f}")
    least = min(line.ratio for line in lines)
    print(f"peft's own layers keep at least {least:.2f} times as much (bar {BAR})")
    return int(least < BAR)


if __name__ == "__main__":
    sys.exit(main())
