"""What carries a link's frames: the port that ZeroMQ and the in-memory twin both fill.

A wire takes whole messages to one neighbour and may lose them when its connection breaks. Knows
nothing of numbers, nor of other wires to the same neighbour.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import zmq

from transport.frames import Buffer

Pollable = zmq.Socket[Any] | int


@dataclass(frozen=True, slots=True)
class Change:
    """The neighbour's connection came up or went down."""

    is_up: bool


class Wire(Protocol):
    """Carries whole frames to one neighbour; loses them only when its connection breaks."""

    needs_crc: bool
    """Whether nothing below protects the bytes."""

    @property
    def pollables(self) -> list[Pollable]:
        """What becomes readable when `events` has something."""

    @property
    def trouble(self) -> str:
        """Why no connection stands, as far as known; "" otherwise."""

    def send(self, frame: bytearray) -> bool:
        """Hand over a frame that nobody changes from now on; False when nobody is connected."""

    def events(self) -> Iterable[Change | Buffer]:
        """All that happened since the last call, in order. Never waits."""

    def close(self, linger_s: float) -> None:
        """Close, giving what was handed over up to linger_s to leave. Idempotent."""


class Upkeep(Protocol):
    """Whoever gives a link its wires and takes them away; called with the link's thread."""

    @property
    def pollables(self) -> list[Pollable]:
        """What becomes readable when `tick` has something to do."""

    def tick(self) -> None:
        """Look after the wires. Never waits.

        Raises:
            SwarmError: the link cannot go on.
        """

    def close(self) -> None:
        """Let go of everything but the link's wires."""


@dataclass(eq=False, slots=True)
class Path:
    """One wire of a link. The best one that is up carries what is sent; all are read."""

    wire: Wire
    rank: int
    """Lower is better."""
    is_up: bool = False
    is_heard: bool = False
    """A frame has come on its present connection."""
    owes_hello: bool = False
