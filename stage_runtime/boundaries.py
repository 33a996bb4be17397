"""Puts a job's compression on the boundaries of one stage.

Gets the order and the group; gives each neighbour's link its codecs.
"""

from typing import Literal, cast

from stage_runtime.codecs.crossing import Crossing
from stage_runtime.codecs.scaled import ScaledCodec
from stage_runtime.stage_group import CodingGroup, StageGroup
from transport.orders import StageOrder
from transport.reports import Crossed


def neighbours_of(order: StageOrder) -> list[int]:
    """The stages next to this one."""
    return [s for s in (order.stage - 1, order.stage + 1) if 0 <= s < order.num_stages]


def open_boundaries(order: StageOrder, hidden: int, group: StageGroup) -> None:
    """From here on tensors cross as the settings say. On every stage at the same place."""
    asked = order.settings.compression
    if asked.kind == "none" or order.num_stages == 1:
        return
    coding = cast(CodingGroup, group)
    codec = ScaledCodec(hidden, cast(Literal[4, 8], asked.bits))
    for neighbour in neighbours_of(order):
        coding.cross(neighbour, Crossing(codec, codec))


def crossed(order: StageOrder, group: StageGroup) -> list[Crossed]:
    """What each boundary of this stage carried so far; nothing where torch's own groups did."""
    if order.settings.backend != "swarm":
        return []
    coding = cast(CodingGroup, group)
    told = {one: coding.crossed(one) for one in neighbours_of(order)}
    return [
        Crossed(neighbour=one, sent_bytes=sent, received_bytes=received)
        for one, (sent, received) in told.items()
    ]
