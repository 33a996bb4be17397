"""The grid of runs that must equal one process, and how one of them is compared."""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from transformers.utils import logging as transformers_logging

from stage_runtime.batches import Sequences, open_sequences
from stage_runtime.families import FAMILIES
from tests.oracle import one_process
from tests.oracle.checkpoints import BLOCKS, TINY, VOCAB, config_of, write_tiny_model
from tests.oracle.stages import Case, Run, Workers, model_folder, run_to_end
from tests.oracle.tokens import packed_documents, packed_text, ragged_chat, real_text
from transport.orders import LoraSettings, TokenFile, TrainSettings
from transport.reports import Evaluated, StepDone

SEQ_LEN = 24
BATCH = 4
STEPS = 20
TOLERANCE = 1e-5
CLIP = 0.05
"""Far below the norms of these runs: it acts in every step."""
ADOPTED: dict[str, int] = {}
"""Real models that were named on the command line, and their vocabularies."""


@dataclass(frozen=True)
class Point:
    """One run of the grid."""

    model: str
    stages: int
    micro_batches: int = 4
    method: str = "lora"
    clips: bool = True
    layout: str = "packed"
    dropout: float = 0.0
    changes: tuple[tuple[str, Any], ...] = ()
    """Further settings that differ from the usual."""

    def __str__(self) -> str:
        clip = "clipped" if self.clips else "unclipped"
        more = f"-dropout={self.dropout}" if self.dropout else ""
        more += "".join(f"-{key}={value}" for key, value in self.changes)
        return (
            f"{self.model}-{self.method}-{self.layout}-{clip}"
            f"-{self.stages}x{self.micro_batches}{more}"
        )

    @property
    def way(self) -> str:
        """lora, full, the format in which the frozen weights are stored, or documents apart."""
        if self.layout == "documents":
            return self.layout
        return str(dict(self.changes).get("quantization", self.method))

    @property
    def reference(self) -> tuple[Any, ...]:
        """What one process needs to know: neither stages nor, without dropout, micro-batches."""
        parts = self.micro_batches if self.dropout else 0
        ours = ("recompute", "early_recompute", "schedule")
        apart = [one for one in self.changes if one[0] not in ours]
        told = (self.model, self.method, self.clips, self.layout, *apart)
        return (*told, self.dropout, parts)


def num_layers_of(model: str) -> int:
    """Layers of a tiny model."""
    _, values = config_of(model)
    return int(values.get("num_hidden_layers", values.get("n_layer", 0)))


def whole_grid() -> list[Point]:
    """Every point: families x stages x micro-batches x clip x data x method."""
    points = []
    for model in TINY:
        for method in ("lora", "full"):
            counts: tuple[int, ...] = (1, 2, 3)
            counts += (num_layers_of(model),) if model == "llama-untied-72" else ()
            points += [
                Point(model, stages, micro_batches, method, clips, layout)
                for layout in ("packed", "ragged")
                for clips in (True, False)
                for stages in counts
                for micro_batches in (1, 2, 4)
            ]
    return points


def spread_grid(seed: int) -> list[Point]:
    """A spread of the whole: each family and method over 1, 2 and 3 stages, both schedules, with
    and without recompute; micro-batches, clip and data drawn.
    """
    dice = random.Random(seed)
    again, gpipe = ("recompute", True), ("schedule", "gpipe")
    shapes: list[tuple[int, tuple[tuple[str, Any], ...]]] = [
        (1, ()),
        (2, (again,)),
        (3, ()),
        (3, (again,)),
        (3, (gpipe,)),
    ]
    return [
        Point(
            model,
            stages,
            dice.choice([1, 2, 4]),
            method,
            clips=dice.random() < 0.5,
            layout=dice.choice(["packed", "ragged"]),
            changes=changes,
        )
        for model in TINY
        for method in ("lora", "full")
        for stages, changes in shapes
    ]


def packed_grid() -> list[Point]:
    """Families x NF4 and int8 x stages, both schedules, recompute on and off."""
    shapes: list[dict[str, Any]] = [
        {"stages": 1, "micro_batches": 1},
        {"stages": 2, "micro_batches": 4, "layout": "ragged"},
        {"stages": 3, "micro_batches": 4},
        {"stages": 3, "micro_batches": 2, "clips": False},
    ]
    ways: list[tuple[tuple[str, Any], ...]] = [(), (("recompute", True),), (("schedule", "gpipe"),)]
    return [
        Point(model, changes=(("quantization", stored), *way), **shape)
        for model in BLOCKS
        for stored in ("nf4", "int8")
        for shape in shapes
        for way in (ways if shape["stages"] == 3 and shape["micro_batches"] == 4 else ways[:1])
    ]


def documents_grid() -> list[Point]:
    """Families whose documents can be kept apart, over three stages."""
    apart = (("document_mask", True),)
    return [
        Point(model, 3, micro_batches, layout="documents", changes=apart)
        for model, (kind, _) in TINY.items()
        if FAMILIES[kind].splits_documents
        for micro_batches in (2, 4)
    ]


