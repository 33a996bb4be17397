"""A control group that holds processes to a share of one core; version 1 or 2, made by root."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

PERIOD_US = 20_000
"""Short: who waited must not find the quota of a whole tenth of a second unspent."""


@dataclass(frozen=True)
class ControlGroup:
    """One group, as a folder of the kernel's."""

    folder: Path

    @classmethod
    @contextmanager
    def held_to(cls, share: float) -> Iterator["ControlGroup"]:
        """A group with `share` of one core, gone at the end.

        Raises:
            OSError: not root, or there is no cpu controller that takes groups.
        """
        group = cls(_root() / f"swarm-test-{os.getpid()}")
        group.folder.mkdir()
        try:
            group._hold(int(share * PERIOD_US))
            yield group
        finally:
            for pid in group._members():
                with suppress(ProcessLookupError):
                    (group.folder.parent / "cgroup.procs").write_text(str(pid))
            group.folder.rmdir()

    def _hold(self, quota_us: int) -> None:
        """The quota, and 32 times the weight of others: only the quota holds it back."""
        if (self.folder / "cpu.max").exists():
            (self.folder / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
            (self.folder / "cpu.weight").write_text("3200")
        else:
            (self.folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self.folder / "cpu.cfs_quota_us").write_text(str(quota_us))
            (self.folder / "cpu.shares").write_text("32768")

    def add(self, parent: int) -> None:
        """Move a process and all that it has started; what they start later is born inside."""
        outside = {parent}
        while outside:
            for pid in outside:
                with suppress(ProcessLookupError):
                    (self.folder / "cgroup.procs").write_text(str(pid))
            started = psutil.Process(parent).children(recursive=True)
            outside = {one.pid for one in started} - self._members()

    def _members(self) -> set[int]:
        return {int(pid) for pid in (self.folder / "cgroup.procs").read_text("utf-8").split()}


def put_first(parent: int) -> None:
    """Let a process, and all that it has started or will start, go before other work."""
    process = psutil.Process(parent)
    for one in (process, *process.children(recursive=True)):
        one.nice(-15)


def _root() -> Path:
    for line in Path("/proc/mounts").read_text("utf-8").splitlines():
        _, folder, kind, options = line.split()[:4]
        if kind == "cgroup" and "cpu" in options.split(","):
            return Path(folder)
        if kind == "cgroup2":
            control = Path(folder) / "cgroup.subtree_control"
            if control.exists() and "cpu" in control.read_text("utf-8").split():
                return Path(folder)
    raise FileNotFoundError("no cpu controller is mounted")
