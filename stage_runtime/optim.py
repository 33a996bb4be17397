"""The update: learning rate of a step, norm and clip of gradients, AdamW with float32 moments."""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from transport.orders import TrainSettings

BETAS = (0.9, 0.999)
EPSILON = 1e-8
FINAL_SHARE = 0.1
"""Cosine ends at this share of the learning rate."""
CLIP_EPSILON = 1e-6  # as torch.nn.utils.clip_grad_norm_ adds to the norm


def learning_rate(settings: TrainSettings, step: int) -> float:
    """The rate of a step (from 1): linear warm-up, then constant or cosine down to a tenth."""
    peak, warm = settings.learning_rate, settings.warmup_steps
    if step <= warm:
        return peak * step / warm
    if settings.lr_schedule == "constant":
        return peak
    done = (step - warm) / max(1, settings.steps - warm)
    return peak * (FINAL_SHARE + (1 - FINAL_SHARE) * 0.5 * (1 + math.cos(math.pi * done)))


def adamw(trained: Mapping[str, nn.Parameter], device: torch.device) -> torch.optim.AdamW:
    """AdamW without weight decay over the trained tensors, in order of names."""
    weights = [weight for _, weight in sorted(trained.items())]
    # Neither choice copies all trainables while it steps, as foreach would.
    fused = device.type == "cuda"
    return torch.optim.AdamW(
        weights,
        lr=0.0,
        betas=BETAS,
        eps=EPSILON,
        weight_decay=0.0,
        foreach=False,
        fused=fused,
    )


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use this learning rate for the next update."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def squared_norm(trained: Mapping[str, nn.Parameter]) -> float:
    """Sum of squares of all gradients, added in order of names in float64; may be inf or NaN."""
    total = 0.0
    for _, weight in sorted(trained.items()):
        if weight.grad is not None:
            total += float(torch.linalg.vector_norm(weight.grad, dtype=torch.float64)) ** 2
    return total


def clip_share(norm: float, max_norm: float) -> float:
    """What to multiply gradients by: 1 when nothing needs clipping (max_norm 0 = never)."""
    return min(1.0, max_norm / (norm + CLIP_EPSILON)) if max_norm > 0 else 1.0


def scale_gradients(weights: Iterable[Tensor], share: float) -> None:
    """Multiply every gradient by `share`."""
    if share != 1.0:
        for weight in weights:
            if weight.grad is not None:
                weight.grad.mul_(share)