@dataclass
class Ground:
    """The cache folder of a session, and the references computed so far."""

    cache: Path
    references: dict[tuple[Any, ...], one_process.Reference] = field(default_factory=dict)
    files: dict[str, TokenFile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        transformers_logging.disable_progress_bar()
        transformers_logging.set_verbosity_error()

    def model(self, name: str) -> Path:
        """The folder of a tiny model, written when first asked for."""
        folder = model_folder(self.cache, name)
        if not folder.exists():
            write_tiny_model(folder, name)
        return folder

    def tokens(self, point: Point) -> TokenFile:
        """The token file of a point: bytes for a tiny model, English for a real one."""
        kind = f"{point.model}-{point.layout}" if point.model in ADOPTED else point.layout
        if kind not in self.files:
            self.files[kind] = self._write(point)
        return self.files[kind]

    def _write(self, point: Point) -> TokenFile:
        if point.model in ADOPTED:
            layout: Literal["packed", "rows"] = "packed" if point.layout == "packed" else "rows"
            return real_text(self.cache, self.model(point.model), layout, seq_len=SEQ_LEN)
        if point.layout == "packed":
            return packed_text(self.cache, seq_len=SEQ_LEN, sequences=40)
        if point.layout == "documents":
            return packed_documents(self.cache, seq_len=SEQ_LEN, sequences=40)
        return ragged_chat(self.cache, seq_len=SEQ_LEN, rows=40)

    def sequences(self, point: Point) -> Sequences:
        """The same file, opened."""
        file = self.tokens(point)
        path = self.cache / "tokens" / f"{file.digest}.safetensors"
        masks = bool(dict(point.changes).get("document_mask"))
        return open_sequences(path, file, SEQ_LEN, ADOPTED.get(point.model, VOCAB), masks=masks)

    def settings(self, point: Point) -> TrainSettings:
        """The settings of a point."""
        family = FAMILIES[config_of(point.model)[0]]
        targets = [*family.attention, *family.mlp[-1:]]  # never a mixture's router or experts
        lora = LoraSettings(rank=4, alpha=8.0, dropout=point.dropout, target_modules=targets)
        values: dict[str, Any] = {
            "method": point.method,
            "lora": lora if point.method == "lora" else None,
            "dtype": "float32",
            "steps": STEPS,
            "seq_len": SEQ_LEN,
            "batch_size": BATCH,
            "micro_batches": point.micro_batches,
            "schedule": "1f1b",
            "learning_rate": 3e-3 if point.method == "lora" else 3e-4,
            "lr_schedule": "cosine",
            "warmup_steps": 2,
            "max_grad_norm": CLIP if point.clips else 0.0,
            "clip": "pipeline",
            "recompute": False,
            "seed": 3,
            "link_timeout_s": 20.0,
            "eval_every_steps": 0,
            "eval_sequences": 3,
            "backend": "swarm",
            "loss_chunk_tokens": 16,
        }
        return TrainSettings(**(values | dict(point.changes)))

    def case(self, point: Point) -> Case:
        """The run of a point."""
        self.model(point.model)
        return Case(
            cache=self.cache,
            model=point.model,
            num_layers=num_layers_of(point.model),
            settings=self.settings(point),
            tokens=self.tokens(point),
            evaluate_base=True,
        )

    def reference(self, point: Point, *, exactly: bool = False) -> one_process.Reference:
        """The same training in one process; exactly: in float64."""
        key = (*point.reference, exactly)
        if key not in self.references:
            self.references[key] = one_process.train(
                self.model(point.model),
                self.sequences(point),
                self.settings(point),
                evaluate=True,
                exactly=exactly,
            )
        return self.references[key]


def adopt(ground: Ground, name: str, folder: Path) -> None:
    """Let the grid run on a checkpoint that lies in a folder."""
    config = json.loads((folder / "config.json").read_text())
    TINY[name] = (config["model_type"], {"num_hidden_layers": config["num_hidden_layers"]})
    ADOPTED[name] = int(config["vocab_size"])
    place = model_folder(ground.cache, name)
    place.parent.mkdir(parents=True)
    place.symlink_to(folder.resolve())


@dataclass(frozen=True)
class Difference:
    """The largest differences between a run's stages and one process."""

    loss: float
    norm: float
    held_out: float
    empty_micro_batches: int


def compare(run: Run, told: one_process.Reference) -> Difference:
    """Hold every stage's reports against one process."""
    steps = [worker.of(StepDone) for worker in run.workers]
    assert all(len(one) == len(told.losses) for one in steps), [len(one) for one in steps]
    evaluated = {one.moment: one for one in run.workers[-1].of(Evaluated)}
    assert told.base is not None
    assert told.trained is not None
    return Difference(
        loss=max(abs(d.loss - loss) for one in steps for d, loss in zip(one, told.losses)),
        norm=max(
            abs(d.grad_norm - norm) / max(1.0, norm)
            for one in steps
            for d, norm in zip(one, told.norms)
            if d.grad_norm is not None
        ),
        held_out=max(
            abs(evaluated["base"].loss - told.base[0]),
            abs(evaluated["trained"].loss - told.trained[0]),
            abs(evaluated["base"].accuracy - told.base[1]),
            abs(evaluated["trained"].accuracy - told.trained[1]),
        ),
        empty_micro_batches=sum(d.empty_micro_batches for d in steps[0]),
    )


def measure(workers: Workers, ground: Ground, point: Point, timeout_s: float = 60.0) -> Difference:
    """Run a point and compare it."""
    told = ground.reference(point)
    return compare(run_to_end(workers, ground.case(point), point.stages, timeout_s), told)


@dataclass(frozen=True)
class Exactly:
    """Where a run and one process in float32 are apart: how far each is from float64."""

    run: Difference
    reference: float
    """The largest difference of the one process's losses."""


def measure_exactly(
    workers: Workers, ground: Ground, point: Point, timeout_s: float = 60.0
) -> Exactly:
    """Run a point and compare it, and its reference, with one process in float64."""
    exact, told = ground.reference(point, exactly=True), ground.reference(point)
    run = run_to_end(workers, ground.case(point), point.stages, timeout_s)
    off = max(abs(a - b) for a, b in zip(told.losses, exact.losses, strict=True))
    return Exactly(compare(run, exact), off)
