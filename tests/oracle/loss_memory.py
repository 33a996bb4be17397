"""What the loss and its stage hold: `python -m tests.oracle.loss_memory`.

At Qwen3's vocabulary of 151,936 words and 2,048 tokens: the peak of the chunked loss and its
backward beside that of whole logits, on fake tensors of the true sizes, with a frozen and a trained
head; then both on real tensors (width 32, about 4 GB for a moment), loss and gradients compared;
and a last stage's peak with four micro-batches beside one. Ends with 1 when chunks take more than
8 %, a number differs, or the peak is more than a half.
"""

import sys
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from stage_runtime.load import Head
from stage_runtime.loss import chunked_cross_entropy
from tests.oracle.live_bytes import LiveBytes
from tests.oracle.memory_models import MODELS
from tests.oracle.memory_oracle import Case, count

WORDS, TOKENS, WIDTH, CHUNK = 151_936, 2048, 1024, 149
"""CHUNK: what a plan says for this vocabulary; a test holds it to that."""
SHARE_BAR, HALF_BAR = 0.08, 0.5
Loss = Callable[[Tensor, Head, Tensor], Tensor]


def chunked(hidden: Tensor, head: Head, target: Tensor) -> Tensor:
    """The engine's."""
    return chunked_cross_entropy(hidden, head, target, chunk_tokens=CHUNK, scale=1.0)[0]


def whole(hidden: Tensor, head: Head, target: Tensor) -> Tensor:
    """Of all logits at once."""
    return functional.cross_entropy(hidden @ head.weight.T, target, reduction="sum")


def peak_of(loss: Loss, *, trains: bool) -> int:
    """Bytes at the peak of loss and backward, above what exists before; sizes only, no values.

    A trained head's own gradient is in both and left out.
    """
    with FakeTensorMode():
        hidden, head, target = _given(WIDTH, trains=trains)
        counter = LiveBytes()
        for one in (hidden, head.weight, target):
            counter.hold(one)
        with counter:
            before = counter.now
            loss(hidden, head, target).backward()  # type: ignore[no-untyped-call]
        return counter.peak - before - (4 * WORDS * WIDTH if trains else 0)


def share(*, trains: bool) -> float:
    """The chunked loss's peak over whole logits'."""
    return peak_of(chunked, trains=trains) / peak_of(whole, trains=trains)


def quarters() -> float:
    """A last stage's peak above its weights with four micro-batches over that with one."""
    case = Case(MODELS["qwen3-0.6b"], 2, ("q_proj", "v_proj"), batch=4, stage=2, chunk_tokens=CHUNK)
    one, four = (count(replace(case, micro_batches=parts)) for parts in (1, 4))
    return (four.peak - four.loaded) / (one.peak - one.loaded)


def differences(*, trains: bool) -> tuple[float, float]:
    """(of the loss, of the gradients): the largest one over the largest value."""
    hidden, head, target = _given(32, trains=trains)
    found = [_grads(loss, hidden, head, target) for loss in (chunked, whole)]
    (ours, our_grads), (theirs, their_grads) = found
    of_grads = [
        float((a - b).abs().max() / b.abs().max())
        for a, b in zip(our_grads, their_grads, strict=True)
    ]
    return abs(ours / theirs - 1), max(of_grads)


def _given(width: int, *, trains: bool) -> tuple[Tensor, Head, Tensor]:
    torch.manual_seed(0)
    hidden = torch.randn(TOKENS, width, requires_grad=True)
    head = Head(nn.Parameter(torch.randn(WORDS, width), requires_grad=trains), None, None)
    return hidden, head, torch.randint(0, WORDS, (TOKENS,))


def _grads(loss: Loss, hidden: Tensor, head: Head, target: Tensor) -> tuple[float, list[Tensor]]:
    wanted = [one for one in (hidden, head.weight) if one.requires_grad]
    value = loss(hidden, head, target)
    return float(value.detach()), list(torch.autograd.grad(value, wanted))


def main() -> int:
    """Print the figures."""
    torch.set_num_threads(1)
    good = True
    for trains in (False, True):
        told, (loss, grads) = share(trains=trains), differences(trains=trains)
        good = good and told <= SHARE_BAR and loss <= 1e-6 and grads <= 1e-5
        print(
            f"{'trained' if trains else 'frozen'} head: chunks take {told:.1%} of whole logits' "
            f"peak (limit {SHARE_BAR:.0%}); off by {loss:.1e} (loss), {grads:.1e} (gradients)"
        )
    halved = quarters()
    print(f"last stage, four micro-batches over one: {halved:.3f} of the peak (limit {HALF_BAR})")
    return int(not good or halved > HALF_BAR)


if __name__ == "__main__":
    sys.exit(main())
