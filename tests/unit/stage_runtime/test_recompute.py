"""Blocks computed again in backward: the bits of blocks that keep everything, early or late."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from stage_runtime.lora_linear import AdapterShape, LoraLinear, put_adapters
from stage_runtime.recompute import Rebuilds

BLOCKS, WIDTH, PARTS = 4, 6, 3


class Adapted(nn.Module):
    """A block with an adapter, dropout in it."""

    def __init__(self) -> None:
        super().__init__()
        self.proj: nn.Module = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        put_adapters(self, ["proj"], AdapterShape(2, 2.0, 0.25))
        for weight in self.parameters():
            if weight.requires_grad:
                weight.data = torch.randn_like(weight)

    def run(self, seed: int, hidden: Tensor) -> Tensor:
        assert isinstance(self.proj, LoraLinear)
        self.proj.dropout_seed = seed
        return torch.tanh(self.proj(hidden))


def a_stage() -> list[Adapted]:
    torch.manual_seed(3)
    return [Adapted() for _ in range(BLOCKS)]


def nothing() -> None:
    """No card to enter."""


def train(rebuilds: Rebuilds | None, early: int = 0, *, wants_input: bool = True) -> list[Tensor]:
    """Forward all micro-batches, then backward each; gradients of inputs and adapters."""
    blocks = a_stage()
    torch.manual_seed(4)
    inputs = [torch.randn(5, WIDTH, requires_grad=wants_input) for _ in range(PARTS)]
    outputs = []
    for part, given in enumerate(inputs):
        hidden = given
        if rebuilds is not None:
            rebuilds.begin_micro_batch()
        for layer, block in enumerate(blocks):
            run = partial(block.run, 10 * part + layer)
            hidden = run(hidden) if rebuilds is None else rebuilds.run(run, hidden, nothing)
        outputs.append(hidden)
    for out in outputs:
        for _ in range(early):
            assert rebuilds is not None
            rebuilds.rebuild_one()
        out.backward(torch.ones_like(out))  # type: ignore[no-untyped-call]
    found = [one.grad for one in inputs if one.grad is not None]
    weights = [weight for block in blocks for weight in block.parameters()]
    return found + [weight.grad for weight in weights if weight.grad is not None]


@pytest.mark.parametrize("wants_input", [True, False], ids=["hidden states", "frozen embeddings"])
@pytest.mark.parametrize("early", [0, 1, 3, 9])
def test_gradients_are_the_same_bits_however_many_blocks_were_rebuilt_early(
    early: int, wants_input: bool
) -> None:
    rebuilds = Rebuilds(most_early=BLOCKS)
    found = train(rebuilds, early, wants_input=wants_input)
    wanted = train(None, wants_input=wants_input)
    assert len(found) == len(wanted) > 0
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert rebuilds.num_early == PARTS * min(early, BLOCKS)


def test_no_more_blocks_stand_early_than_there_is_room_for() -> None:
    rebuilds = Rebuilds(most_early=2)
    train(rebuilds, early=9)
    assert rebuilds.num_early == 2 * PARTS


def test_the_last_block_of_the_oldest_micro_batch_comes_first() -> None:
    order: list[tuple[int, int]] = []
    rebuilds = Rebuilds(most_early=9)
    for part in range(2):
        rebuilds.begin_micro_batch()
        hidden = torch.ones(1, WIDTH, requires_grad=True)
        for layer in range(3):
            hidden = rebuilds.run(torch.sin, hidden, partial(order.append, (part, layer)))
    while rebuilds.rebuild_one():
        pass
    assert order == [(0, 2), (0, 1), (0, 0)]


def test_a_block_that_waits_keeps_its_input_and_nothing_else() -> None:
    rebuilds = Rebuilds()
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, pack):
        out = rebuilds.run(torch.exp, torch.randn(3, WIDTH, requires_grad=True), nothing)
    assert kept == []
    assert out.requires_grad


def test_autocast_that_was_on_in_forward_is_on_again() -> None:
    projection = nn.Linear(WIDTH, WIDTH)
    grads: list[Tensor | None] = []
    for rebuilds in (None, Rebuilds()):
        projection.weight.grad = None
        hidden = torch.ones(2, WIDTH, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            run: Callable[[Tensor], Tensor] = projection
            out = run(hidden) if rebuilds is None else rebuilds.run(run, hidden, nothing)
        out.float().square().sum().backward()  # type: ignore[no-untyped-call]
        grads.append(projection.weight.grad)
    torch.testing.assert_close(grads[0], grads[1], rtol=0, atol=0)
