"""The plain way to train: transformers and peft in one process, with nothing of the pipeline.

Of ours are only the choice of sequences, the adapters' first values and the rate of a step: what a
split run must agree on with it. Sequences go through one by one, their gradients add up.
"""

# T = tokens, V = words

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bitsandbytes as bnb
import torch
from bitsandbytes.nn.parametrize import replace_parameter_4bit
from peft import LoraConfig, get_peft_model
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from transformers.pytorch_utils import Conv1D

from stage_runtime.adapters import _first_values
from stage_runtime.batches import Batch, Sequences, documents_of, indices_of_step
from stage_runtime.families import FAMILIES
from stage_runtime.loss import IGNORED
from stage_runtime.loss_scale import LossScale
from stage_runtime.optim import BETAS, EPSILON, learning_rate
from stage_runtime.stage import DTYPES
from transport.orders import TrainSettings

LOSS_TOKENS = 64
"""Tokens whose logits are in float64 at once."""


@dataclass
class Trained:
    """What one process saw: mean losses in nats."""

    losses: list[float] = field(default_factory=list)
    held_out: list[float] = field(default_factory=list)
    """Before and after; empty when nothing is held out."""


def plain_model(folder: Path, settings: TrainSettings, device: torch.device) -> Any:
    """The whole model with peft's adapters when the method asks for them, dropouts off."""
    dtype = torch.float32 if settings.method == "full" else DTYPES[settings.dtype]
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, quantization_config=quantization_of(settings), device_map=device
    )
    keep_one_way(model)
    pack_experts(model, settings)
    silence_dropouts(model)
    model.requires_grad_(settings.method == "full")
    if settings.lora is None:
        return model
    config = LoraConfig(
        r=settings.lora.rank,
        lora_alpha=settings.lora.alpha,
        target_modules=list(settings.lora.target_modules),
        fan_in_fan_out=any(isinstance(one, Conv1D) for one in model.modules()),
    )
    model = get_peft_model(model, config)
    put_first_values(model, settings.seed)
    return model


def silence_dropouts(model: Any) -> None:
    """Turn off the dropouts that a model's own config asks for, as stages do."""
    for key in FAMILIES[model.config.model_type].dropout_keys:
        setattr(model.config, key, 0.0)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0


def put_first_values(model: torch.nn.Module, seed: int) -> None:
    """Let adapters begin as the stages' do: drawn by seed and name."""
    for name, weight in model.named_parameters():
        if ".lora_A." in name:
            wire = name.replace(".default.", ".")
            weight.data = _first_values(wire, tuple(weight.shape), seed).to(weight.device)


def quantization_of(settings: TrainSettings) -> BitsAndBytesConfig | None:
    """How transformers is to store frozen projections."""
    if settings.quantization == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    if settings.quantization == "nf4":
        return BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=DTYPES[settings.dtype],
        )
    return None


def keep_one_way(model: torch.nn.Module) -> None:
    """Let bitsandbytes evaluate as it trains.

    On processors with bfloat16 products its 4-bit layer repacks itself in evaluation, and no
    gradient passes through it any more; its 8-bit layer rounds activations too when it evaluates.
    """
    for module in model.modules():
        if isinstance(module, bnb.nn.Linear4bit):
            module.support_avx512bf16_for_cpu = False
        elif isinstance(module, bnb.nn.Linear8bitLt):
            module.training = True
            module.train = lambda mode=True, module=module: module  # for good


def pack_experts(model: torch.nn.Module, settings: TrainSettings) -> None:
    """transformers packs linears only; bitsandbytes has a way for fused experts."""
    if settings.quantization != "nf4":
        return
    for module in list(model.modules()):
        if type(module).__name__.endswith("Experts"):
            for name in ("gate_up_proj", "down_proj"):
                replace_parameter_4bit(module, name, compress_statistics=True, quant_type="nf4")


def train_alone(model: Any, sequences: Sequences, settings: TrainSettings) -> Trained:
    """Train as the settings say, on the device that the model lies on."""
    told = Trained()
    _note_held_out(told, model, sequences, settings)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    scale = LossScale.of(settings.dtype)
    optimizer = None
    if weights:  # none where the stages train their boundaries alone
        optimizer = torch.optim.AdamW(weights, lr=0.0, betas=BETAS, eps=EPSILON, weight_decay=0.0)
    for step in range(1, settings.steps + 1):
        model.train()
        total, targets = _backward(model, sequences, settings, step, scale.value)
        told.losses.append(total / max(1, targets))
        if optimizer is not None and targets:
            _update(optimizer, weights, settings, step, scale)
    _note_held_out(told, model, sequences, settings)
    return told


def _backward(
    model: Any, sequences: Sequences, settings: TrainSettings, step: int, scale: float
) -> tuple[float, int]:
    """(sum of losses, targets) of a step; its gradients are left on the weights."""
    indices = indices_of_step(
        settings.seed, step, settings.batch_size, sequences.file.train_sequences
    )
    targets = sequences.batch(indices, settings.seq_len).num_targets
    total = 0.0
    for index in indices:
        loss = _loss_sum(model, sequences, index, settings.seq_len)
        if loss.requires_grad and targets:
            (loss * (scale / targets)).backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    return total, targets


def _update(
    optimizer: torch.optim.Optimizer,
    weights: list[Tensor],
    settings: TrainSettings,
    step: int,
    scale: LossScale,
) -> None:
    for weight in weights:
        if weight.grad is not None:
            weight.grad.div_(scale.value)
    norm = torch.nn.utils.clip_grad_norm_(weights, settings.max_grad_norm or float("inf"))
    finite = bool(torch.isfinite(norm))
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(settings, step)
    if finite:
        optimizer.step()
    optimizer.zero_grad()
    scale.took(overflowed=not finite)


def _note_held_out(
    told: Trained, model: Any, sequences: Sequences, settings: TrainSettings
) -> None:
    model.eval()
    total, targets = 0.0, 0
    with torch.no_grad():
        for index in sequences.held_out(settings.eval_sequences):
            total += float(_loss_sum(model, sequences, index, settings.seq_len))
            targets += sequences.batch([index], settings.seq_len).num_targets
    if targets:
        told.held_out.append(total / targets)


def _loss_sum(model: Any, sequences: Sequences, index: int, seq_len: int) -> Tensor:
    """The sum of a sequence's cross entropies, in float64: over 49,152 words float32's own rounding
    is half of what verdicts in float32 allow.
    """
    batch = sequences.batch([index], seq_len)
    alone = [batch] if batch.positions is None else documents_of(batch)
    return torch.stack([_document_loss(model, one) for one in alone]).sum()


def _document_loss(model: Any, batch: Batch) -> Tensor:
    device = next(model.parameters()).device
    logits_TV = model(input_ids=batch.tokens.to(device), use_cache=False).logits[0]
    targets_T = batch.targets[0].to(device)
    parts = [
        checkpoint(_entropy, logits_TV[first : first + LOSS_TOKENS], part, use_reentrant=False)
        for first, part in _pieces(targets_T)
    ]
    return torch.stack(parts).sum()


def _pieces(targets_T: Tensor) -> Iterable[tuple[int, Tensor]]:
    starts = range(0, len(targets_T), LOSS_TOKENS)
    return ((first, targets_T[first : first + LOSS_TOKENS]) for first in starts)


def _entropy(logits_TV: Tensor, targets_T: Tensor) -> Tensor:
    return functional.cross_entropy(
        logits_TV.double(), targets_T, ignore_index=IGNORED, reduction="sum"
    )
