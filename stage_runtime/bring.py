"""Brings a large file to the leader in pieces, and goes on where it was when something broke.

The leader counts what it has; a piece that does not begin there is refused with that count.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx2

from stage_runtime.leader_files import LeaderAccess
from transport.errors import SwarmError

log = logging.getLogger(__name__)

PIECE_BYTES = 8 << 20
RETRY_FOR_S = 300.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0


@dataclass(frozen=True)
class Whole:
    """A file to bring, and what it is known by."""

    path: Path
    sha256: str
    size_bytes: int


def bring(
    leader: LeaderAccess, url: str, file: Whole, check: Callable[[], None], piece: int = PIECE_BYTES
) -> None:
    """PUT a file piece by piece.

    check: raises when it must stop; asked between pieces and tries.

    Raises:
        SwarmError: what the leader refused with; unreachable after 5 minutes without progress.
    """
    have, pause = 0, FIRST_PAUSE_S
    deadline = time.monotonic() + RETRY_FOR_S
    with leader.client() as client, file.path.open("rb") as opened:
        while have < file.size_bytes:
            check()
            opened.seek(have)
            data = opened.read(min(piece, file.size_bytes - have))
            refusal = _put(client, url, file, (have, data))
            if refusal is None:
                have += len(data)
            elif "have_bytes" in refusal.facts:
                have = int(refusal.facts["have_bytes"])
            else:
                if time.monotonic() + pause > deadline:
                    raise refusal
                log.warning("%s did not reach the leader: %s", file.path.name, refusal.message)
                _rest(pause, check)
                pause = min(2 * pause, LONGEST_PAUSE_S)
                continue
            pause, deadline = FIRST_PAUSE_S, time.monotonic() + RETRY_FOR_S


def _put(
    client: httpx2.Client, url: str, file: Whole, piece: tuple[int, bytes]
) -> SwarmError | None:
    """None when the leader has it; an error worth another try; raises one that is not."""
    start, data = piece
    headers = {
        "X-Content-SHA256": file.sha256,
        "Content-Type": "application/octet-stream",
        "Content-Range": f"bytes {start}-{start + len(data) - 1}/{file.size_bytes}",
    }
    try:
        answer = client.put(url, content=data, headers=headers)
    except httpx2.TransportError as error:
        return SwarmError(
            "unreachable",
            f"the leader does not take {file.path.name}: {type(error).__name__}",
            hint="check that the leader runs and can be reached from this fellow",
        )
    if answer.is_success:
        return None
    refusal = LeaderAccess.refusal(answer)
    if answer.status_code >= 500 or answer.status_code in (408, 429):
        return refusal
    if "have_bytes" in refusal.facts:
        return refusal
    raise refusal


def _rest(seconds: float, check: Callable[[], None]) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        check()
        time.sleep(0.05)
