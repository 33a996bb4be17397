"""Carries out the leader's reference order: a probe trained in one process, without stages.

In a child process, so that the daemon never loads torch; one at a time. A child that the leader no
longer wants is killed; what one found is told once.
"""

import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from agents.fellow.child import Said, run_child
from agents.fellow.errand import Errand
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
        self._errand: Errand[ReferenceOrder] = Errand(
            "verify", lambda order: order.verify_id, self._run
        )

    def want(self, order: ReferenceOrder | None) -> None:
        """Take the leader's word: this run, or none."""
        self._errand.want(order)

    async def close(self) -> None:
        """Stop; the leader gives the order again."""
        await self._errand.close()

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
