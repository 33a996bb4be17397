"""What a process that measures a link is told, and tells (transport.link_probe)."""

from transport.cards import PathKind
from transport.schema import Model


class Start(Model):
    """What an end is told first."""

    name: str
    """Of this test; the same at both ends."""
    dials: bool
    listen_address: str
    more_addresses: list[str] = []
    listen_port: int = 0
    announced: list[str] = []
    relay_host: str = ""


class Figures(Model):
    """What was measured from the end that dials. Null where the test did not get there."""

    path: PathKind = "none"
    latency_s: float | None = None
    """One way: half of the median round trip."""
    up_bytes_s: float | None = None
    down_bytes_s: float | None = None
    error: str = ""


class End(Model):
    """How the other end recognises and reaches this one."""

    public_key: str
    endpoints: list[str]
