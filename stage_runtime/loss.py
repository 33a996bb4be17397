"""Cross entropy from hidden states, a few hundred tokens of logits at a time.

Logits of a whole batch never exist: at a vocabulary of 152,064 they would outweigh everything
else on the card. Rows without a supervised target are not computed at all.
"""

# N = positions with a target, D = hidden width, V = vocabulary, C = tokens of one chunk

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from stage_runtime.load import Head
from stage_runtime.pieces import LOSS_WORDS

IGNORED = -100
"""A position without a supervised target."""


@dataclass(frozen=True)
class _How:
    chunk_tokens: int
    scale: float
    softcap: float | None
    with_grad: bool


class _ChunkedSum(torch.autograd.Function):
    """Sum of cross entropies times `scale`; the gradients are made in forward, chunk by chunk."""

    @staticmethod
    def forward(  # noqa: PLR0913 - what autograd hands over is a flat list
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        target_N: Tensor,
        how: "_How",
        total: Tensor,
    ) -> Tensor:
        wants_hidden, wants_weight, wants_bias = (
            needed and how.with_grad for needed in ctx.needs_input_grad[:3]
        )
        weight = weight_VD.to(hidden_ND.dtype)
        grad_hidden = torch.empty_like(hidden_ND) if wants_hidden else None
        grad_weight = torch.zeros_like(weight_VD) if wants_weight else None
        grad_bias = torch.zeros_like(bias_V) if wants_bias and bias_V is not None else None
        for start in range(0, hidden_ND.shape[0], how.chunk_tokens):
            rows = slice(start, start + how.chunk_tokens)
            grads = _Grads(
                None if grad_hidden is None else grad_hidden[rows], grad_weight, grad_bias
            )
            _one_chunk(hidden_ND[rows], weight, bias_V, target_N[rows], how, total, grads)
        ctx.grads = (grad_hidden, grad_weight, grad_bias)
        return (total * how.scale).to(torch.float32)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        (grad_loss,) = grad_outputs
        grads = ctx.grads
        del ctx.grads
        scaled = [None if one is None else one.mul_(grad_loss.to(one.dtype)) for one in grads]
        return (*scaled, None, None, None)


@dataclass(frozen=True)
class _Grads:
    """Where a chunk's gradients go; None = nobody wants one."""

    hidden: Tensor | None
    """(C, D), (V, D) and (V)."""
    weight: Tensor | None
    bias: Tensor | None

    @property
    def is_wanted(self) -> bool:
        return self.hidden is not None or self.weight is not None


def _one_chunk(  # noqa: PLR0913
    hidden_CD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    target_C: Tensor,
    how: _How,
    total: Tensor,
    grads: _Grads,
) -> None:
    """Add a chunk's cross entropies to `total` and its gradients to theirs.

    One float32 tensor of the chunk's logits exists, which turns into their gradient in place.
    """
    logits_CV = _logits(hidden_CD, weight_VD, bias_V, how.softcap)
    slope_CV = None
    if how.softcap is not None:
        slope_CV = _slope(logits_CV, how.softcap) if grads.is_wanted else None
    total += _to_softmax(logits_CV, target_C).sum(dtype=torch.float64)
    if not grads.is_wanted:
        return
    logits_CV[torch.arange(len(target_C), device=logits_CV.device), target_C] -= 1
    logits_CV *= how.scale
    if slope_CV is not None:
        logits_CV *= slope_CV
        del slope_CV
    grad_CV = logits_CV.to(hidden_CD.dtype)
    del logits_CV
    if grads.hidden is not None:
        torch.mm(grad_CV, weight_VD, out=grads.hidden)
    if grads.weight is not None:
        for words in _pieces(len(weight_VD)):
            grads.weight[words] += grad_CV[:, words].T @ hidden_CD
    if grads.bias is not None:
        grads.bias.add_(grad_CV.sum(0))


def _pieces(num_words: int) -> Iterator[slice]:
    for start in range(0, num_words, LOSS_WORDS):
        yield slice(start, start + LOSS_WORDS)


