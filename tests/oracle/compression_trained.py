"""Runs with codes: a hundred LoRA steps.

Of real stages, workers over their links, whose counters give the bytes. With planted outlier
channels in one process, which gives the same bits (`python -m tests.oracle.compression_equality`):
no checkpoint computes the same with larger channels, so they are raised at the boundaries.
"""

from pathlib import Path

import torch

from control.planning.compression import Crossed
from stage_runtime.checkpoint import open_checkpoint
from tests.oracle.coded_process import Factors, own_run
from tests.oracle.compression_cells import Cells, Figures
from tests.oracle.compression_kinds import LAYERS, SEQ_LEN, Kind
from tests.oracle.compression_untrained import Untrained, planted
from tests.oracle.settings import some_settings
from tests.oracle.stages import Case, Workers, even_cuts, model_folder, run_to_end
from transport.orders import LoraSettings, TokenFile, TrainSettings
from transport.reports import Evaluated, StageDone

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
EVALUATED = 32
DTYPE = "bfloat16"
"""Of the frozen base, as a job on such cards has it; what crosses without codes has 16 bits."""


def settings_of(kind: Kind, hidden: int, steps: int) -> TrainSettings:
    """As a job would have them: one sequence a step, so that a hundred steps end soon."""
    targets = ATTENTION + (MLP if kind.adapts_mlp else [])
    return some_settings(
        lora=LoraSettings(rank=8, alpha=16.0, dropout=0.0, target_modules=targets),
        dtype=DTYPE, steps=steps, learning_rate=2e-4, seq_len=SEQ_LEN,
        batch_size=1, micro_batches=1, warmup_steps=steps // 20, eval_sequences=EVALUATED,
        link_timeout_s=900.0, loss_chunk_tokens=256, compression=kind.settings(hidden),
    )  # fmt: skip


def run_stages(
    workers: Workers, cache: Path, tokens: TokenFile, kind: Kind, shape: tuple[int, int]
) -> Figures:
    """A run of (stages, steps)."""
    stages, steps = shape
    facts = open_checkpoint(model_folder(cache, "smollm2")).facts
    settings = settings_of(kind, facts.hidden, steps)
    case = Case(cache, "smollm2", LAYERS, settings, tokens, evaluate_base=False)
    run = run_to_end(workers, case, stages, timeout_s=7200.0)
    told = {one.moment: one for one in run.workers[-1].of(Evaluated)}
    # Gradients are in steps only; what goes forward is in the last evaluation too.
    (counted,) = {
        one.received_bytes
        for worker in run.workers
        for one in worker.of(StageDone)[0].crossed
        if one.neighbour > worker.stage
    }
    return {
        "loss": told["trained"].loss,
        "accuracy": told["trained"].accuracy,
        "step_bytes": counted // settings.steps,
        "planned_bytes": Crossed(facts, settings).step_bytes,
    }


def run_planted(
    cache: Path, tokens: TokenFile, kind: Kind, shape: tuple[int, int], factors: Factors
) -> Figures:
    """The same in one process, with channels that are so much larger where they cross."""
    stages, steps = shape
    place = model_folder(cache, "smollm2")
    settings = settings_of(kind, open_checkpoint(place).facts.hidden, steps)
    case = Case(cache, "smollm2", LAYERS, settings, tokens, evaluate_base=False)
    path = cache / "tokens" / f"{tokens.digest}.safetensors"
    held_out = own_run(case, place, path, even_cuts(LAYERS, stages), factors).trained
    assert held_out is not None
    return {"loss": held_out.loss, "accuracy": held_out.accuracy}


def factors_at(layers: list[int], bench: Untrained) -> Factors:
    """Powers of two, which bfloat16 multiplies by without rounding, no less than what the untrained
    table plants.
    """
    return {
        at: torch.exp2(planted(seen, at).log2().ceil())
        for at, seen in bench.crossing(layers).items()
    }


def name_of(kind: Kind, boundaries: int, steps: int, *, plants: bool = False) -> str:
    """The cell's name."""
    return f"{steps} steps, {boundaries} boundaries, {kind.name}{', planted' * plants}"


def measure(
    cache: Path, tokens: TokenFile, kinds: list[Kind], shapes: list[tuple[int, int]], cells: Cells
) -> None:
    """Fill the cells of these kinds, for each (boundaries, steps)."""
    workers = Workers()
    try:
        for boundaries, steps in shapes:
            for kind in kinds:
                shape = (boundaries + 1, steps)
                cells.of(
                    name_of(kind, boundaries, steps),
                    lambda: run_stages(workers, cache, tokens, kind, shape),  # noqa: B023
                )
    finally:
        workers.close()


def measure_planted(
    cache: Path,
    tokens: TokenFile,
    kinds: list[Kind],
    shapes: list[tuple[int, int]],
    bench: Untrained,
    cells: Cells,
) -> None:
    """Fill the cells with planted outliers. Without codes they change nothing: see that too."""
    for boundaries, steps in shapes:
        layers = [first for first, _ in even_cuts(LAYERS, boundaries + 1)[1:]]
        factors = factors_at(layers, bench)
        for kind in kinds:
            cells.of(
                name_of(kind, boundaries, steps, plants=True),
                lambda: run_planted(cache, tokens, kind, (boundaries + 1, steps), factors),  # noqa: B023
            )
