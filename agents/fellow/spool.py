"""Reports that the leader has not stored yet, numbered, on disk.

Append-only JSON lines in segments named by their first number. A line is written when the report
is made and made durable before it is sent, so every number that a leader ever saw is on this disk:
a restart, or a power cut, never gives a number to a second report. Bounded: past half of the limit
log lines are left out, past all of it everything but what decides a job.
"""

import contextlib
import json
import logging
import os
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from agents.fellow.identity import sync_folder
from transport.reports import Report
from transport.units import MB

_SEGMENT_BYTES = 4 * MB
# Without these a job would wait for ever, or forget why it failed.
_DECISIVE = frozenset(
    {"bound", "loaded", "saved", "done", "failed", "evaluated", "measured", "link-measured"}
)

log = logging.getLogger("swarm.fellow")


@dataclass(frozen=True)
class Line:
    """One numbered report as it crosses: {"sequence": n, "report": {...}}."""

    sequence: int
    text: str


class Spool:
    """The reports of one fellow, in the order in which they were made."""

    def __init__(self, folder: Path, limit_bytes: int = 64 * MB) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._waiting: deque[Line] = deque()
        self._waiting_bytes = 0
        self._next = 1
        self._file: BinaryIO | None = None
        self._segment = folder
        self._dirty = False
        self.dropped = 0
        """Reports left out because the spool was full, since the start."""
        self._read_all()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def next_sequence(self) -> int:
        """The number that the next report gets."""
        return self._next

    def append(self, report: Report) -> int | None:
        """Number a report and write it down; None when the spool is too full for it."""
        text = f'{{"sequence":{self._next},"report":{report.model_dump_json()}}}'
        if not self._has_room(report.kind, len(text)):
            self.dropped += 1
            return None
        sequence = self._next
        self._next += 1
        self._waiting.append(Line(sequence, text))
        self._waiting_bytes += len(text)
        self._write(sequence, text)
        return sequence

    def batch(self, most: int = 500, most_bytes: int = MB) -> list[Line]:
        """The oldest reports that wait. Make them durable (`sync`) before they are sent."""
        lines: list[Line] = []
        size = 0
        for line in tuple(self._waiting):
            size += len(line.text)
            if lines and (len(lines) == most or size > most_bytes):
                break
            lines.append(line)
        return lines

    def sync(self) -> None:
        """Make every written line survive a power cut."""
        handle = self.begin_sync()
        if handle is not None:
            finish_sync(handle)

    def begin_sync(self) -> int | None:
        """A handle for `finish_sync`, which may run in a thread; None when all is durable."""
        if not self._dirty or self._file is None:
            return None
        self._dirty = False
        return os.dup(self._file.fileno())

    def commit(self, sequence: int) -> None:
        """Drop every report up to a number: the leader has stored them."""
        while self._waiting and self._waiting[0].sequence <= sequence:
            self._waiting_bytes -= len(self._waiting.popleft().text)
        # A state folder put back from an old copy: numbers the leader knows are not used again.
        self._next = max(self._next, sequence + 1)
        self._remove_committed()

    def drop(self, sequences: set[int]) -> None:
        """Forget reports that the leader refused for good."""
        kept = [line for line in self._waiting if line.sequence not in sequences]
        self._waiting = deque(kept)
        self._waiting_bytes = sum(len(line.text) for line in kept)
        self._remove_committed()

    def close(self) -> None:
        """Make all durable and let go of the files."""
        self.sync()
        self._forget_file()

    def _has_room(self, kind: str, size: int) -> bool:
        if kind in _DECISIVE:
            return self._waiting_bytes + size <= 2 * self._limit_bytes
        share = 0.5 if kind == "log" else 1.0
        return self._waiting_bytes + size <= share * self._limit_bytes

    def _write(self, sequence: int, text: str) -> None:
        try:
            file = self._open_segment(sequence)
            file.write(text.encode() + b"\n")
            file.flush()
            self._dirty = True
        except OSError as error:
            # Still sent from memory; only a crash before that would lose it. The next line starts a
            # new segment, so that it does not continue a torn one.
            log.warning("a report could not be written to disk", extra={"reason": error.strerror})
            self._forget_file()

    def _forget_file(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _open_segment(self, sequence: int) -> BinaryIO:
        if self._file is not None and self._file.tell() < _SEGMENT_BYTES:
            return self._file
        self.close()
        self._segment = self._folder / f"reports-{sequence:012d}.jsonl"
        self._file = self._segment.open("ab")
        sync_folder(self._folder)
        return self._file

    def _remove_committed(self) -> None:
        """Delete segments whose every line is stored; the newest stays, for its number."""
        oldest = self._waiting[0].sequence if self._waiting else self._next
        segments = sorted(self._folder.glob("reports-*.jsonl"))
        for segment, follower in pairwise(segments):
            if _first_of(follower) <= oldest:
                with contextlib.suppress(OSError):
                    segment.unlink()

    def _read_all(self) -> None:
        segments = sorted(self._folder.glob("reports-*.jsonl"))
        for segment in segments:
            self._next = max(self._next, _first_of(segment))
            self._read(segment, is_last=segment == segments[-1])
        if segments:
            self._segment = segments[-1]
            self._file = self._segment.open("ab")

    def _read(self, segment: Path, *, is_last: bool) -> None:
        good = 0
        with segment.open("rb") as file:
            for raw in file:
                line = _parse(raw)
                if line is None:
                    log.warning("a report on disk was unreadable", extra={"file": segment.name})
                elif line.sequence >= self._next:
                    self._waiting.append(line)
                    self._waiting_bytes += len(line.text)
                    self._next = line.sequence + 1
                if raw.endswith(b"\n"):
                    good += len(raw)
        if is_last and segment.stat().st_size != good:
            os.truncate(segment, good)  # a line cut short: the next one must not continue it


def finish_sync(handle: int) -> None:
    """Wait until the disk has it, and close the handle."""
    try:
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


def _first_of(segment: Path) -> int:
    digits = segment.stem.removeprefix("reports-")
    return int(digits) if digits.isdigit() else 0


def _parse(raw: bytes) -> Line | None:
    if not raw.endswith(b"\n"):
        return None
    try:
        text = raw.decode().rstrip("\n")
        sequence = json.loads(text)["sequence"]
    except (ValueError, KeyError, TypeError):
        return None
    return Line(sequence, text) if isinstance(sequence, int) and sequence >= 1 else None
