"""Carries out the leader's export order in a child process, so that the daemon never loads torch.

One at a time. A child that the leader no longer wants is killed; one that fails is told once. Does
not know what is exported.
"""

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from agents.fellow.child import run_child
from agents.fellow.errand import Errand
from transport.orders import ExportOrder, ExportStart
from transport.reports import ExportFailed

EXPORT = (sys.executable, "-m", "stage_runtime.export")

log = logging.getLogger("swarm.fellow")


@dataclass(frozen=True)
class ExportSetting:
    """What the child is told beside its order."""

    leader_url: str
    leader_token: str = field(repr=False)
    leader_pin: str | None
    cache_folder: Path
    work_folder: Path
    command: tuple[str, ...] = EXPORT


class Exporter:
    """The export of one machine."""

    def __init__(self, setting: ExportSetting, put: Callable[[ExportFailed], object]) -> None:
        self._setting = setting
        self._put = put
        self._errand: Errand[ExportOrder] = Errand(
            "export", lambda order: order.export_id, self._run
        )

    def want(self, order: ExportOrder | None) -> None:
        """Take the leader's word: this export, or none."""
        self._errand.want(order)

    async def close(self) -> None:
        """Stop; the leader gives the order again."""
        await self._errand.close()

    async def _run(self, order: ExportOrder) -> None:
        log.info("export begins", extra={"export": order.export_id, "job": order.job_id})
        start = ExportStart(
            order=order,
            leader_url=self._setting.leader_url,
            leader_token=self._setting.leader_token,
            leader_pin=self._setting.leader_pin,
            cache_folder=str(self._setting.cache_folder),
            work_folder=str(self._setting.work_folder / order.export_id),
        )
        said = await run_child(self._setting.command, start.model_dump_json())
        if said.code == 0 and said.told.get("done") is True:
            log.info("export ended", extra={"export": order.export_id})
            return
        code, message, hint = said.failure("the export")
        failed = ExportFailed(
            export_id=order.export_id, at=time.time(), code=code, message=message, hint=hint
        )
        log.warning("export failed", extra={"export": order.export_id, "why": failed.message})
        self._put(failed)
