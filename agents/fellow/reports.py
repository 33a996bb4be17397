"""What a worker writes on its channel, checked and passed on.

Lines become reports only when they are of this very stage and attempt; log text is cleaned, capped
and rate-limited. Does not send: the spool keeps, the outbox sends.
"""

import logging
import time
from collections.abc import Callable
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from agents.fellow.reconcile import Key
from agents.log_lines import clean, redact
from transport.reports import LinkPath, LogLine, Report, StageFailed, StageReport

LINES_A_SECOND = 20.0
LINES_AT_ONCE = 200.0
_TEXT = 2000

_STAGE_REPORT: TypeAdapter[Any] = TypeAdapter(StageReport)

log = logging.getLogger("swarm.fellow")

Level = Literal["debug", "info", "warning", "error"]


class Intake:
    """Turns one worker's words into reports."""

    def __init__(
        self,
        key: Key,
        put: Callable[[Report], object],
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._key = key
        self._put = put
        self._clock = clock
        self._ticks = ticks
        self._allowance = LINES_AT_ONCE
        self._refilled_at = ticks()
        self._left_out = 0

    def take(self, line: str) -> StageReport | None:
        """Pass on one line of the channel; None when it was no report of this stage."""
        try:
            report: StageReport = _STAGE_REPORT.validate_json(line)
        except ValidationError as error:
            what = error.errors(include_url=False, include_input=False)[0]
            log.warning("unreadable worker line", extra={"stage": str(self._key), "why": str(what)})
            self.say("warning", f"a line of the worker was no report: {line}")
            return None
        if isinstance(report, LogLine):
            self.say(report.level, report.text)
            return report
        if Key(report.job_id, report.attempt, report.stage) != self._key:
            log.warning("a worker reported for another stage", extra={"stage": str(self._key)})
            return None
        if not isinstance(report, LinkPath):  # that goes with the heartbeats
            self._put(report)
        return report

    def say(self, level: Level, text: str) -> None:
        """Pass on a log line, unless there were too many."""
        text = clean(redact(text), _TEXT)
        if not text.strip():
            return
        if level != "error" and not self._may_say():
            self._left_out += 1
            return
        if self._left_out:
            self._put(self._log_line("warning", f"{self._left_out} log lines were left out here"))
            self._left_out = 0
        self._put(self._log_line(level, text))

    def fail(
        self, message: str, *, hint: str = "", exit_code: int | None = None, lost: bool = False
    ) -> StageFailed:
        """Say for a worker that can no longer speak that its stage has failed.

        lost: it is gone through no fault of the job.
        """
        report = StageFailed(
            job_id=self._key.job_id,
            attempt=self._key.attempt,
            stage=self._key.stage,
            at=self._clock(),
            code="stage-failed",
            message=clean(redact(message), _TEXT),
            hint=hint,
            exit_code=exit_code,
            lost=lost,
        )
        self._put(report)
        return report

    def _may_say(self) -> bool:
        now = self._ticks()
        refill = (now - self._refilled_at) * LINES_A_SECOND
        self._allowance = min(LINES_AT_ONCE, self._allowance + refill)
        self._refilled_at = now
        if self._allowance < 1:
            return False
        self._allowance -= 1
        return True

    def _log_line(self, level: Level, text: str) -> LogLine:
        return LogLine(
            job_id=self._key.job_id,
            attempt=self._key.attempt,
            stage=self._key.stage,
            at=self._clock(),
            level=level,
            text=text,
        )
