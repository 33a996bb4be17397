"""Carries out the leader's reference order: a probe trained in one process, without stages.

In a child process, so that the daemon never loads torch; one at a time. A child that the leader no
longer wants is killed; what one found is told once.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from agents.fellow.child import Said, run_child
from transport.orders import ReferenceOrder, ReferenceStart
from transport.reports import ReferenceFailed, ReferenceTrained

REFERENCE = (sys.executable, "-m", "stage_runtime.reference_process")

log = logging.getLogger("swarm.fellow")


@dataclass(frozen=True)
class RefereeSetting:
    """What the child is told beside its order."""

    leader_url: str
    leader_token: str = field(repr=False)
    leader_pin: str | None
    cache_folder: Path
    command: tuple[str, ...] = REFERENCE


class Referee:
    """The reference run of one machine."""

    def __init__(
        self,
        setting: RefereeSetting,
        put: Callable[[ReferenceTrained | ReferenceFailed], object],
    ) -> None:
        self._setting = setting
        self._put = put
        self._running: ReferenceOrder | None = None
        self._task: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        """Cancelled, and not over yet: each still sees its child end."""
        self._over: set[str] = set()
        """Ids that ended here: a leader that has not heard of it yet still names them."""

    def want(self, order: ReferenceOrder | None) -> None:
        """Take the leader's word: this run, or none."""
        if order == self._running:
            return
        self._cancel()
        self._running = None
        if order is not None and order.verify_id not in self._over:
            self._running = order
            self._task = asyncio.create_task(self._run(order), name=f"verify {order.verify_id}")

    async def close(self) -> None:
        """Stop; the leader gives the order again."""
        self._cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _cancel(self) -> None:
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _run(self, order: ReferenceOrder) -> None:
        log.info("reference run begins", extra={"verify": order.verify_id, "job": order.job_id})
        start = ReferenceStart(
            order=order,
            leader_url=self._setting.leader_url,
            leader_token=self._setting.leader_token,
            leader_pin=self._setting.leader_pin,
            cache_folder=str(self._setting.cache_folder),
        )
        said = await run_child(self._setting.command, start.model_dump_json())
        self._over.add(order.verify_id)
        told = _told(order.verify_id, said)
        log.info("reference run ended", extra={"verify": order.verify_id, "how": told.kind})
        self._put(told)


def _told(verify_id: str, said: Said) -> ReferenceTrained | ReferenceFailed:
    if said.code == 0:
        with suppress(ValidationError):
            found = {**said.told, "verify_id": verify_id, "at": time.time()}
            return ReferenceTrained.model_validate(found)
    code, message, hint = said.failure("the run in one process")
    return ReferenceFailed(
        verify_id=verify_id, at=time.time(), code=code, message=message, hint=hint
    )
