"""The in-memory twin of a direct wire: same port, same tests, no network.

Two ends share a line. A broken line loses what is under way, like a closed TCP connection, and
tells both ends; a mended one tells them too. Thread-safe; each end belongs to one thread.
"""

import os
import threading
from collections import deque
from collections.abc import Iterable

from transport.frames import Buffer
from transport.wire import Change, Pollable


class LoopbackWire:
    """One end of a line. `needs_crc` is True, so the checksum's path is tested here."""

    needs_crc = True

    def __init__(self, line: "Line") -> None:
        self._line = line
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._arrived: deque[Change | Buffer] = deque()
        self._is_closed = False

    @property
    def pollables(self) -> list[Pollable]:
        """An event descriptor that is readable while something waits."""
        return [self._wake_fd]

    @property
    def trouble(self) -> str:
        """Why no connection stands."""
        return "" if self._line.is_whole else "the line is cut"

    def send(self, frame: bytearray) -> bool:
        """Put a frame on the line; False when it is cut."""
        return self._line.carry(self, frame)

    def events(self) -> Iterable[Change | Buffer]:
        """What arrived since the last call."""
        with self._line.lock:
            if self._is_closed:
                return []
            arrived = list(self._arrived)
            self._arrived.clear()
            try:
                os.eventfd_read(self._wake_fd)
            except BlockingIOError:
                pass
        return arrived

    def close(self, linger_s: float) -> None:
        """Leave the line; the other end sees it cut after what was sent."""
        with self._line.lock:
            if self._is_closed:
                return
            self._is_closed = True
            os.close(self._wake_fd)
        self._line.cut(loses=False)

    def push(self, event: Change | Buffer) -> None:
        """Let this end see an event. The line's lock is held."""
        if not self._is_closed:
            self._arrived.append(event)
            os.eventfd_write(self._wake_fd, 1)

    def lose(self) -> None:
        """Forget frames that are under way. The line's lock is held."""
        kept = [event for event in self._arrived if isinstance(event, Change)]
        self._arrived.clear()
        self._arrived.extend(kept)


class Line:
    """Joins two wires, cut or whole. Starts whole: both ends see a connection come up."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_whole = False
        self.ends = (LoopbackWire(self), LoopbackWire(self))
        self.mend()

    def mend(self) -> None:
        """Make the line whole: a new connection."""
        with self.lock:
            self.is_whole = True
            for end in self.ends:
                end.push(Change(is_up=True))

    def cut(self, *, loses: bool = True) -> None:
        """Break the line, losing what is under way (or not, as after an orderly close)."""
        with self.lock:
            if not self.is_whole:
                return
            self.is_whole = False
            for end in self.ends:
                if loses:
                    end.lose()
                end.push(Change(is_up=False))

    def carry(self, sender: LoopbackWire, frame: bytearray) -> bool:
        """Take a frame from one end to the other."""
        with self.lock:
            if not self.is_whole:
                return False
            receiver = self.ends[1] if sender is self.ends[0] else self.ends[0]
            receiver.push(frame)
            return True
