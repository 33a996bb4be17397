"""Prices beside counted bytes: `.venv/bin/python -m tests.oracle.memory_table`.

`--drawn N` counts N configurations drawn by a seed instead, without a bar.

Prints one line a configuration and the bar: 3 % on average, 8 % at worst, never more than 3 % low;
experts without the grouped kernel at most 15 % high, in a table of their own. Ends with 1 when a
bar is missed.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from stage_runtime.costs import Prices
from stage_runtime.model_facts import facts_from_config
from stage_runtime.places import CardPlace, Device, Price
from tests.oracle.memory_grid import Row, drawn_rows, fallback_rows, rows
from tests.oracle.memory_oracle import Case
from transport.orders import LoraSettings, TrainSettings

MEAN_BAR, WORST_BAR, LOW_BAR, FALLBACK_BAR = 0.03, 0.08, 0.03, 0.15


@dataclass(frozen=True)
class Line:
    """A row with both figures, in bytes."""

    row: Row
    counted: int
    priced: int

    @property
    def off(self) -> float:
        """Above 0 when the price is higher than what was counted."""
        return self.priced / self.counted - 1


def settings_of(case: Case) -> TrainSettings:
    """The settings under which the counted stage runs."""
    lora = None
    if case.targets is not None:
        lora = LoraSettings(
            rank=case.rank, alpha=16.0, dropout=0.0, target_modules=list(case.targets)
        )
    return TrainSettings(
        method="full" if lora is None else "lora",
        lora=lora,
        dtype=str(case.dtype).removeprefix("torch."),  # type: ignore[arg-type]
        steps=1,
        seq_len=case.seq_len,
        batch_size=case.batch,
        micro_batches=case.micro_batches,
        schedule=case.schedule,  # type: ignore[arg-type]
        learning_rate=1e-3,
        lr_schedule="constant",
        warmup_steps=0,
        max_grad_norm=1.0,
        clip="pipeline",
        recompute=case.recompute,
        early_recompute=case.early,
        document_mask=case.apart,
        seed=0,
        link_timeout_s=600.0,
        eval_every_steps=0,
        eval_sequences=0,
        backend="swarm",
        loss_chunk_tokens=case.chunk_tokens,
    )


def price_of(case: Case) -> Price:
    """What the planner would say of the counted stage."""
    layers = "n_layer" if "n_layer" in case.config else "num_hidden_layers"
    facts = facts_from_config(case.config | {layers: case.total_layers})
    first = case.stage * case.layers
    place = CardPlace(case.stage, case.num_stages, first, first + case.layers - 1)
    device = Device("cuda", flash=case.kernel != "efficient", grouped=case.grouped)
    if case.kernel == "cpu":
        device = Device("cpu", grouped=case.grouped)
    # The counted stages are built, not loaded.
    return Prices(facts, settings_of(case)).of(place, device)


def line_of(row: Row) -> Line:
    """Count and price one row."""
    return Line(row, row.counted().peak, price_of(row.case).tensor_bytes)


def _print(lines: Sequence[Line]) -> None:
    for line in lines:
        sizes = f"{line.counted / 1e6:10.1f} {line.priced / 1e6:10.1f}"
        print(f"{line.row.title:70s} {sizes} {line.off:+8.2%}", flush=True)


def _summary(lines: Sequence[Line]) -> tuple[float, float, float]:
    offs = [line.off for line in lines]
    mean = sum(map(abs, offs)) / len(offs)
    print(
        f"{len(offs)} configurations: {mean:.2%} off on average, from {min(offs):+.2%} "
        f"to {max(offs):+.2%}\n"
    )
    return mean, min(offs), max(offs)


def _table(title: str, chosen: Sequence[Row]) -> tuple[float, float, float]:
    print(f"{title}\n{'configuration':70s} {'counted MB':>10s} {'priced MB':>10s} {'off':>8s}")
    lines = []
    for row in chosen:
        lines.append(line_of(row))
        _print(lines[-1:])
    return _summary(lines)


def main() -> int:
    """Print both tables, or one of configurations drawn by a seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drawn", type=int, metavar="N", help="draw so many instead")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    if asked.drawn is not None:
        _table("Drawn configurations", drawn_rows(asked.drawn, asked.seed))
        return 0
    mean, low, high = _table("Prices against counted bytes", rows())
    held = mean <= MEAN_BAR and low >= -LOW_BAR and high <= WORST_BAR
    _, low, high = _table("Experts without the grouped kernel", fallback_rows())
    held = held and low >= -LOW_BAR and high <= FALLBACK_BAR
    print("the bar holds" if held else "THE BAR IS MISSED")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
