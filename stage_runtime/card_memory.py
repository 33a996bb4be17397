"""What a stage's tensors hold on each of its cards, counted, and the limit of a CPU card.

On a CPU card every tensor storage is followed from birth to death, exactly, while `counting` is
on: at load, the first evaluation and the first steps. Shapes are fixed, so the peak lies there;
later steps only compare the process's resident memory with what it was. On other cards the
device's own allocator is asked.
"""

import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from transport.errors import SwarmError
from transport.orders import CardShare
from transport.units import human_bytes

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATM = Path("/proc/self/statm")


@dataclass(frozen=True)
class CardPeak:
    """The most that a card held."""

    card_index: int
    peak_bytes: int
    planned_bytes: int
    how: Literal["counted", "allocator"]


def device_of(card: CardShare) -> torch.device:
    """The device that a card's UUID names: drivers and torch number cards differently.

    Raises:
        SwarmError: unavailable; no device of this machine has that UUID.
    """
    for index in range(torch.cuda.device_count()):
        if _bare(str(torch.cuda.get_device_properties(index).uuid)) == _bare(card.uuid):
            return torch.device("cuda", index)
    if card.uuid.lower().startswith("cpu"):
        return torch.device("cpu")
    raise SwarmError(
        "unavailable",
        f"card {card.index} ({card.uuid}) is not on this machine any more",
        hint="plan again: the fellow's cards have changed",
    )


def _bare(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-")


@dataclass(frozen=True)
class _Counted:
    reference: "weakref.ref[Any]"
    size: int
    card: int


class CardMeter:
    """Counts the live bytes of each card of a stage; `card` below is its place in the order."""

    def __init__(self, cards: Sequence[CardShare], devices: Sequence[torch.device]) -> None:
        self.cards = list(cards)
        self.devices = list(devices)
        self.counts = all(device.type == "cpu" for device in devices)
        self.live_bytes = [0] * len(self.cards)
        self.peak_bytes = [0] * len(self.cards)
        self._current = 0
        self._known: dict[int, _Counted] = {}
        self._resident_limit: int | None = None

    def enter_card(self, card: int) -> None:
        """Storages born from now on are this card's."""
        self._current = card

    def move(self, tensors: Iterable[Tensor], card: int) -> None:
        """Count these (weights) on this card, whichever card counted them before."""
        for tensor in tensors:
            self._drop(tensor)
            self._count(tensor, card)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Follow every storage that is born inside. Costs microseconds for each torch operation."""
        if not self.counts:
            yield
            return
        with _Follow(self):
            yield
        self._resident_limit = None

    def see(self, tensor: Tensor) -> None:
        """Count a tensor's storage on the current card, unless it is counted."""
        self._count(tensor, self._current)

    def _count(self, tensor: Tensor, card: int) -> None:
        if tensor.device.type == "meta":
            return
        storage = tensor.untyped_storage()
        # A storage's Python object lives as long as the storage, so its death is the storage's.
        key = id(storage)
        known = self._known.get(key)
        if known is not None and known.reference() is storage:
            return
        size = storage.nbytes()
        reference = weakref.ref(storage, lambda _: self._forget(key))
        self._known[key] = _Counted(reference, size, card)
        self.live_bytes[card] += size
        if self.live_bytes[card] > self.peak_bytes[card]:
            self.peak_bytes[card] = self.live_bytes[card]
            self._refuse_beyond_budget(card, size)

    def _drop(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        known = self._known.get(id(storage))
        if known is not None and known.reference() is storage:
            self._forget(id(storage))

    def _forget(self, key: int) -> None:
        counted = self._known.pop(key, None)
        if counted is not None:
            self.live_bytes[counted.card] -= counted.size

    def _refuse_beyond_budget(self, card: int, asked: int) -> None:
        share, live = self.cards[card], self.live_bytes[card]
        if live > share.budget_bytes:
            raise torch.OutOfMemoryError(
                f"card {share.index} has a budget of {human_bytes(share.budget_bytes)}; "
                f"{human_bytes(live - asked)} are held and {human_bytes(asked)} more are needed "
                f"({live - share.budget_bytes} bytes too much)"
            )

    def check_resident(self) -> None:
        """Once a step when nothing is counted: refuse growth that the budget has no room for."""
        if not self.counts or (resident := resident_bytes()) is None:
            return
        if self._resident_limit is None:
            room = sum(card.budget_bytes for card in self.cards) - sum(self.live_bytes)
            self._resident_limit = resident + max(0, room)
        elif resident > self._resident_limit:
            raise torch.OutOfMemoryError(
                f"the stage has grown to {human_bytes(resident)} of resident memory, "
                f"{human_bytes(resident - self._resident_limit)} beyond what its budget allows"
            )

    def held_bytes(self) -> int:
        """Tensor bytes held now, on all cards."""
        if self.counts:
            return sum(self.live_bytes)
        return sum(torch.cuda.memory_allocated(device) for device in set(self.devices))

    def peaks(self) -> list[CardPeak]:
        """The most that each card held until now."""
        how: Literal["counted", "allocator"] = "counted" if self.counts else "allocator"
        return [
            CardPeak(
                share.index,
                self.peak_bytes[card]
                if self.counts
                else torch.cuda.max_memory_allocated(self.devices[card]),
                share.planned_bytes,
                how,
            )
            for card, share in enumerate(self.cards)
        ]


class _Follow(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, meter: CardMeter) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._meter = meter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self._meter.see(result)
        else:
            for leaf in tree_leaves(result):
                if isinstance(leaf, Tensor):
                    self._meter.see(leaf)
        return result


def resident_bytes() -> int | None:
    """The process's resident memory; None where the system does not tell it."""
    try:
        return int(_STATM.read_text().split()[1]) * PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None


def cannot_fit(error: torch.OutOfMemoryError) -> SwarmError:
    """The answer to a card that is too small after all."""
    return SwarmError(
        "cannot-fit",
        f"a card ran out of memory: {str(error).splitlines()[0][:500]}",
        hint="lower seq_len or batch_size, raise micro_batches or turn recompute on; plan again",
    )
