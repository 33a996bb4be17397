"""Tells how this stage's neighbours are reached, and what has crossed each link.

A change of the way is also a line of the job's log. Does not decide anything.
"""

import logging

from stage_runtime.channel import Channel
from transport.link import Link
from transport.reach import Reached
from transport.reports import LinkPath

log = logging.getLogger("stage_runtime")


class PathTeller:
    """Hears of every change of a link's way and, now and then, of the same one again."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._told: dict[int, Reached] = {}

    def tell(self, link: Link, reached: Reached) -> None:
        """Report a link as it is now."""
        counts, neighbour = link.counts, link.name.neighbour
        self._channel.report(
            LinkPath,
            neighbour=neighbour,
            path=reached.kind,
            address=reached.address[:200],
            why=reached.why[:500],
            sent_bytes=counts.sent_bytes,
            received_bytes=counts.received_bytes,
            resent_frames=counts.resent_frames,
        )
        before = self._told.get(neighbour)
        self._told[neighbour] = reached
        has_moved = before is not None and before.kind != reached.kind
        level = logging.INFO if has_moved else logging.DEBUG
        log.log(level, "%s", _words(neighbour, reached))


def _words(neighbour: int, reached: Reached) -> str:
    why = f" ({reached.why})" if reached.why else ""
    if reached.kind == "none":
        return f"stage {neighbour} is not reached now{why}"
    if reached.kind == "relay":
        return f"stage {neighbour} is reached through the relay{why}"
    return f"stage {neighbour} is reached directly, {reached.kind} {reached.address}{why}"
