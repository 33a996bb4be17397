"""Tells, every two seconds and from a thread of its own, whether this stage moves.

A ping says that a process lives; this says that it computes or receives, and if not, what it waits
for. The daemon puts it into its heartbeats.
"""

import threading

from stage_runtime.channel import Channel
from stage_runtime.process_group import SwarmGroup
from transport.reports import Progress

EVERY_S = 2.0


class Moving:
    """Reports a group's progress until it is stopped."""

    def __init__(self, channel: Channel, group: SwarmGroup) -> None:
        self._channel = channel
        self._group = group
        self._is_over = threading.Event()
        threading.Thread(target=self._tell, name="moving", daemon=True).start()

    def stop(self) -> None:
        """Tell nothing more."""
        self._is_over.set()

    def _tell(self) -> None:
        while not self._is_over.wait(EVERY_S):
            group = self._group
            self._channel.report(Progress, moved=group.moved, waits_for=group.waits_for()[:300])
