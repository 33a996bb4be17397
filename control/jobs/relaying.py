"""Which relay the stages of a job may meet at, and the tickets for it.

Pure: the same attempt gets the same tickets, also from a leader that was restarted.
"""

from dataclasses import dataclass, field

from control.settings import Settings
from transport.errors import SwarmError
from transport.orders import RelayRoute
from transport.relay import TICKET_S, Side, read_key, ticket_for, write_ticket

OWN, NONE = "own", "none"


@dataclass(frozen=True)
class Meeting:
    """One boundary of one attempt."""

    pool: str
    job_id: str
    attempt: int
    boundary: int
    started_at: float


@dataclass(frozen=True)
class RelayTerms:
    """A relay and the key that it shares with this leader."""

    host: str
    """"" = where the leader is reached."""
    port: int
    key: bytes = field(repr=False)

    def routes(self, meeting: Meeting) -> tuple[RelayRoute, RelayRoute]:
        """What the stage before a boundary and the one after it are told."""
        link = f"{meeting.job_id}/{meeting.attempt}/{meeting.boundary}"
        expires_at = meeting.started_at + TICKET_S
        dials, answers = (
            RelayRoute(
                host=self.host,
                port=self.port,
                ticket=write_ticket(self.key, ticket_for(meeting.pool, link, side, expires_at)),
            )
            for side in Side
        )
        return dials, answers


def relay_terms(settings: Settings, own_key: bytes) -> RelayTerms | None:
    """The relay of these settings; None when there is none.

    Args:
        own_key: for the relay that this leader starts itself.

    Raises:
        SwarmError: invalid-input for an address that is none, or a key that is missing.
    """
    if settings.relay == NONE or (settings.relay == OWN and settings.relay_port is None):
        return None
    if settings.relay == OWN:
        assert settings.relay_port is not None
        return RelayTerms("", settings.relay_port, own_key)
    host, _, port = settings.relay.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise SwarmError(
            "invalid-input",
            f"{settings.relay[:200]!r} is no relay's address",
            hint="write it like relay.example.org:7421, or own, or none",
        )
    if settings.relay_key_file is None:
        raise SwarmError(
            "invalid-input",
            f"the key that this leader shares with the relay at {settings.relay[:200]} is missing",
            hint="copy the file that `swarm relay --key-file FILE` made, and name it with "
            "--relay-key-file",
        )
    return RelayTerms(host.strip("[]"), int(port), read_key(settings.relay_key_file))
