"""What the leader wants done beside its stages, one at a time: begun, given up, and done once.

Does not know what is done. Whoever is cancelled ends its child by itself.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Order = TypeVar("Order")


class Errand(Generic[Order]):
    """The one order of its kind that this machine carries out."""

    def __init__(
        self,
        kind: str,
        id_of: Callable[[Order], str],
        carry_out: Callable[[Order], Awaitable[None]],
    ) -> None:
        self._kind = kind
        self._id_of = id_of
        self._carry_out = carry_out
        self._order: Order | None = None
        self._task: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        """Cancelled, and not over yet: each still sees its child end."""
        self._over: set[str] = set()
        """Ids that ended here: a leader that has not heard of it yet still names them."""

    def want(self, order: Order | None) -> None:
        """Take the leader's word: this order, or none."""
        if order == self._order:
            return
        self._cancel()
        self._order = None
        if order is not None and self._id_of(order) not in self._over:
            self._order = order
            name = f"{self._kind} {self._id_of(order)}"
            self._task = asyncio.create_task(self._run(order), name=name)

    async def close(self) -> None:
        """Stop; the leader gives the order again."""
        self._cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _cancel(self) -> None:
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _run(self, order: Order) -> None:
        await self._carry_out(order)
        self._over.add(self._id_of(order))
