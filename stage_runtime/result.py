"""A stage's result: its trained tensors as one safetensors file, brought to the leader."""

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx2
from safetensors.torch import save_file
from torch import Tensor

from stage_runtime.leader_files import LeaderAccess
from transport.errors import SwarmError
from transport.orders import StageOrder

log = logging.getLogger(__name__)
CHUNK_BYTES = 1 << 20
RETRY_FOR_S = 300.0
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 15.0


@dataclass(frozen=True)
class SavedFile:
    """A file on disk and what it is known by."""

    path: Path
    digest: str
    size_bytes: int


def save_trained(folder: Path, order: StageOrder, trained: Mapping[str, Tensor]) -> SavedFile:
    """Write what the stage trained, by global names, with the job in the file's metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"stage-{order.stage}.safetensors"
    metadata = {
        "format": "pt",
        "kind": "adapter" if order.settings.method == "lora" else "weights",
        "job_id": order.job_id,
        "attempt": str(order.attempt),
        "stage": str(order.stage),
        "num_stages": str(order.num_stages),
        "first_layer": str(order.first_layer),
        "last_layer": str(order.last_layer),
        "step": str(order.settings.steps),
    }
    tensors = {
        name: weight.detach().to("cpu").contiguous() for name, weight in sorted(trained.items())
    }
    save_file(tensors, str(path), metadata=metadata)
    digest = hashlib.sha256()
    for chunk in _chunks(path):
        digest.update(chunk)
    return SavedFile(path, digest.hexdigest(), path.stat().st_size)


def upload(
    leader: LeaderAccess, order: StageOrder, saved: SavedFile, check: Callable[[], None]
) -> None:
    """PUT the file to the leader; a lost answer or a leader that is away is tried again.

    check: raises when the stage must stop; asked between tries.

    Raises:
        SwarmError: what the leader refused with, or unreachable after 5 minutes of trying.
    """
    url = f"/fellow/v1/jobs/{order.job_id}/attempts/{order.attempt}/stages/{order.stage}/adapter"
    deadline, pause = time.monotonic() + RETRY_FOR_S, FIRST_PAUSE_S
    with leader.client() as client:
        while True:
            refusal = _try_once(client, url, saved)
            if refusal is None:
                return
            if time.monotonic() + pause > deadline:
                raise refusal
            log.warning("the result did not reach the leader, trying again: %s", refusal.message)
            wait_until = time.monotonic() + pause
            while time.monotonic() < wait_until:
                check()
                time.sleep(0.05)
            pause = min(2 * pause, LONGEST_PAUSE_S)


def _try_once(client: httpx2.Client, url: str, saved: SavedFile) -> SwarmError | None:
    """None when the leader has it; an error worth another try; raises one that is not."""
    headers = {
        "X-Content-SHA256": saved.digest,
        "Content-Type": "application/octet-stream",
        "Content-Length": str(saved.size_bytes),
    }
    try:
        answer = client.put(url, content=_chunks(saved.path), headers=headers)
    except httpx2.TransportError as error:
        return SwarmError(
            "unreachable",
            f"the leader does not take the result: {type(error).__name__}",
            hint="check that the leader runs and can be reached from this fellow",
        )
    if answer.is_success:
        return None
    refusal = LeaderAccess.refusal(answer)
    if answer.status_code >= 500 or answer.status_code in (408, 429):
        return refusal
    raise refusal


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as opened:
        while chunk := opened.read(CHUNK_BYTES):
            yield chunk
