"""Dropout drawn from a seed, in the place of peft's own, so that one process drops what stages do.

The masks are torch's own Bernoulli draws, one after another over rows; only the seed is ours.
"""

import torch
from torch import Tensor, nn


class DrawnDropout(nn.Module):
    """x * mask / (1 - p) with the mask drawn from `seed`; nothing in evaluation."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.seed = 0

    def forward(self, given: Tensor) -> Tensor:
        if not self.training:
            return given
        generator = torch.Generator(given.device).manual_seed(self.seed)
        kept = torch.empty_like(given, dtype=torch.float32)
        kept.bernoulli_(1 - self.dropout, generator=generator)
        return given * kept.div_(1 - self.dropout)
