"""Who measures which link with whom, and when both ends of a test may meet.

A fellow that is measured dials every other fellow of its pool that is idle, one after the other.
Both ends start a process that makes its keys and tells them in heartbeats; once both have told,
each is told its neighbour. Works on the orders of members; asks and stores nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from transport.cards import Heartbeat, ProbeEnd
from transport.ids import FellowId
from transport.orders import LinkTest, MeasureOrder, Neighbour

MOST_PEERS: Final = 7
FEATURE: Final = "measure-links"


@dataclass(frozen=True)
class Prober:
    """One fellow's side of the tests: its id, its order, its last heartbeat."""

    fellow_id: FellowId
    order: MeasureOrder | None
    beat: Heartbeat | None


def order_of(token: str, peers: Sequence[FellowId], *, links: bool) -> MeasureOrder:
    """What the measured fellow is told: its cards and, if it can, links to leader and peers."""
    tests = [
        LinkTest(name=name_of(token, peer), peer=peer, dials=True, neighbour=None)
        for peer in peers[:MOST_PEERS]
    ]
    return MeasureOrder(token=token, leader=links, links=tests)


def order_of_peer(token: str, fellow_id: FellowId, peer: FellowId) -> MeasureOrder:
    """What a peer is told: to answer."""
    name = name_of(token, peer)
    test = LinkTest(name=name, peer=fellow_id, dials=False, neighbour=None)
    return MeasureOrder(token=name, cards=False, links=[test])


def name_of(token: str, peer: FellowId) -> str:
    """The name of the test with a peer."""
    return f"{token}-{peer}"


def introduced(one: Prober, other: Prober) -> tuple[MeasureOrder, MeasureOrder] | None:
    """Both orders with the ends of their common test told to each other; None when that is not due:
    an end is not known yet, or was told before.
    """
    if one.order is None or other.order is None:
        return None
    for test in one.order.links:
        ends = _end(one, test.name), _end(other, test.name)
        known = next((t for t in other.order.links if t.name == test.name), None)
        if test.peer != other.fellow_id or known is None or test.neighbour is not None:
            continue
        if ends[0] is None or ends[1] is None:
            continue
        return (
            _told(one.order, test.name, other.fellow_id, ends[1], dials=test.dials),
            _told(other.order, test.name, one.fellow_id, ends[0], dials=known.dials),
        )
    return None


def _end(one: Prober, name: str) -> ProbeEnd | None:
    probes = one.beat.probes if one.beat is not None else []
    return next((end for end in probes if end.name == name), None)


def _told(
    order: MeasureOrder, name: str, peer: FellowId, end: ProbeEnd, *, dials: bool
) -> MeasureOrder:
    neighbour = Neighbour(
        stage=1 if dials else 0,
        fellow_id=peer,
        public_key=end.public_key,
        endpoints=list(end.endpoints) if dials else [],
    )
    links = [
        test.model_copy(update={"neighbour": neighbour}) if test.name == name else test
        for test in order.links
    ]
    return order.model_copy(update={"links": links})
