"""Runs of real stages with codes: workers over their links, a hundred LoRA steps, bytes counted."""

from pathlib import Path

from control.planning.compression import Crossed
from stage_runtime.checkpoint import open_checkpoint
from tests.oracle.compression_cells import Cells, Figures
from tests.oracle.compression_kinds import LAYERS, SEQ_LEN, Kind
from tests.oracle.settings import some_settings
from tests.oracle.stages import Case, Workers, model_folder, run_to_end
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


def name_of(kind: Kind, boundaries: int, steps: int) -> str:
    """The cell's name."""
    return f"{steps} steps, {boundaries} boundaries, {kind.name}"


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
