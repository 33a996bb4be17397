"""The reference: plain transformers and peft in one process, the batch whole, nothing of ours
but the choice of sequences, the adapters' first values, and how plain libraries are told to store
weights and to drop nothing (stage_runtime.reference)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from stage_runtime.batches import Batch, Sequences, documents_of, indices_of_step
from stage_runtime.optim import learning_rate
from stage_runtime.reference import (
    keep_one_way,
    pack_experts,
    put_first_values,
    quantization_of,
    silence_dropouts,
)
from stage_runtime.stage import DTYPES, Moment
from tests.oracle.drawn_dropout import DrawnDropout
from transport.orders import TrainSettings

_DROPOUT = re.compile(r"\.(?:layers|h)\.(\d+)\.(.+)\.lora_dropout\.default$")


@dataclass
class Reference:
    """What one process saw."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    base: tuple[float, float] | None = None
    trained: tuple[float, float] | None = None
    model: Any = None


def plain_model(folder: Path, settings: TrainSettings) -> Any:
    """The whole model, with peft's adapters when asked for, dropouts of its own off."""
    dtype = torch.float32 if settings.method == "full" else DTYPES[settings.dtype]
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, quantization_config=quantization_of(settings)
    )
    keep_one_way(model)
    pack_experts(model, settings)
    silence_dropouts(model)
    if settings.lora is None:
        return model
    config = LoraConfig(
        r=settings.lora.rank,
        lora_alpha=settings.lora.alpha,
        lora_dropout=settings.lora.dropout,
        target_modules=list(settings.lora.target_modules),
        fan_in_fan_out=any(isinstance(one, Conv1D) for one in model.modules()),
    )
    model = get_peft_model(model, config)
    put_first_values(model, settings.seed)
    if settings.lora.dropout:
        for module in model.modules():
            if hasattr(module, "lora_dropout"):
                module.lora_dropout["default"] = DrawnDropout(settings.lora.dropout)
    return model


def draw(model: Any, moment: Moment) -> None:
    """Say what every adapter's dropout is drawn from, by its layer and its name in that layer."""
    for name, module in model.named_modules():
        if isinstance(module, DrawnDropout):
            found = _DROPOUT.search(name)
            assert found is not None, name
            module.seed = moment.dropout_seed(int(found[1]), found[2])


def rows_of(settings: TrainSettings) -> int:
    """Sequences at once in a step: the batch whole, or its micro-batches where dropout tells them
    apart.
    """
    drops = settings.lora is not None and settings.lora.dropout > 0
    return settings.batch_size // (settings.micro_batches if drops else 1)


def losses_of(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """(sum of cross entropies over supervised targets, how many guesses were right).

    Summed in float64: over SmolLM2's 49,152 words torch's float32 cross entropy is itself 5e-6
    off the truth, ours 8e-7. Documents that must not see each other run alone, one by one.
    """
    if batch.positions is not None:
        told = [losses_of(model, one) for one in documents_of(batch)]
        return sum((one for one, _ in told), torch.zeros(())), sum(
            (right for _, right in told), torch.zeros((), dtype=torch.int64)
        )
    logits = model(input_ids=batch.tokens, use_cache=False).logits.double()
    targets = batch.targets.reshape(-1)
    flat = logits.reshape(-1, logits.shape[-1])
    total = functional.cross_entropy(flat, targets, ignore_index=-100, reduction="sum")
    right = ((flat.argmax(-1) == targets) & (targets != -100)).sum()
    return total, right


def held_out(
    model: Any, sequences: Sequences, settings: TrainSettings, rows: int = 1
) -> tuple[float, float]:
    """(mean loss, accuracy) over the held-out sequences, so many at once."""
    model.eval()
    total, right, count = 0.0, 0, 0
    chosen = sequences.held_out(settings.eval_sequences)
    chosen += [-1] * (-len(chosen) % rows)
    with torch.no_grad():
        for first in range(0, len(chosen), rows):
            batch = sequences.batch(chosen[first : first + rows], settings.seq_len)
            loss, hits = losses_of(model, batch)
            total, right, count = total + float(loss), right + int(hits), count + batch.num_targets
    return total / max(1, count), right / max(1, count)


def train(
    folder: Path,
    sequences: Sequences,
    settings: TrainSettings,
    *,
    evaluate: bool = False,
    exactly: bool = False,
) -> Reference:
    """Train as the order says, in one process; exactly: in float64, whose rounding is nothing."""
    torch.set_num_threads(1)
    told = Reference(model=plain_model(folder, settings))
    if exactly:
        told.model.double()
        # The grouped kernel has no float64.
        told.model.config._experts_implementation = "eager"
    if evaluate:
        told.base = held_out(told.model, sequences, settings)
    train_model(told, sequences, settings, rows_of(settings))
    if evaluate:
        told.trained = held_out(told.model, sequences, settings)
    return told


def train_model(
    told: Reference,
    sequences: Sequences,
    settings: TrainSettings,
    rows: int,
    beside: Sequence[torch.nn.Parameter] = (),
) -> None:
    """Train a model with what trains beside it, and note losses and norms.

    rows: sequences that are computed at once.
    """
    model = told.model
    weights = [*(weight for weight in model.parameters() if weight.requires_grad), *beside]
    optimizer = torch.optim.AdamW(weights, lr=settings.learning_rate, eps=1e-8, weight_decay=0.0)
    for step in range(1, settings.steps + 1):
        model.train()
        indices = indices_of_step(
            settings.seed, step, settings.batch_size, sequences.file.train_sequences
        )
        targets = sequences.batch(indices, settings.seq_len).num_targets
        assert targets, "the reference has no answer for a step without targets"
        loss_sum = 0.0
        for part, first in enumerate(range(0, len(indices), rows)):
            draw(model, Moment(settings.seed, step, part))
            batch = sequences.batch(indices[first : first + rows], settings.seq_len)
            total, _ = losses_of(model, batch)
            (total / targets).backward()  # type: ignore[no-untyped-call]
            loss_sum += float(total.detach())
        limit = settings.max_grad_norm or float("inf")
        told.norms.append(float(torch.nn.utils.clip_grad_norm_(weights, limit)))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings, step)
        optimizer.step()
        optimizer.zero_grad()
        told.losses.append(loss_sum / targets)
