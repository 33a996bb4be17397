"""Saves a stage's state while it trains: a copy on the step's thread, the rest in the background.

All stages save the same steps without asking each other: each says in the step's exchange whether
its last copy is still on its way, and a step that is due is saved when nobody's is. A save that
waits for a leader that is away gives way to a newer one. Does not know why steps are saved.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2
import torch
from torch import Tensor

from stage_runtime.leader_files import LeaderAccess, fetch_file, refuse_full_disk
from stage_runtime.saved_state import Copies, SavedAt, write_state
from transport.errors import SwarmError
from transport.orders import StageOrder
from transport.units import human_bytes

log = logging.getLogger(__name__)

PIECE_BYTES = 1 << 16
LEAST_BYTES_S = 256_000.0
"""However rarely steps are saved, an upload is not held back below this."""
SHARE_OF_INTERVAL = 0.5
"""An upload takes about this share of the time until the next save is due, and leaves the link to
the pipeline for the rest.
"""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0
CLOSE_S = 3.0


@dataclass(frozen=True)
class SavePlace:
    """Where a stage saves its state, and what it goes on from."""

    leader: LeaderAccess
    folder: Path
    resumed: tuple[Path, ...] = ()
    """The files of the saved step that its order names."""


@dataclass(frozen=True)
class _Copy:
    at: SavedAt
    tensors: dict[str, Tensor]

    @property
    def step(self) -> int:
        return self.at.step


class Saver:
    """Saves one stage of one attempt.

    Args:
        trained: global name -> parameter.
    """

    def __init__(
        self,
        order: StageOrder,
        trained: dict[str, torch.nn.Parameter],
        optimizer: torch.optim.Optimizer,
        place: SavePlace,
    ) -> None:
        self._order = order
        self._place = place
        self._every = order.settings.snapshot_every_steps
        self._copies = Copies(trained, optimizer)
        self._constants: dict[str, Tensor] = {}
        self._last = order.resume.step if order.resume is not None else 0
        self._step_s = 0.0
        self._lock = threading.Condition()
        self._waiting: _Copy | None = None
        self._is_sending = False
        self._is_over = False
        self._thread = threading.Thread(target=self._work, name="snapshots", daemon=True)
        self._thread.start()

    def keep(self, constants: Mapping[str, Tensor]) -> None:
        """Save these, which never change, with every step; before the first step."""
        self._constants = dict(constants)

    @property
    def is_busy(self) -> bool:
        """Whether a copy of this stage is on its way; told to all stages in every step."""
        with self._lock:
            return self._waiting is not None or self._is_sending

    def after_step(self, step: int, step_s: float, num_busy: int, loss_scale: str = "") -> None:
        """Save this step if it is time and no stage is busy; num_busy is the same on all stages.

        Takes as long as copying what the stage trains and its moments.
        """
        self._step_s = step_s
        is_due = step // self._every > self._last // self._every
        if num_busy or not is_due or step >= self._order.settings.steps:
            return
        self._last = step
        copied = _Copy(SavedAt(step, loss_scale), {**self._copies.take(), **self._constants})
        with self._lock:
            if not self._is_over:
                self._waiting = copied
                self._lock.notify_all()

    def close(self, grace_s: float = CLOSE_S) -> None:
        """Give a copy that is on its way a moment to arrive, then give it up."""
        with self._lock:
            self._lock.wait_for(lambda: self._waiting is None and not self._is_sending, grace_s)
            self._is_over = True
            self._lock.notify_all()
        self._thread.join(1.0)

    # --- in the background -------------------------------------------------------------------

    def _work(self) -> None:
        while (copied := self._next()) is not None:
            try:
                self._save(copied)
            except SwarmError as error:
                log.warning("step %d is not saved: %s", copied.step, error.message)
                if error.code in ("conflict", "not-found", "forbidden", "unauthenticated"):
                    self._is_over = True  # this attempt is over at the leader
            except OSError as error:
                log.warning("step %d is not saved: %s", copied.step, error.strerror or error)
            except Exception:
                log.exception("step %d is not saved", copied.step)
            with self._lock:
                self._is_sending = False
                self._lock.notify_all()

    def _next(self) -> _Copy | None:
        with self._lock:
            while self._waiting is None and not self._is_over:
                self._lock.wait()
            if self._is_over:
                return None
            copied, self._waiting, self._is_sending = self._waiting, None, True
            return copied

    def _save(self, copied: _Copy) -> None:
        size = sum(tensor.nbytes for tensor in copied.tensors.values())
        refuse_full_disk(self._place.folder, size, "a saved step")
        path = self._place.folder / f"step-{copied.step}.safetensors"
        try:
            digest = write_state(path, self._order, copied.at, copied.tensors)
            if self._upload(path, copied.step, digest):
                log.info("step %d is saved (%s)", copied.step, human_bytes(path.stat().st_size))
        finally:
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def _upload(self, path: Path, step: int, digest: str) -> bool:
        """PUT it until the leader has it. False when a newer copy took its place."""
        order = self._order
        url = (
            f"/fellow/v1/jobs/{order.job_id}/attempts/{order.attempt}"
            f"/snapshots/{step}/stages/{order.stage}"
        )
        pause_s = FIRST_PAUSE_S
        with self._place.leader.client() as client:
            while True:
                refusal = self._try_once(client, url, path, digest)
                if refusal is None:
                    return True
                log.info("a saved step did not reach the leader: %s", refusal.message)
                if not self._wait(pause_s):
                    return False
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _wait(self, pause_s: float) -> bool:
        """Between tries the stage counts as free; False when this copy is to be given up."""
        with self._lock:
            self._is_sending = False
            self._lock.notify_all()
            self._lock.wait_for(lambda: self._is_over or self._waiting is not None, pause_s)
            if self._is_over or self._waiting is not None:
                return False
            self._is_sending = True
            return True

    def _try_once(
        self, client: httpx2.Client, url: str, path: Path, digest: str
    ) -> SwarmError | None:
        """None when the leader has it; an error worth another try; raises one that is not."""
        size = path.stat().st_size
        headers = {
            "X-Content-SHA256": digest,
            "Content-Type": "application/octet-stream",
            "Content-Length": str(size),
        }
        try:
            answer = client.put(url, content=self._paced(path, size), headers=headers)
        except httpx2.TransportError as error:
            return SwarmError("unreachable", f"no connection ({type(error).__name__})")
        if answer.is_success:
            return None
        refusal = LeaderAccess.refusal(answer)
        if refusal.code in ("unavailable", "rate-limited", "internal"):
            return refusal
        raise refusal

    def _paced(self, path: Path, size: int) -> Iterator[bytes]:
        """The file in pieces, no faster than needed: the pipeline's own traffic goes first."""
        interval_s = SHARE_OF_INTERVAL * self._every * self._step_s
        rate = max(LEAST_BYTES_S, size / interval_s) if interval_s > 0 else float("inf")
        began, sent = time.monotonic(), 0
        with path.open("rb") as opened:
            while piece := opened.read(PIECE_BYTES):
                ahead_s = sent / rate - (time.monotonic() - began)
                if ahead_s > 0:
                    with self._lock:
                        self._lock.wait_for(lambda: self._is_over, ahead_s)
                if self._is_over:
                    raise SwarmError("stage-failed", "the run ended before it was sent")
                yield piece
                sent += len(piece)


def fetch_saved(
    leader: LeaderAccess, order: StageOrder, folder: Path, check: Callable[[], None]
) -> tuple[Path, ...]:
    """Download the files of the saved step that an order names.

    Raises:
        SwarmError: not-enough-disk; what the leader refused with; unreachable; invalid-input when
            a file is not the one that the order names.
    """
    resume = order.resume
    if resume is None:
        return ()
    found = []
    for one in resume.files:
        url = (
            f"/fellow/v1/jobs/{order.job_id}/attempts/{resume.attempt}"
            f"/snapshots/{resume.step}/stages/{one.stage}"
        )
        path = folder / f"resume-{one.stage}.safetensors"
        fetch_file(leader, url, path, (one.digest, one.size_bytes), check)
        found.append(path)
    return tuple(found)
