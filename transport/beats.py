"""The short form of a heartbeat: the figures that always move, beside what was told in full before.

An idle fellow says of itself every 5 s what it has said before. What did not change since a
heartbeat that its leader has taken is left out; a leader that does not know it asks for all.
"""

from typing import Annotated

from pydantic import Field

from transport.cards import Bytes, CardLoad, Heartbeat, StageStatus
from transport.ids import FellowId
from transport.schema import Told


class ShortBeat(Told):
    """Every 5 s, fellow -> leader, while only these figures differ from the last full heartbeat."""

    protocol: Annotated[int, Field(ge=1)]
    fellow_id: FellowId
    memory_free_bytes: Bytes
    disk_free_bytes: Bytes | None
    card_free_bytes: Annotated[list[Bytes | None], Field(max_length=64)]
    """Of every card, in the order of the full heartbeat."""
    stages: Annotated[list[StageStatus], Field(max_length=16)] = []
    measuring: bool = False
    loads: Annotated[list[CardLoad], Field(max_length=64)] = []
    sent_bytes: Bytes = 0
    received_bytes: Bytes = 0
    pipeline_sent_bytes: Bytes = 0
    pipeline_received_bytes: Bytes = 0


_SHARED = (
    "protocol", "fellow_id", "stages", "measuring", "loads", "sent_bytes", "received_bytes",
    "pipeline_sent_bytes", "pipeline_received_bytes",
)  # fmt: skip


def shortened(beat: Heartbeat, told: Heartbeat | None) -> ShortBeat | None:
    """The short form of a heartbeat; None when it says more than figures.

    Args:
        told: the last one that the leader has taken.
    """
    if lengthened(_short(beat), told) != beat:
        return None
    return _short(beat)


def lengthened(short: ShortBeat, told: Heartbeat | None) -> Heartbeat | None:
    """The whole heartbeat that a short one stands for; None when that cannot be known.

    Args:
        told: the last whole one of the same fellow.
    """
    if told is None or len(short.card_free_bytes) != len(told.cards):
        return None
    return _lengthened(short, told)


def _short(beat: Heartbeat) -> ShortBeat:
    return ShortBeat(
        memory_free_bytes=beat.machine.memory_free_bytes,
        disk_free_bytes=beat.machine.disk_free_bytes,
        card_free_bytes=[card.free_bytes for card in beat.cards],
        **{name: getattr(beat, name) for name in _SHARED},
    )


def _lengthened(short: ShortBeat, told: Heartbeat) -> Heartbeat:
    free = {
        "memory_free_bytes": short.memory_free_bytes,
        "disk_free_bytes": short.disk_free_bytes,
    }
    changes = {name: getattr(short, name) for name in _SHARED}
    changes["machine"] = told.machine.model_copy(update=free)
    changes["cards"] = [
        card.model_copy(update={"free_bytes": bytes_})
        for card, bytes_ in zip(told.cards, short.card_free_bytes, strict=False)
    ]
    return told.model_copy(update=changes)
