"""Links, traffic and measured speeds, in one line each for people."""

from collections.abc import Iterator
from datetime import datetime

from agents.log_lines import clean
from transport.api.fellows import MeasuredLink, ShownCard, Traffic
from transport.api.jobs import ShownBoundary
from transport.cards import PathKind
from transport.units import count_of, human_bytes

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
    again = f", {count_of(one.resent_frames, 'frame')} sent again" if one.resent_frames else ""
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


def measured_text(link: MeasuredLink) -> str:
    """One direction of a measured link, with its date."""
    day = _day(link.measured_at)
    speed = f"{_mbit(link.bytes_s)} Mbit/s, {link.latency_s * 1000:.3g} ms one way"
    way = "" if "leader" in (link.taker, link.sender) else f", {_WAYS[link.path]}"
    return f"{link.sender} to {link.taker}: {speed}{way} (measured {day})"


def _mbit(bytes_s: float) -> str:
    mbit = bytes_s * 8 / 1e6
    return f"{mbit:,.0f}" if mbit >= 100 else f"{mbit:.3g}"


def speed_lines(card: ShownCard) -> Iterator[str]:
    """What was measured of a card beside the work of a stage, a line for each number format."""
    for speed in card.speeds:
        parts = {
            "cold": speed.cold_tflops,
            "product": speed.matmul_tflops,
            "attention": speed.attention_tflops,
        }
        told = [f"{name} {value:.3g} TFLOPS" for name, value in parts.items() if value is not None]
        if speed.memory_bytes_s is not None:
            told.append(f"memory {human_bytes(round(speed.memory_bytes_s))}/s")
        if told:
            words = ", ".join(told)
            yield f"card {card.index} {speed.number_format}: {words} ({_day(speed.measured_at)})"


def load_lines(card: ShownCard) -> Iterator[str]:
    """How a card was used lately: the mean, and least to most."""
    if card.load is None:
        return
    told = []
    memory, busy = card.load.memory_bytes, card.load.busy
    if memory is not None:
        least, mean, most = (
            human_bytes(round(n)) for n in (memory.least, memory.mean, memory.most)
        )
        told.append(f"memory {mean} ({least} to {most})")
    if busy is not None:
        told.append(f"busy {busy.mean:.0%} ({busy.least:.0%} to {busy.most:.0%})")
    if told:
        yield f"card {card.index}: {', '.join(told)}, of {card.load.samples} samples"


def _day(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M")