def _logits(
    hidden_CD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, softcap: float | None
) -> Tensor:
    """Logits in float32, bent where the model bends them."""
    # The bias within the product: in 16 bits it would be rounded once more after it.
    bias_V = None if bias_V is None else bias_V.to(hidden_CD.dtype)
    logits = functional.linear(hidden_CD, weight_VD, bias_V)
    if softcap is not None:
        logits.div_(softcap).tanh_().mul_(softcap)
    return logits.float()


def _slope(bent_CV: Tensor, softcap: float) -> Tensor:
    """The softcap's derivative, from the bent logits: 1 - (bent / softcap) squared."""
    return (bent_CV / softcap).square_().neg_().add_(1)


def _to_softmax(logits_CV: Tensor, target_C: Tensor) -> Tensor:
    """The cross entropy of each row; the logits become their softmax in place."""
    top_C1 = logits_CV.amax(dim=1, keepdim=True)
    picked_C = logits_CV.gather(1, target_C[:, None]).squeeze(1)
    sums_C1 = logits_CV.sub_(top_C1).exp_().sum(dim=1, keepdim=True)
    logits_CV /= sums_C1
    return sums_C1.squeeze(1).log() + top_C1.squeeze(1) - picked_C


def chunked_cross_entropy(
    hidden_ND: Tensor, head: Head, target_N: Tensor, *, chunk_tokens: int, scale: float
) -> tuple[Tensor, Tensor]:
    """(scale * sum of cross entropies, the sum alone in float64).

    hidden_ND: any float dtype, only positions with a target. The loss is float32 and carries
    gradients to hidden_ND and to the head's weights that require them. Nothing to sum gives 0.
    """
    total = torch.zeros((), dtype=torch.float64, device=hidden_ND.device)
    how = _How(chunk_tokens, scale, head.softcap, torch.is_grad_enabled())
    loss: Tensor = _ChunkedSum.apply(  # type: ignore[no-untyped-call]
        hidden_ND, head.weight, head.bias, target_N, how, total
    )
    return loss, total


@dataclass
class Tally:
    """What a step or an evaluation added up."""

    loss_sum: float = 0.0
    tokens: int = 0
    correct: int = 0
    empty_micro_batches: int = 0


@dataclass
class StageLoss:
    """The schedule's loss function on the last stage: knows the step's number of targets.

    Called once a micro-batch with the last stage's output and the targets. In evaluation it counts
    right guesses and returns no gradient.
    """

    head: Head
    chunk_tokens: int
    num_targets: int = 1
    """Supervised targets of the whole step: the divisor of every micro-batch's sum."""
    scale: float = 1.0
    """What the loss is multiplied by before backward (stage_runtime.loss_scale)."""
    evaluating: bool = False
    tally: Tally = field(default_factory=Tally)

    def begin(self, num_targets: int, *, evaluating: bool = False) -> None:
        """Start counting a new step or evaluation."""
        self.num_targets, self.evaluating, self.tally = num_targets, evaluating, Tally()

    def __call__(self, hidden_BTD: Tensor, target_BT: Tensor) -> Tensor:
        target = target_BT.reshape(-1).to(hidden_BTD.device)
        (places,) = torch.nonzero(target != IGNORED, as_tuple=True)
        hidden_ND = hidden_BTD.reshape(-1, hidden_BTD.shape[-1])[places]
        target_N = target[places]
        loss, total = chunked_cross_entropy(
            hidden_ND,
            self.head,
            target_N,
            chunk_tokens=self.chunk_tokens,
            scale=self.scale / max(1, self.num_targets),
        )
        self.tally.loss_sum += float(total)
        self.tally.tokens += len(target_N)
        self.tally.empty_micro_batches += len(target_N) == 0
        if self.evaluating:
            self.tally.correct += sum(self._right_guesses(hidden_ND, target_N))
        return loss

    def _right_guesses(self, hidden_ND: Tensor, target_N: Tensor) -> Iterator[int]:
        head = self.head
        weight_VD = head.weight.to(hidden_ND.dtype)
        for start in range(0, len(target_N), self.chunk_tokens):
            rows = slice(start, start + self.chunk_tokens)
            logits_CV = _logits(hidden_ND[rows], weight_VD, head.bias, head.softcap)
            yield int((logits_CV.argmax(dim=1) == target_N[rows]).sum())
