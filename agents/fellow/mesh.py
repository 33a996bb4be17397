"""What Tailscale and WireGuard tell of this machine's mesh: membership, and how old handshakes are.

Asks their own commands, bounded in time; where one is missing or not allowed, nothing is known.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

LIMIT_S: Final = 3.0


@dataclass(frozen=True)
class Mesh:
    """One mesh that this machine is in."""

    name: str
    is_up: bool
    peers: int
    """Others that are known."""
    handshake_age_s: float | None
    """Since the newest handshake with any of them; None when there was none."""


def meshes(now: float) -> Iterator[Mesh]:
    """Every mesh that tells of itself.

    Args:
        now: unix seconds.
    """
    told = _output("tailscale", "status", "--json")
    if told:
        found = tailscale(told, now)
        if found is not None:
            yield found
    told = _output("wg", "show", "all", "dump")
    if told:
        yield from wireguard(told, now)


def tailscale(told: str, now: float) -> Mesh | None:
    """From `tailscale status --json`; None for what is none."""
    try:
        status: dict[str, Any] = json.loads(told)
        peers = list((status.get("Peer") or {}).values())
        ages = [age for peer in peers if (age := _age(str(peer.get("LastHandshake")), now))]
        is_up = status.get("BackendState") == "Running"
    except (ValueError, AttributeError, TypeError):
        return None
    return Mesh("Tailscale", is_up, len(peers), min(ages, default=None))


def _age(text: str, now: float) -> float | None:
    """Of an RFC 3339 time; None for the year 1, which means never."""
    try:
        at = datetime.fromisoformat(text[:19] + "+00:00")
    except ValueError:
        return None
    return max(0.0, now - at.timestamp()) if at.year > 1970 else None


def wireguard(told: str, now: float) -> Iterator[Mesh]:
    """From `wg show all dump`: a line for each interface, and one for each of its peers."""
    ages: dict[str, list[float | None]] = {}
    for line in told.splitlines():
        fields = line.split("\t")
        if len(fields) == 5:
            ages.setdefault(fields[0], [])
        elif len(fields) == 9 and fields[5].isdecimal():
            at = int(fields[5])
            ages.setdefault(fields[0], []).append(max(0.0, now - at) if at else None)
    for name, each in ages.items():
        known = [age for age in each if age is not None]
        yield Mesh(f"WireGuard {name[:20]}", bool(known), len(each), min(known, default=None))


def _output(*words: str) -> str:
    if shutil.which(words[0]) is None:
        return ""
    try:
        done = subprocess.run(words, capture_output=True, timeout=LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""
