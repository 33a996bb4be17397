"""Blocks that keep their input alone and are computed again in backward, early where time allows.

A block's second forward needs nothing that comes from other stages, so it may run while a stage
waits for the gradient of the block's micro-batch: from the last block to the first, one at a time
until the gradient is there, and never more blocks than the plan has room for. What is computed,
and in which order gradients are added, is the same early or late, bit for bit.
"""

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

Run = Callable[[Tensor], Tensor]


class Rebuilds:
    """The blocks of a stage that wait for their backward, in the order of micro-batches.

    Micro-batches are finished in the order in which they began, under 1F1B and under GPipe.
    """

    def __init__(self, most_early: int = 0) -> None:
        self.most_early = most_early
        """Blocks that may be rebuilt before their gradient has come."""
        self.num_early = 0
        """Rebuilt early since the start."""
        self._waiting: deque[list[_Slot]] = deque()
        self._num_built = 0

    def begin_micro_batch(self) -> None:
        """Blocks from here on belong to the next micro-batch."""
        if not self._waiting or self._waiting[-1]:  # else the one before has no block that waits
            self._waiting.append([])

    def run(self, block: Run, hidden: Tensor, enter: Callable[[], None]) -> Tensor:
        """Compute a block, keeping its input only. Call it in order, between micro-batches too.

        enter: called before the block is computed again.
        """
        slot = _Slot(self, block, enter)
        if not self._waiting:
            self.begin_micro_batch()
        self._waiting[-1].append(slot)
        # A first stage with frozen embeddings has no input that wants a gradient.
        wants = torch.empty((), requires_grad=True)
        out = _Later.apply(hidden, wants, slot)  # type: ignore[no-untyped-call]
        assert isinstance(out, Tensor)
        return out

    def rebuild_one(self) -> bool:
        """Rebuild one more block of the oldest micro-batch; False when none is to be done now."""
        if self._num_built >= self.most_early or not self._waiting:
            return False
        slot = next((one for one in reversed(self._waiting[0]) if not one.is_built), None)
        if slot is None:
            return False
        slot.build()
        self.num_early += 1
        return True

    def count_built(self, change: int) -> None:
        """A slot was built, or used up."""
        self._num_built += change

    def drop(self, slot: "_Slot") -> None:
        """Its backward has run."""
        for micro_batch in self._waiting:
            if slot in micro_batch:
                micro_batch.remove(slot)
                break
        while self._waiting and not self._waiting[0]:
            self._waiting.popleft()

    def forget(self) -> None:
        """Whatever a step that ended early has left."""
        self._waiting.clear()
        self._num_built = 0


class _Slot:
    """One block of one micro-batch, between its forward and its backward."""

    def __init__(self, owner: Rebuilds, block: Run, enter: Callable[[], None]) -> None:
        self._owner = owner
        self._block = block
        self._enter = enter
        self._computing = _autocast_now()
        self.hidden: Tensor | None = None
        self.wants_gradient = False
        self._built: tuple[Tensor, GradientEdge] | None = None

    @property
    def is_built(self) -> bool:
        """Whether its graph stands."""
        return self._built is not None

    def first(self, hidden: Tensor) -> Tensor:
        """The forward that keeps nothing."""
        self.hidden = hidden.detach()
        with torch.no_grad():
            return self._block(hidden)

    def build(self) -> None:
        """The forward that keeps what backward needs."""
        assert self.hidden is not None
        self._enter()
        given = self.hidden.detach().requires_grad_(self.wants_gradient)
        with torch.enable_grad(), self._computing():
            # The edge alone: the output itself is of no use here.
            self._built = (given, get_gradient_edge(self._block(given)))
        self.hidden = None
        self._owner.count_built(1)

    def finish(self, grad: Tensor) -> Tensor | None:
        """Backward through the block; the gradient of its input."""
        if self._built is None:
            self.build()
        assert self._built is not None
        (given, edge), self._built = self._built, None
        self._owner.count_built(-1)
        self._owner.drop(self)
        torch.autograd.backward(edge, grad)
        return given.grad


class _Later(torch.autograd.Function):
    """A block whose graph is made when it is needed."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, _wants: Tensor, slot: _Slot) -> Tensor:
        ctx.slot = slot
        slot.wants_gradient = hidden.requires_grad
        return slot.first(hidden)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        slot: _Slot = ctx.slot
        del ctx.slot
        return slot.finish(grads[0]), None, None


def _autocast_now() -> Callable[[], AbstractContextManager[Any]]:
    """Makes the autocast that is on now, for later."""
    told = [
        (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        for kind in ("cpu", "cuda")
    ]
    on = next((one for one in told if one[1]), told[0])
    kind, enabled, dtype = on
    return lambda: torch.autocast(kind, dtype, enabled=enabled)
