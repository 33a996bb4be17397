"""What the loss holds: a chunk's logits once, never those of a whole micro-batch."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from stage_runtime.costs import loss_chunk_tokens
from stage_runtime.load import Head
from stage_runtime.loss import chunked_cross_entropy
from tests.oracle.memory_models import MODELS
from tests.oracle.memory_oracle import Case, LiveBytes, count

WORDS, TOKENS, WIDTH = 151_936, 2048, 1024


def peak_of(loss: Callable[[Tensor, Head, Tensor], Tensor], *, trains: bool) -> int:
    """Bytes at the peak of loss and backward, above what exists before; sizes only, no values.

    A trained head's own gradient is in both and left out.
    """
    with FakeTensorMode():
        hidden = torch.randn(TOKENS, WIDTH, requires_grad=True)
        head = Head(nn.Parameter(torch.randn(WORDS, WIDTH), requires_grad=trains), None, None)
        target = torch.randint(0, WORDS, (TOKENS,))
        counter = LiveBytes()
        for one in (hidden, head.weight, target):
            counter.hold(one)
        with counter:
            before = counter.now
            loss(hidden, head, target).backward()  # type: ignore[no-untyped-call]
        return counter.peak - before - (4 * WORDS * WIDTH if trains else 0)


def chunked(hidden: Tensor, head: Head, target: Tensor) -> Tensor:
    tokens = loss_chunk_tokens(WORDS)
    return chunked_cross_entropy(hidden, head, target, chunk_tokens=tokens, scale=1.0)[0]


def whole(hidden: Tensor, head: Head, target: Tensor) -> Tensor:
    return functional.cross_entropy(hidden @ head.weight.T, target, reduction="sum")


@pytest.mark.parametrize("trains", [False, True], ids=["frozen head", "trained head"])
def test_chunks_take_at_most_8_percent_of_the_whole_logits_peak(trains: bool) -> None:
    assert peak_of(chunked, trains=trains) <= 0.08 * peak_of(whole, trains=trains)


def test_four_micro_batches_at_least_halve_the_head_stages_peak() -> None:
    case = Case(MODELS["qwen3-0.6b"], 2, ("q_proj", "v_proj"), batch=4, stage=2)
    one, four = (
        count(Case(**(vars(case) | {"micro_batches": parts, "chunk_tokens": 149})))
        for parts in (1, 4)
    )
    assert four.peak - four.loaded <= 0.5 * (one.peak - one.loaded)
