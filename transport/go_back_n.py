"""Go-back-N: the numbers of a link's frames, what is kept to send again, what came in order.

Pure: no socket, no clock, no bytes of its own making. `transport.link` does the rest.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from transport.frames import Frame, FrameRefused

WINDOW_FRAMES: Final = 16


@dataclass(slots=True)
class GoBackN:
    """Numbers, keeps and orders the frames of one link; no I/O, no clock.

    Rules: take only the next number; after every new connection tell the other side which
    number is next; on being told, send all later ones again in order. The window counts frames
    that the other side has not used up, so a fast sender waits for a slow consumer.
    Source: go-back-N ARQ (e.g. Bertsekas & Gallager, Data Networks).
    """

    window: int = WINDOW_FRAMES
    kept: deque[bytearray] = field(default_factory=deque)
    """Frames [first_kept, next): sent or not, not known to have arrived."""
    first_kept: int = 0
    next: int = 0
    to_transmit: int = 0
    """First frame that is not on the wire of the present connection."""
    transmitted: int = 0
    """Frames below it have been on some wire."""
    released: int = 0
    """Frames below it are used up by the other side."""
    expected: int = 0
    """First frame of the other side that has not arrived."""
    inbox: deque[Frame] = field(default_factory=deque)

    @property
    def used(self) -> int:
        """How many frames of the other side the owner has taken."""
        return self.expected - len(self.inbox)

    def keep(self, frame: bytearray) -> int:
        """Queue an encoded frame numbered `next`; returns its number."""
        self.kept.append(frame)
        self.next += 1
        return self.next - 1

    def is_clear(self, sequence: int) -> bool:
        """Whether frame `sequence` is inside the window (or past it)."""
        return sequence < self.released + self.window

    def due(self) -> bytearray | None:
        """The frame to transmit now, if there is one inside the window."""
        if self.to_transmit < self.next and self.is_clear(self.to_transmit):
            return self.kept[self.to_transmit - self.first_kept]
        return None

    def mark_transmitted(self) -> bool:
        """Frame `to_transmit` is on the wire; True when it was there before."""
        self.to_transmit += 1
        is_again = self.to_transmit <= self.transmitted
        self.transmitted = max(self.transmitted, self.to_transmit)
        return is_again

    def rewind(self, arrived: int | None = None) -> None:
        """A connection came or went: send everything again that may be lost."""
        if arrived is not None:
            self._forget(arrived)
        self.to_transmit = self.first_kept

    def acknowledge(self, used: int) -> None:
        """The other side has used up all frames below `used`."""
        self._forget(used)
        self.released = max(self.released, used)

    def accept(self, frame: Frame) -> bool:
        """Take a numbered frame if it is the next one.

        Raises:
            FrameRefused: more frames than the window lets an honest sender send.
        """
        if frame.header.sequence != self.expected:
            return False
        self.check_room()
        self.inbox.append(frame)
        self.expected += 1
        return True

    def check_room(self) -> None:
        """Whether the other side may send the next frame, or a piece of it.

        Raises:
            FrameRefused: more frames than the window lets an honest sender send.
        """
        if len(self.inbox) >= self.window:
            raise FrameRefused(f"more than {self.window} frames came unasked")

    def _forget(self, arrived: int) -> None:
        if arrived > self.transmitted:
            raise FrameRefused(f"it confirms frame {arrived - 1}, {self.transmitted} were sent")
        while self.first_kept < arrived:
            self.kept.popleft()
            self.first_kept += 1
        self.to_transmit = max(self.to_transmit, self.first_kept)
