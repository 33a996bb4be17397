"""Chunked cross entropy against the plain one and torch's own."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from stage_runtime.load import Head
from stage_runtime.loss import IGNORED, StageLoss, chunked_cross_entropy

N, D, V = 37, 16, 50


def a_head(*, bias: bool = False, softcap: float | None = None, trains: bool = False) -> Head:
    torch.manual_seed(1)
    weight = nn.Parameter(torch.randn(V, D), requires_grad=trains)
    added = nn.Parameter(torch.randn(V), requires_grad=trains) if bias else None
    return Head(weight, added, softcap)


def plain(hidden: Tensor, head: Head, target: Tensor) -> Tensor:
    logits = hidden @ head.weight.T
    if head.bias is not None:
        logits = logits + head.bias
    if head.softcap is not None:
        logits = torch.tanh(logits / head.softcap) * head.softcap
    return functional.cross_entropy(logits, target, reduction="sum")


@pytest.mark.parametrize("chunk", [1, 8, 1000])
@pytest.mark.parametrize(
    "how",
    [{}, {"bias": True}, {"softcap": 3.0}, {"bias": True, "softcap": 3.0, "trains": True}],
    ids=str,
)
def test_chunks_give_the_loss_and_gradients_of_all_logits_at_once(
    how: dict[str, object], chunk: int
) -> None:
    target = torch.randint(0, V, (N,))
    found, wanted = (torch.randn(N, D, requires_grad=True) for _ in range(2))
    wanted.data.copy_(found.data)
    head, twin = a_head(**how), a_head(**how)  # type: ignore[arg-type]

    loss, total = chunked_cross_entropy(found, head, target, chunk_tokens=chunk, scale=0.25)
    reference = plain(wanted, twin, target)
    (3 * loss).backward()  # type: ignore[no-untyped-call]
    (3 * 0.25 * reference).backward()  # type: ignore[no-untyped-call]

    torch.testing.assert_close(total.float(), reference.detach())
    pairs = [(found.grad, wanted.grad)]
    pairs += [(a.grad, b.grad) for a, b in zip(head.parameters(), twin.parameters())]
    for ours, theirs in pairs:
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            torch.testing.assert_close(ours, theirs)


def test_chunks_agree_with_torchs_own_linear_cross_entropy() -> None:
    linear_cross_entropy = getattr(functional, "linear_cross_entropy", None)
    if linear_cross_entropy is None:
        # Floor torch has none; the comparison with plain cross entropy above still stands.
        return
    head, hidden = a_head(), torch.randn(N, D)
    target = torch.randint(0, V, (N,))
    _, total = chunked_cross_entropy(hidden, head, target, chunk_tokens=8, scale=1.0)
    theirs = linear_cross_entropy(hidden, head.weight, target, reduction="sum")
    torch.testing.assert_close(total.float(), theirs)


def test_nothing_to_learn_from_contributes_exactly_zero_even_beside_numbers_that_are_none() -> None:
    hidden = torch.full((2, 5, D), float("nan"), requires_grad=True)
    loss = StageLoss(a_head(), chunk_tokens=4)
    loss.begin(7)
    value = loss(hidden, torch.full((2, 5), IGNORED))
    value.backward()  # type: ignore[no-untyped-call]
    assert value.item() == 0.0
    assert hidden.grad is not None
    assert hidden.grad.abs().sum().item() == 0.0
    assert (loss.tally.tokens, loss.tally.empty_micro_batches) == (0, 1)


def test_micro_batches_of_unlike_size_add_up_to_the_whole_batchs_mean() -> None:
    head, hidden = a_head(), torch.randn(4, 6, D)
    targets = torch.randint(0, V, (4, 6))
    targets[0, 1:] = IGNORED
    targets[3] = IGNORED
    count = int((targets != IGNORED).sum())
    loss = StageLoss(head, chunk_tokens=3)
    loss.begin(count)
    total = sum(float(loss(hidden[row : row + 1], targets[row : row + 1])) for row in range(4))
    flat = hidden.reshape(-1, D) @ head.weight.T
    whole = functional.cross_entropy(flat, targets.reshape(-1), ignore_index=IGNORED)
    assert total == pytest.approx(float(whole), rel=1e-6)
    assert loss.tally.loss_sum / loss.tally.tokens == pytest.approx(float(whole), rel=1e-6)


def test_an_evaluation_counts_right_guesses_and_makes_no_gradient() -> None:
    head = a_head(trains=True)
    hidden = torch.randn(1, 9, D, requires_grad=True)
    targets = (hidden @ head.weight.T).argmax(-1)
    targets[0, 0] = (targets[0, 0] + 1) % V
    targets[0, 1] = IGNORED
    loss = StageLoss(head, chunk_tokens=4)
    loss.begin(1, evaluating=True)
    with torch.no_grad():
        value = loss(hidden, targets)
    assert (loss.tally.tokens, loss.tally.correct) == (8, 7)
    assert not value.requires_grad


def test_a_weight_kept_in_float32_learns_from_sixteen_bit_hidden_states() -> None:
    head = a_head(trains=True)
    hidden = torch.randn(N, D).to(torch.bfloat16).requires_grad_(True)
    target = torch.randint(0, V, (N,))
    loss, _ = chunked_cross_entropy(hidden, head, target, chunk_tokens=8, scale=1 / N)
    loss.backward()  # type: ignore[no-untyped-call]
    assert hidden.grad is not None
    assert head.weight.grad is not None
    assert (hidden.grad.dtype, head.weight.grad.dtype) == (torch.bfloat16, torch.float32)
    whole = plain(hidden.detach().float(), head, target).detach()
    assert loss.item() == pytest.approx(float(whole) / N, rel=0.02)
