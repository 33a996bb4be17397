"""Links and traffic, in one line each for people."""

from agents.log_lines import clean
from transport.api.fellows import Traffic
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


def traffic_text(traffic: Traffic | None) -> str:
    """What a fellow sends and receives a second, with its leader and in the pipeline apart."""
    if traffic is None:
        return "–"
    leader = traffic.leader_sent_bytes_s, traffic.leader_received_bytes_s
    pipeline = traffic.pipeline_sent_bytes_s, traffic.pipeline_received_bytes_s
    return "; ".join(
        f"{name} {human_bytes(round(out))}/s out, {human_bytes(round(into))}/s in"
        for name, (out, into) in (("leader", leader), ("pipeline", pipeline))
    )
