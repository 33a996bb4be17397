"""The configurations whose prices are compared with counted bytes. Knows nothing of prices."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from tests.oracle.memory_models import MODELS, NARROW
from tests.oracle.memory_oracle import Case, Counted, count

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL_LINEAR = (*ATTENTION, "gate_proj", "up_proj", "down_proj")
GPT2_ATTENTION = ("c_attn", "attn.c_proj")
GPT2_ALL = (*GPT2_ATTENTION, "c_fc", "mlp.c_proj")
NEOX_ATTENTION = ("query_key_value", "attention.dense")
NEOX_ALL = (*NEOX_ATTENTION, "dense_h_to_4h", "dense_4h_to_h")
PHI_ATTENTION = ("q_proj", "k_proj", "v_proj", "self_attn.dense")
PHI_ALL = (*PHI_ATTENTION, "fc1", "fc2")


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    model: str
    case: Case
    fallback: bool = False
    """Experts without the grouped kernel: a table of its own."""

    @property
    def method(self) -> str:
        """attention, all-linear or full."""
        targets = self.case.targets
        if targets is None:
            return "full"
        return "attention" if targets in (ATTENTION, *_OTHER_ATTENTION) else "all-linear"

    @property
    def title(self) -> str:
        """Names the row for people and for pytest."""
        case = self.case
        again = "again" if case.recompute else "kept"
        again = f"{case.early}-early" if case.early else again
        again += "-apart" * case.apart
        stage = f"{case.stage + 1}of{case.num_stages}"
        kind = str(case.dtype).removeprefix("torch.")
        shape = f"{case.seq_len}x{case.batch}/{case.micro_batches}"
        return f"{self.model} {self.method} {kind} {shape} {stage} {again} {case.kernel}"

    def counted(self) -> Counted:
        """Run it."""
        return count(self.case)


_OTHER_ATTENTION = (GPT2_ATTENTION, NEOX_ATTENTION, PHI_ATTENTION)


def _row(model: str, targets: tuple[str, ...] | None, **changes: Any) -> Row:
    case = Case((MODELS | NARROW)[model], changes.pop("layers", 2), targets)
    return Row(model, replace(case, **changes), fallback=not changes.get("grouped", True))


def _dense() -> Iterator[Row]:
    """Each method, with and without recompute, at lengths from 128 to 8,192."""
    for model, seq_len, batch in (
        ("qwen3-0.6b", 512, 8),
        ("qwen3-1.7b", 2048, 2),
        ("qwen3-8b", 128, 8),
        ("qwen3-14b", 4096, 1),
        ("qwen3-32b", 1024, 2),
        ("llama-3.1-8b", 8192, 1),
        ("llama-3.1-70b", 2048, 1),
        ("gemma3-1b", 1024, 4),
        ("gemma3-12b", 2048, 2),
        ("qwen2.5-7b", 2048, 1),
        ("mistral-7b", 1024, 4),
        ("smollm2-135m", 512, 8),
    ):
        for recompute in (False, True):
            shape: dict[str, Any] = {"seq_len": seq_len, "batch": batch, "recompute": recompute}
            yield _row(model, ATTENTION, **shape)
            yield _row(model, ALL_LINEAR, **shape)
        if model in ("qwen3-0.6b", "qwen3-8b", "llama-3.1-8b", "gemma3-1b", "smollm2-135m"):
            yield _row(model, None, seq_len=seq_len, batch=batch)
            yield _row(model, None, seq_len=seq_len, batch=batch, recompute=True)


def _older() -> Iterator[Row]:
    for model, attention, everything in (
        ("gpt2", GPT2_ATTENTION, GPT2_ALL),
        ("pythia-1.4b", NEOX_ATTENTION, NEOX_ALL),
        ("phi-2", PHI_ATTENTION, PHI_ALL),
    ):
        for targets in (attention, everything, None):
            for recompute in (False, True):
                yield _row(model, targets, seq_len=1024, batch=4, recompute=recompute)


def _mixtures() -> Iterator[Row]:
    for model, seq_len in (
        ("mixtral-8x7b", 2048),
        ("mixtral-8x7b", 8192),
        ("mixtral-narrow", 2048),
        ("qwen3-30b-a3b", 1024),
        ("qwen3-30b-a3b", 4096),
        ("gpt-oss-20b", 128),
        ("gpt-oss-20b", 1024),
        ("gpt-oss-20b", 4096),
        ("gemma2-2b", 512),
        ("gemma2-2b", 4096),
    ):
        for recompute in (False, True):
            yield _row(model, ATTENTION, seq_len=seq_len, recompute=recompute)


def _places() -> Iterator[Row]:
    """First and last stages, one stage alone, micro-batches, schedules, formats, older cards."""
    for stage in (0, 2):
        for parts in (1, 4, 8):
            yield _row("qwen3-0.6b", ATTENTION, stage=stage, batch=8, micro_batches=parts)
        yield _row("qwen3-14b", ALL_LINEAR, stage=stage, seq_len=2048, batch=2, micro_batches=2)
        yield _row("llama-3.1-8b", ATTENTION, stage=stage, schedule="gpipe", batch=4)
        yield _row("qwen3-8b", None, stage=stage, batch=4, micro_batches=4)
        yield _row("gemma3-1b", ATTENTION, stage=stage, seq_len=2048, layers=6)
        yield _row("gpt2", GPT2_ATTENTION, stage=stage, seq_len=512, batch=4, micro_batches=4)
        yield _row("gemma2-2b", ATTENTION, stage=stage)
    for parts, recompute in ((1, False), (8, False), (8, True)):
        yield _row(
            "llama-3.1-8b", ALL_LINEAR, batch=8, micro_batches=parts, recompute=recompute, layers=4
        )
    for stage in (0, 1, 2):
        yield _row("qwen3-1.7b", None, stage=stage, batch=4, micro_batches=4)
        yield _row("gemma3-1b", None, stage=stage, batch=4, recompute=True)
    yield _row("qwen3-0.6b", None, stage=0, num_stages=1, batch=8, micro_batches=8)
    yield _row("smollm2-135m", ALL_LINEAR, stage=0, num_stages=1, batch=8, micro_batches=2)
    for recompute in (False, True):
        for model in ("qwen3-8b", "qwen3-14b"):
            yield _row(model, ATTENTION, kernel="efficient", seq_len=2048, recompute=recompute)
        yield _row("gemma3-12b", ATTENTION, seq_len=8192, recompute=recompute, layers=6)
        yield _row("qwen3-1.7b", ALL_LINEAR, dtype=torch.float32, recompute=recompute)
        yield _row("qwen3-8b", ALL_LINEAR, dtype=torch.float16, rank=64, recompute=recompute)
        yield _row("smollm2-135m", ATTENTION, kernel="cpu", dtype=torch.float32, batch=4)


def _early() -> Iterator[Row]:
    """Blocks computed again before their gradient has come, some or all of a stage."""
    shape: dict[str, Any] = {"recompute": True, "layers": 4, "batch": 4, "micro_batches": 4}
    for early in (2, 4, 64):
        yield _row("qwen3-0.6b", ALL_LINEAR, early=early, **shape)
        yield _row("llama-3.1-8b", ATTENTION, early=early, stage=0, seq_len=2048, **shape)
    yield _row("gpt2", GPT2_ALL, early=3, seq_len=512, **shape)
    yield _row("gemma3-1b", ATTENTION, early=4, seq_len=2048, **shape)
    yield _row("qwen3-8b", None, early=2, **shape)
    yield _row("qwen3-14b", ALL_LINEAR, early=4, stage=2, **shape)


def _apart() -> Iterator[Row]:
    """A mask between the documents of a sequence, in every layer."""
    for recompute in (False, True):
        shape: dict[str, Any] = {"apart": True, "recompute": recompute, "seq_len": 2048, "batch": 2}
        yield _row("qwen3-0.6b", ALL_LINEAR, **shape)
        yield _row("llama-3.1-8b", ATTENTION, stage=0, micro_batches=2, **shape)
        yield _row("gpt2", GPT2_ATTENTION, **(shape | {"seq_len": 1024}))
        yield _row("gemma3-1b", ATTENTION, layers=6, **shape)
        yield _row("gemma2-2b", ATTENTION, **shape)
        yield _row("pythia-1.4b", NEOX_ALL, **shape)
        yield _row("qwen3-8b", None, **(shape | {"seq_len": 512}))
        yield _row("smollm2-135m", ATTENTION, kernel="cpu", dtype=torch.float32, **shape)


def _fallback() -> Iterator[Row]:
    for model in ("mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b"):
        for seq_len in (512, 2048):
            for recompute in (False, True):
                yield _row(model, ATTENTION, seq_len=seq_len, recompute=recompute, grouped=False)
        yield _row(model, None, seq_len=512, grouped=False)


def rows() -> list[Row]:
    """All but the experts' fallback."""
    return [*_dense(), *_older(), *_mixtures(), *_places(), *_early(), *_apart()]


