"""A CPU with a memory budget as a card: "cpu:4GB:2" is 4 GB and 2 threads.

"cpu:12GB:1:RTX 3060" is shown as "RTX 3060 (virtual)", for rehearsals.

Knows the words of `--card`; does not know what a worker holds: that is the inventory's.
"""

import re
from dataclasses import dataclass

from transport.errors import SwarmError
from transport.units import GB, MB, human_bytes

_SIZE = re.compile(r"^([0-9]+(?:\.[0-9]+)?)(GB|MB)$", re.IGNORECASE)
_PLAYS = re.compile(r"[A-Za-z][A-Za-z0-9 .()-]{0,39}")
_MIN_BYTES = 64 * MB
_HINT = "write it like cpu:4GB:2 (4 GB, 2 threads), cuda, or cuda:0"


@dataclass(frozen=True)
class CpuCard:
    """A share of this machine's memory and processor, offered as a card."""

    budget_bytes: int
    threads: int
    plays: str = ""
    """The card that it stands for in a rehearsal."""

    def spec(self) -> str:
        """The words that make this card again."""
        more = f":{self.plays}" if self.plays else ""
        return f"cpu:{self.budget_bytes // MB}MB:{self.threads}{more}"


@dataclass(frozen=True)
class CudaCards:
    """The machine's graphics cards, all of them or one by the driver's number."""

    only: int | None = None

    def spec(self) -> str:
        """The words that offer these cards again."""
        return "cuda" if self.only is None else f"cuda:{self.only}"


Offer = CpuCard | CudaCards


def parse_card(text: str, *, cores: int, memory_bytes: int) -> Offer:
    """Read one `--card`.

    Args:
        text: "cpu", "cpu:SIZE", "cpu:SIZE:THREADS", "cpu:SIZE:THREADS:PLAYS", "cuda" or
            "cuda:NUMBER".
        cores: of this machine; the threads of a card that names none.
        memory_bytes: of this machine; a budget may not be larger.

    Raises:
        SwarmError: invalid-input with what would be right.
    """
    kind, *rest = text.strip().split(":")
    if kind.lower() == "cuda" and len(rest) <= 1:
        return CudaCards(_whole(rest[0], text, 63) if rest else None)
    if kind.lower() != "cpu" or len(rest) > 3 or not all(map(_PLAYS.fullmatch, rest[2:])):
        raise SwarmError("invalid-input", f"{text[:80]!r} is not a card", hint=_HINT)
    budget = _size(rest[0], text) if rest else default_budget(memory_bytes)
    threads = _whole(rest[1], text, 1024) if len(rest) > 1 else cores
    if threads < 1:
        raise SwarmError("invalid-input", f"{text!r} names no thread", hint=_HINT)
    if not _MIN_BYTES <= budget <= memory_bytes:
        raise SwarmError(
            "invalid-input",
            f"{text[:80]!r} asks for {human_bytes(budget)} of {human_bytes(memory_bytes)}",
            hint=f"give the card between {human_bytes(_MIN_BYTES)} and {human_bytes(memory_bytes)}",
        )
    return CpuCard(budget, threads, *rest[2:])


def default_budget(memory_bytes: int) -> int:
    """Half of the machine's memory in whole tenths of a GB: the rest is its owner's."""
    return max(_MIN_BYTES, memory_bytes // 2 // (GB // 10) * (GB // 10))


def _size(text: str, card: str) -> int:
    found = _SIZE.match(text)
    if found is None:
        raise SwarmError("invalid-input", f"{card[:80]!r} has no size such as 4GB", hint=_HINT)
    return round(float(found[1]) * (GB if found[2].upper() == "GB" else MB))


def _whole(text: str, card: str, most: int) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > most:
        raise SwarmError(
            "invalid-input",
            f"{card[:80]!r}: {text[:20]!r} is not a number up to {most}",
            hint=_HINT,
        )
    return int(text)
