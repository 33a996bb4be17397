"""The worker's line to its fellow daemon: orders in, reports out, one JSON object a line.

Also keeps stray prints of libraries off that line, and sends the worker's log along it.
"""

import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from transport.errors import SwarmError
from transport.orders import StageOrder, WorkerLine
from transport.reports import FromStage, LogLine

MAX_LINE_BYTES = 4_000_000
MAX_LOG_CHARS = 2000
_LINES: TypeAdapter[WorkerLine] = TypeAdapter(WorkerLine)
R = TypeVar("R", bound=FromStage)


class Channel:
    """Both directions of the line. Any thread may report; one thread reads."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._lock = threading.Lock()
        self._order: StageOrder | None = None

    @classmethod
    def from_stdio(cls) -> "Channel":
        """Take stdin and stdout, and send whatever is printed from now on to stderr."""
        write_fd = os.dup(1)
        os.dup2(2, 1)
        return cls(0, write_fd)

    def lines(self) -> Iterator[Any]:
        """The daemon's lines until it is gone.

        Raises:
            SwarmError: invalid-input; a line that is none of ours.
        """
        buffer = bytearray()
        while chunk := self._read():
            buffer += chunk
            while (end := buffer.find(b"\n")) >= 0:
                line = bytes(buffer[:end])
                del buffer[: end + 1]
                yield _parse(line)
            if len(buffer) > MAX_LINE_BYTES:
                raise SwarmError("invalid-input", f"a line is longer than {MAX_LINE_BYTES} bytes")

    def _read(self) -> bytes:
        try:
            return os.read(self._read_fd, 65536)
        except OSError:
            return b""

    def speak_for(self, order: StageOrder) -> None:
        """Reports name this stage from now on."""
        self._order = order

    def report(self, kind: type[R], **values: Any) -> None:
        """Send a report. A daemon that is gone is noticed by the reading thread."""
        assert self._order is not None
        order = self._order
        report = kind(
            job_id=order.job_id,
            attempt=order.attempt,
            stage=order.stage,
            at=time.time(),
            **values,
        )
        line = report.model_dump_json().encode() + b"\n"
        with self._lock:
            view = memoryview(line)
            try:
                while view:
                    view = view[os.write(self._write_fd, view) :]
            except OSError:
                return


def _parse(line: bytes) -> Any:
    try:
        return _LINES.validate_json(line)
    except ValidationError as error:
        raise SwarmError(
            "invalid-input",
            f"the daemon sent a line that a worker does not know: {error.errors()[0]['msg']}",
            hint="daemon and worker must be of one version",
        ) from error


class ReportedLog(logging.Handler):
    """Sends log records as LogLine reports."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(level=logging.INFO)
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        """Never raises: a log line is not worth a training run."""
        try:
            level = "debug" if record.levelno < logging.INFO else record.levelname.lower()
            level = "error" if level == "critical" else level
            self._channel.report(LogLine, level=level, text=self.format(record)[:MAX_LOG_CHARS])
        except (ValidationError, ValueError, TypeError, KeyError):
            return
