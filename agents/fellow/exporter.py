"""Carries out the leader's export order in a child process, so that the daemon never loads torch.

One at a time. A child that the leader no longer wants is killed; one that fails is told once. Does
not know what is exported.
"""

import asyncio
import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from agents.fellow.launcher import child_environment
from agents.log_lines import clean, redact
from transport.orders import ExportOrder, ExportStart
from transport.reports import ExportFailed

EXPORT = (sys.executable, "-m", "stage_runtime.export")
_MAX_SAID = 64_000

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
        self._running: ExportOrder | None = None
        self._task: asyncio.Task[None] | None = None
        self._over: set[str] = set()
        """Ids that ended here: a leader that has not heard of it yet still names them."""

    def want(self, order: ExportOrder | None) -> None:
        """Take the leader's word: this export, or none."""
        if order == self._running:
            return
        if self._task is not None:
            self._task.cancel()
        self._running, self._task = None, None
        if order is not None and order.export_id not in self._over:
            self._running = order
            self._task = asyncio.create_task(self._run(order), name=f"export {order.export_id}")

    async def close(self) -> None:
        """Stop; the leader gives the order again."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self, order: ExportOrder) -> None:
        log.info("export begins", extra={"export": order.export_id, "job": order.job_id})
        code, said, complained = await self._child(order)
        self._over.add(order.export_id)
        told = _last_object(said)
        if code == 0 and told.get("done") is True:
            log.info("export ended", extra={"export": order.export_id})
            return
        lines = complained.strip().splitlines()
        words = f"the export ended with exit code {code}" + (f": {lines[-1]}" if lines else "")
        failed = ExportFailed(
            export_id=order.export_id,
            at=time.time(),
            code=clean(str(told.get("code", "internal")), 64),
            message=clean(redact(str(told.get("message", words))), 2000),
            hint=clean(redact(str(told.get("hint", ""))), 500),
        )
        log.warning("export failed", extra={"export": order.export_id, "why": failed.message})
        self._put(failed)

    async def _child(self, order: ExportOrder) -> tuple[int | None, str, str]:
        setting = self._setting
        start = ExportStart(
            order=order,
            leader_url=setting.leader_url,
            leader_token=setting.leader_token,
            leader_pin=setting.leader_pin,
            cache_folder=str(setting.cache_folder),
            work_folder=str(setting.work_folder / order.export_id),
        )
        try:
            child = await asyncio.create_subprocess_exec(
                *setting.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=child_environment(),
            )
        except OSError as error:
            return None, "", str(error)
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        try:
            with contextlib.suppress(ConnectionError):
                child.stdin.write(start.model_dump_json().encode() + b"\n")
                await child.stdin.drain()
            # stdin stays open: its end tells the child that the daemon is gone.
            said, complained = await asyncio.gather(_tail(child.stdout), _tail(child.stderr))
            await child.wait()
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
            child.stdin.close()
        return child.returncode, said, complained


async def _tail(stream: asyncio.StreamReader) -> str:
    """The end of what a child says, however much it says."""
    kept = b""
    while piece := await stream.read(65536):
        kept = (kept + piece)[-_MAX_SAID:]
    return kept.decode(errors="replace")


def _last_object(said: str) -> dict[str, object]:
    for line in reversed(said.splitlines()):
        with contextlib.suppress(ValueError):
            told = json.loads(line)
            if isinstance(told, dict):
                return told
    return {}
