"""Real processes for the demo: started in their own session, watched, and never left behind.

Each child gets its own HOME and TMPDIR, so that three fellows on one machine share nothing but the
loopback interface. Knows nothing of what the children do.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from transport.errors import SwarmError

STOP_S = 12.0
"""A leader or fellow ends within 10 s of SIGTERM; past this it is killed."""
ORPHAN_S = 1.0
_INHERITED = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "SYSTEMROOT")


@dataclass
class Child:
    """A process of ours and the file that holds what it wrote."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def last_lines(self, count: int = 12) -> str:
        """The end of its log, for an error message."""
        text = self.log.read_text("utf-8", errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-count:])


class Household:
    """The processes of one demo. `stop` ends all of them, whatever happened before.

    Args:
        ends_with_us: they end too when this process does, however it ends, where the system lets
            them know (`setpriv`, Linux).
    """

    def __init__(self, folder: Path, *, ends_with_us: bool = True) -> None:
        self.folder = folder
        self._bound = _ends_with_us() if ends_with_us else []
        self.children: list[Child] = []

    def start(
        self,
        name: str,
        arguments: Sequence[str],
        extra: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
    ) -> Child:
        """Start `python -m …` as a child with a home of its own; its output goes to NAME.log.

        Args:
            extra: of its environment.
            before: words of a command that becomes it.
        """
        home = self.folder / name
        (home / "tmp").mkdir(parents=True, exist_ok=True)
        log = self.folder / f"{name}.log"
        environment = {key: os.environ[key] for key in _INHERITED if key in os.environ}
        environment |= {"HOME": str(home), "TMPDIR": str(home / "tmp"), "OMP_NUM_THREADS": "1"}
        environment |= {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"}
        environment |= dict(extra or {})
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*self._bound, *before, sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                # A session of its own: Ctrl-C reaches the demo alone, which then ends its
                # children in the right order.
                start_new_session=True,
            )
        child = Child(name, process, log)
        self.children.append(child)
        return child

    def require_alive(self) -> None:
        """Raise when a child has ended by itself, with the end of its log."""
        for child in self.children:
            code = child.process.poll()
            if code is not None:
                raise SwarmError(
                    "internal",
                    f"{child.name} ended by itself with code {code}:\n{child.last_lines()}",
                    hint=f"its whole log is {child.log}",
                )

    def stop(self) -> list[int]:
        """End every child (fellows before the leader) and all that they started.

        Returns: the process ids that had to be killed; empty when all ended by themselves.
        """
        everyone = self._descendants()
        for child in reversed(self.children):
            if child.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    child.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        for child in reversed(self.children):
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.1, deadline - time.monotonic()))
        # Whoever outlives its parent by a second was orphaned and would stay for good.
        _, alive = psutil.wait_procs(everyone, timeout=ORPHAN_S)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=5)
        for child in self.children:
            child.process.poll()
        return [process.pid for process in alive]

    def _descendants(self) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        for child in self.children:
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(child.process.pid)
                found += [process, *process.children(recursive=True)]
        return found


_IF_STILL_OURS = 'test "$PPID" = "$0" && exec "$@"'


def _ends_with_us() -> list[str]:
    """Words of a command that becomes the one behind them, which gets SIGTERM when we end.

    The system tells only of an end that comes after it was asked to, so a child that was not ours
    any more by then (we were killed as it started) ends at once.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return []
    return [setpriv, "--pdeathsig", "TERM", "--", "sh", "-c", _IF_STILL_OURS, str(os.getpid())]


def wait_until(what: str, check: Any, timeout_s: float, household: Household) -> Any:
    """Ask `check` every 0.2 s until it answers with something true; bounded.

    Raises:
        SwarmError: unavailable after timeout_s; internal when a child died meanwhile.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        answer = check()
        if answer:
            return answer
        household.require_alive()
        if time.monotonic() > deadline:
            raise SwarmError(
                "unavailable",
                f"{what} did not happen within {timeout_s:.0f} s",
                hint=f"the logs lie in {household.folder}",
            )
        time.sleep(0.2)
