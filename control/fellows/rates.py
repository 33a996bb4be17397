"""How fast bytes move to and from a fellow: between two heartbeats, as it counts them itself."""

from dataclasses import dataclass

from transport.cards import Heartbeat


@dataclass(frozen=True)
class Rates:
    """Bytes a second over the last heartbeat interval, as the fellow counts them."""

    leader_sent_bytes_s: float
    leader_received_bytes_s: float
    pipeline_sent_bytes_s: float
    pipeline_received_bytes_s: float

    @property
    def sent_bytes_s(self) -> float:
        """To leader and neighbours together."""
        return self.leader_sent_bytes_s + self.pipeline_sent_bytes_s

    @property
    def received_bytes_s(self) -> float:
        """From leader and neighbours together."""
        return self.leader_received_bytes_s + self.pipeline_received_bytes_s


def rates_between(before: Heartbeat, now: Heartbeat, seconds: float) -> Rates | None:
    """None when a counter went back: the daemon was restarted in between."""
    grown = [
        now.sent_bytes - before.sent_bytes,
        now.received_bytes - before.received_bytes,
        now.pipeline_sent_bytes - before.pipeline_sent_bytes,
        now.pipeline_received_bytes - before.pipeline_received_bytes,
    ]
    if seconds <= 0 or min(grown) < 0:
        return None
    return Rates(*(count / seconds for count in grown))
