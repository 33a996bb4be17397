"""What each kind of compression does to a real model: `python -m tests.oracle.compression_table`.

SmolLM2-135M-Instruct as `swarm demo` converted it (or a folder that is named), and English. Every
kind and rate, for one and for two boundaries: untrained, with and without planted outliers, in one
process; and after --steps steps of two or three real workers over their links, whose counters give
the bytes, the planted ones in one process. It takes an hour and a half of one core, and goes on
where it was stopped: each cell lies in a file below --out. The end prints the tables, and the bars;
1 when one is missed.

Accuracy is of the next token, beside that of the same model without compression.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from stage_runtime.batches import open_sequences
from stage_runtime.checkpoint import open_checkpoint
from tests.oracle import compression_trained as trained
from tests.oracle import compression_untrained as untrained
from tests.oracle.compression_cells import Cells, Figures
from tests.oracle.compression_kinds import (
    DEMO,
    HELD_OUT,
    KINDS,
    NONE,
    NONE_MLP,
    SEQ_LEN,
    WHOLE,
    Kind,
    text_file,
)
from tests.oracle.stages import model_folder
from transport.orders import TokenFile

BOUNDARIES = (2, 1)


def row_share(kind: Kind, hidden: int = 576) -> str:
    """Bytes of float16's, in per cent."""
    if kind is WHOLE:
        return "50.0 %"
    sizes = {"fixed_int8": hidden + 2, "fixed_int4": hidden // 2 + 2}
    dim = hidden // kind.part + 2 if kind.part else hidden * kind.bits // 8
    return f"{100 * sizes.get(kind.kind, dim) / (2 * hidden):.1f} %"


def _against(found: Figures | None, plain: Figures | None) -> str:
    if found is None or plain is None:
        return ""
    return (
        f"{found['loss'] - plain['loss']:+.3f}, {100 * found['accuracy'] / plain['accuracy']:.1f} %"
    )


def untrained_lines(cells: Cells) -> Iterator[str]:
    """The first table, in Markdown."""
    plain = cells.found("untrained, none")
    if plain is not None:
        yield f"without compression: loss {plain['loss']:.4f}, accuracy {plain['accuracy']:.1%}"
    yield "| kind | of float16's bytes | one: loss, kept | one, planted | two | two, planted |"
    yield "|---|---|---|---|---|---|"
    for kind in (*KINDS, WHOLE):
        told = [
            _against(cells.found(untrained.name_of(kind, count, plants=plants)), plain)
            for count in (1, 2)
            for plants in (False, True)
        ]
        yield f"| {kind.name} | {row_share(kind)} | {' | '.join(told)} |"


def trained_lines(cells: Cells, steps: int) -> Iterator[str]:
    """The second table, in Markdown; each kind against the run whose adapters lie as its own do."""
    yield (
        "| kind | one: loss, against none, kept | one, planted "
        "| two: loss, against none, kept "
        "| two, planted | bytes a step each way: counted, planned |"
    )
    yield "|---|---|---|---|---|---|"
    for kind in (NONE, NONE_MLP, *KINDS):
        plain = NONE_MLP if kind.adapts_mlp else NONE
        told, carried = [], ""
        for count, plants in ((1, False), (1, True), (2, False), (2, True)):
            found = cells.found(trained.name_of(kind, count, steps, plants=plants))
            against = _against(found, cells.found(trained.name_of(plain, count, steps)))
            told.append(f"{found['loss']:.4f}, {against}" if found else "")
            if found and not plants:
                carried = f"{found['step_bytes']:,.0f}, {found['planned_bytes']:,.0f}"
        yield f"| {kind.name} | {' | '.join(told)} | {carried} |"


def bars(cells: Cells, steps: int) -> Iterator[tuple[str, bool | None]]:
    """(what must hold, whether it does; None where a cell lacks)."""

    def kept(kind: str, *, plants: bool = False) -> Figures | None:
        found = next(one for one in (*KINDS, WHOLE) if one.name == kind)
        cell = cells.found(untrained.name_of(found, 2, plants=plants))
        plain = cells.found("untrained, none")
        if cell is None or plain is None:
            return None
        return {
            "gap": cell["loss"] - plain["loss"],
            "kept": cell["accuracy"] / plain["accuracy"],
        }

    turned, learned = kept("rotation 4 bits"), kept("learned 1/2 width")
    yield "rotation at a quarter keeps 98 %", turned and turned["kept"] >= 0.98  # type: ignore[misc]
    both = turned and learned
    yield (
        "rotation's gap at most half the bottleneck's",
        turned["gap"] <= learned["gap"] / 2 if both and turned and learned else None,
    )
    yield "the bottleneck keeps 88 %", learned["kept"] >= 0.88 if learned else None
    after = cells.found(trained.name_of(KINDS[3], 2, steps))
    plain = cells.found(trained.name_of(NONE_MLP, 2, steps))
    yield (
        f"the bottleneck keeps 97 % after {steps} steps",
        after["accuracy"] / plain["accuracy"] >= 0.97 if after and plain else None,
    )
    whole = kept(WHOLE.name, plants=True)
    yield "one scale for a whole tensor fails on outliers", whole["kept"] < 0.5 if whole else None


def main() -> int:
    """Measure what lacks, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=DEMO, help="a converted SmolLM2")
    parser.add_argument("--out", type=Path, default=Path(".cache/compression_table"))
    parser.add_argument("--only", choices=["untrained", "trained", "planted", "print"])
    parser.add_argument("--boundaries", type=int, nargs="+", default=list(BOUNDARIES))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--kinds", nargs="+", choices=[kind.name for kind in KINDS])
    told = parser.parse_args()
    if not (told.folder / "config.json").exists():
        parser.error(f"{told.folder} holds no model: run scripts/demo once, or name a folder")
    os.environ.update({"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
    torch.set_num_threads(1)
    kinds = [kind for kind in KINDS if told.kinds is None or kind.name in told.kinds]
    with tempfile.TemporaryDirectory() as temporary:
        cache = Path(temporary)
        place = model_folder(cache, "smollm2")
        place.parent.mkdir(parents=True)
        place.symlink_to(told.folder.resolve())
        tokens = text_file(cache, told.folder)
        cells = Cells(told.out, _conditions(told.folder, tokens), _say)
        shapes = [(count, told.steps) for count in told.boundaries]
        if told.only in (None, "untrained"):
            untrained.measure(_whole(cache, tokens), kinds, told.boundaries, cells)
        if told.only in (None, "trained"):
            trained.measure(cache, tokens, [NONE, NONE_MLP, *kinds], shapes, cells)
        if told.only in (None, "planted"):
            bench = _whole(cache, tokens)
            trained.measure_planted(cache, tokens, [NONE, *kinds], shapes, bench, cells)
        place.unlink()
    for line in (*untrained_lines(cells), "", *trained_lines(cells, told.steps), ""):
        print(line)
    found = list(bars(cells, told.steps))
    words = {True: "holds", False: "MISSED", None: "not measured"}
    for what, holds in found:
        print(f"{what}: {words[holds]}")
    return int(any(holds is False for _, holds in found))


def _whole(cache: Path, tokens: TokenFile) -> untrained.Untrained:
    """The whole model in memory: only while it is needed."""
    place = model_folder(cache, "smollm2")
    path = cache / "tokens" / f"{tokens.digest}.safetensors"
    opened = open_sequences(path, tokens, SEQ_LEN, open_checkpoint(place).facts.vocab)
    return untrained.Untrained(place, opened)


def _conditions(folder: Path, tokens: TokenFile) -> dict[str, object]:
    return {
        "config": json.loads((folder / "config.json").read_text()),
        "weights": {one.name: one.stat().st_size for one in sorted(folder.glob("*.safetensors"))},
        "tokens": tokens.digest,
        "held_out": HELD_OUT,
        "evaluated": trained.EVALUATED,
        "trained_in": trained.DTYPE,
    }


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
