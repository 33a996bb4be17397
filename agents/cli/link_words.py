"""How two stages reach each other, in one line for people."""

from agents.log_lines import clean
from transport.api.jobs import ShownBoundary
from transport.cards import PathKind
from transport.units import human_bytes

_WAYS: dict[PathKind, str] = {
    "local": "on one machine",
    "lan": "directly, in one network",
    "mesh": "directly, by a mesh",
    "public": "directly, over the internet",
    "direct": "directly",
    "relay": "through the relay",
    "none": "not at this moment",
}


def boundary_text(one: ShownBoundary) -> str:
    """Of one boundary: the way, what crossed it, and why no better way is used."""
    way = _WAYS[one.path] if one.path else "unknown"
    crossed = f"{human_bytes(one.forward_bytes)} on, {human_bytes(one.backward_bytes)} back"
    again = f", {one.resent_frames} frames sent again" if one.resent_frames else ""
    why = f"; {clean(one.untrusted_why, 300)}" if one.untrusted_why else ""
    return f"stage {one.stage} to {one.stage + 1} {way}: {crossed}{again}{why}"