def fallback_rows() -> list[Row]:
    """Experts without the grouped kernel, and their full fine-tune, which never uses it."""
    return list(_fallback())


def drawn_rows(count: int, seed: int = 0) -> list[Row]:
    """Configurations drawn by a seed, of all models but mixtures' fallback."""
    dice = random.Random(seed)
    return [_drawn(dice) for _ in range(count)]


def _drawn(dice: random.Random) -> Row:
    model = dice.choice(sorted(MODELS))
    targets = dice.choice(_targets(model))
    stages = dice.choice([1, 2, 3])
    batch = dice.choice([1, 2, 4, 8])
    # The grouped kernel of experts takes 16 bits only.
    formats = [torch.bfloat16] * (3 if _targets(model) == [ATTENTION] else 2) + [torch.float32]
    return _row(
        model,
        targets,
        seq_len=dice.choice([128, 512, 1024, 2048, 4096]),
        batch=batch,
        micro_batches=dice.choice([n for n in (1, 2, 4, 8) if batch % n == 0]),
        stage=dice.randrange(stages),
        num_stages=stages,
        recompute=dice.choice([False, True]),
        dtype=dice.choice(formats[:3]),
        layers=dice.choice([2, 3, 6]),
        rank=dice.choice([4, 8, 64]),
    )


def _targets(model: str) -> list[tuple[str, ...] | None]:
    """Adapters, or none, that a model of the grid may train with."""
    kind = MODELS[model]["model_type"]
    if kind in ("mixtral", "qwen3_moe", "gpt_oss"):
        return [ATTENTION]
    attention, everything = {
        "gpt2": (GPT2_ATTENTION, GPT2_ALL),
        "gpt_neox": (NEOX_ATTENTION, NEOX_ALL),
        "phi": (PHI_ATTENTION, PHI_ALL),
    }.get(kind, (ATTENTION, ALL_LINEAR))
    return [attention, everything, None]
