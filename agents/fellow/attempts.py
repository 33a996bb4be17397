"""Which stages this machine has ever started, kept on disk.

A daemon that was killed must not start a stage a second time under its neighbours' feet: what is
noted here and no longer runs has failed, and is said to have. Knows no processes.
"""

import json
import threading
from pathlib import Path

from agents.fellow.identity import write_private
from agents.fellow.reconcile import Key

_MOST = 512


class Attempts:
    """Keys of started stages, oldest first; True once their end was reported."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "attempts.json"
        self._over: dict[Key, bool] = {}
        # One stage ends while another starts, each in a thread of its own.
        self._turn = threading.Lock()
        for job_id, attempt, stage, over in self._read():
            self._over[Key(job_id, attempt, stage)] = over

    def started(self) -> frozenset[Key]:
        """Every stage that was ever started."""
        with self._turn:
            return frozenset(self._over)

    def unfinished(self) -> list[Key]:
        """Stages whose end was never reported."""
        return [key for key, over in self._over.items() if not over]

    def note_start(self, key: Key) -> None:
        """Write down, durably, that a stage is about to start."""
        with self._turn:
            self._over[key] = False
            self._write()

    def note_end(self, key: Key) -> None:
        """Write down that its end was reported."""
        with self._turn:
            self._over[key] = True
            self._write()

    def _read(self) -> list[tuple[str, int, int, bool]]:
        try:
            told = json.loads(self._path.read_text(encoding="utf-8"))
            return [(str(j), int(a), int(s), bool(o)) for j, a, s, o in told]
        except (OSError, ValueError, TypeError):
            return []

    def _write(self) -> None:
        over = [key for key, is_over in self._over.items() if is_over]
        for key in over[: max(0, len(self._over) - _MOST)]:
            del self._over[key]
        rows = [[k.job_id, k.attempt, k.stage, o] for k, o in self._over.items()]
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(self._path, json.dumps(rows))
