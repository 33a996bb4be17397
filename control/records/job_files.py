"""A job's folder: records.jsonl with every measured step, log.jsonl with the newest log lines.

Blocking and safe from several threads. The database stays the truth of the steps; the file is
what a person opens. Log lines live here alone.
"""

import contextlib
import json
import os
import shutil
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from control.store.files import disk_refusal, write_lines

KEPT_LINES = 5000
JOBS_IN_MEMORY = 32
LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class Line:
    """One log line of a stage: untrusted text, cleaned."""

    at: float
    """Unix time on the fellow's clock."""
    stage: int
    fellow_id: str
    level: str
    text: str
    attempt: int
    sequence: int
    """Of the fellow's reports; a repeated one is the same line."""


@dataclass(frozen=True)
class Wanted:
    """Which log lines to read."""

    level: str = "info"
    stage: int | None = None
    limit: int = 50
    after: int | None = None
    """Lines after this number, oldest first; None = the newest."""


@dataclass
class _Log:
    lines: "deque[tuple[int, Line]]" = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    num: int = 0
    on_disk: int = 0
    newest: dict[str, int] = field(default_factory=dict)
    """fellow_id -> its highest sequence number here."""


class JobFiles:
    """The folders of all jobs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._logs: OrderedDict[str, _Log] = OrderedDict()

    def folder(self, job_id: str) -> Path:
        """A job's own folder."""
        return self._folder / job_id

    def records_path(self, job_id: str) -> Path:
        """Where a job's steps are written."""
        return self.folder(job_id) / "records.jsonl"

    def append_records(self, job_id: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add measured steps to the file.

        Raises:
            SwarmError: storage-full; none of them is kept then.
        """
        path = self.records_path(job_id)
        with self._lock:
            _append(path, [json.dumps(row, separators=(",", ":")) + "\n" for row in rows])

    def rewrite_records(self, job_id: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write the file anew from all steps: in order, each once."""
        with self._lock:
            write_lines(self.records_path(job_id), rows)

    def append_lines(self, job_id: str, lines: Sequence[Line]) -> list[Line]:
        """Add log lines; those that are here already are left out. Returns the new ones.

        Raises:
            SwarmError: storage-full; none of them is kept then.
        """
        with self._lock:
            log = self._open(job_id)
            fresh = [one for one in lines if one.sequence > log.newest.get(one.fellow_id, 0)]
            if not fresh:
                return []
            path = self.folder(job_id) / "log.jsonl"
            _append(path, [_as_text(line) for line in fresh])
            for line in fresh:
                _remember(log, line)
            log.on_disk += len(fresh)
            if log.on_disk > 2 * KEPT_LINES:
                write_lines(path, (asdict(line) for _, line in log.lines))
                log.on_disk = len(log.lines)
            return fresh

    def read_lines(self, job_id: str, wanted: Wanted) -> tuple[list[Line], int, int]:
        """(lines, how many more match, the number to go on from)."""
        lowest = LEVELS.index(wanted.level)
        with self._lock:
            log = self._open(job_id)
            after = wanted.after
            fitting = [
                (number, line)
                for number, line in log.lines
                if LEVELS.index(line.level) >= lowest
                and wanted.stage in (None, line.stage)
                and (after is None or number > after)
            ]
            num = log.num
        shown = fitting[-wanted.limit :] if after is None else fitting[: wanted.limit]
        all_shown = after is None or len(shown) == len(fitting)
        last = num if all_shown else shown[-1][0]
        return [line for _, line in shown], len(fitting) - len(shown), last

    def remove(self, job_id: str) -> None:
        """Delete a job's folder."""
        with self._lock:
            self._logs.pop(job_id, None)
            shutil.rmtree(self.folder(job_id), ignore_errors=True)

    def _open(self, job_id: str) -> _Log:
        log = self._logs.pop(job_id, None)
        if log is None:
            log = _read(self.folder(job_id) / "log.jsonl")
        self._logs[job_id] = log
        while len(self._logs) > JOBS_IN_MEMORY:
            self._logs.popitem(last=False)
        return log


def _append(path: Path, lines: Sequence[str]) -> None:
    """Add all lines, or none of them."""
    size = path.stat().st_size if path.is_file() else 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as out:
            out.writelines(lines)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.truncate(path, size) if size else path.unlink()
        raise disk_refusal(error, path.name) from error


def _read(path: Path) -> _Log:
    """The log of a file; a line cut by a crash is left out."""
    log = _Log()
    if not path.is_file():
        return log
    with path.open(encoding="utf-8", errors="replace") as lines:
        for text in lines:
            log.on_disk += 1
            with contextlib.suppress(ValueError, TypeError):
                _remember(log, Line(**json.loads(text)))
    if log.on_disk and not path.read_bytes().endswith(b"\n"):
        with path.open("a", encoding="utf-8") as out:
            out.write("\n")
    return log


def _remember(log: _Log, line: Line) -> None:
    log.num += 1
    log.lines.append((log.num, line))
    log.newest[line.fellow_id] = max(line.sequence, log.newest.get(line.fellow_id, 0))


def _as_text(line: Line) -> str:
    return json.dumps(asdict(line), separators=(",", ":")) + "\n"
