"""Disks of their own for machines of a rehearsal: small, in memory, and full when a script says so.

A process that is to have one starts in a mount namespace of its own, where its folder is a tmpfs;
from outside it is seen through the process. Needs root; everything is gone with the process.
"""

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil

from transport.errors import SwarmError

BALLAST = "ballast"
TRY_S = 10.0


class Disks:
    """The disks of one rehearsal, by the machine's name."""

    def __init__(self) -> None:
        self._folders: dict[str, tuple[Path, int]] = {}

    def plan(self, name: str, folder: Path, megabytes: int) -> None:
        """Let a machine's folder be a disk of that size.

        Raises:
            SwarmError: forbidden where this machine allows no mounts.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folders[name] = (folder, megabytes)
        words = [*self.before(name), "true"]
        try:
            told = subprocess.run(words, capture_output=True, timeout=TRY_S, check=False)
            why = "" if told.returncode == 0 else told.stderr.decode(errors="replace")[:200].strip()
        except (OSError, subprocess.TimeoutExpired) as error:
            why = type(error).__name__
        if why:
            raise SwarmError(
                "forbidden",
                f"{name} cannot have a disk of its own here: {why}",
                hint="run the rehearsal as root on Linux, or leave out disk_mb and fill",
            )

    def before(self, name: str) -> list[str]:
        """The words before a command that give it its disk; [] for a machine without one."""
        if name not in self._folders:
            return []
        folder, megabytes = self._folders[name]
        script = 'mount -t tmpfs -o "size=$1m" tmpfs "$0" && mkdir "$0/tmp" && shift && exec "$@"'
        unshare = shutil.which("unshare") or "unshare"
        return [unshare, "-m", "sh", "-c", script, str(folder), str(megabytes)]

    def seen(self, process: psutil.Process, path: Path, name: str) -> Path:
        """Where a file of a machine's is seen from here."""
        return Path(f"/proc/{process.pid}/root{path}") if name in self._folders else path

    def fill(self, name: str, process: psutil.Process, *, is_full: bool) -> None:
        """Leave no free byte on it, or give them back."""
        folder, _ = self._folders[name]
        ballast = self.seen(process, folder / BALLAST, name)
        if not is_full:
            ballast.unlink(missing_ok=True)
            return
        with ballast.open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                with suppress(OSError):
                    while file.write(b"\0" * size) == size:
                        pass
            with suppress(OSError):
                os.fsync(file.fileno())
