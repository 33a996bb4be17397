"""How a worker process is started: plainly, or forked from a warm one.

Knows processes and file descriptors; does not know orders. Only processes started here are ever
signalled, by a handle (pidfd) where the system has them, so that a reused number hits nobody else.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from agents.fellow.channel import Channel, pair
from transport.errors import SwarmError

WORKER = (sys.executable, "-m", "stage_runtime.worker")
FORKSERVER = (sys.executable, "-m", "stage_runtime.forkserver")
STDERR_LINE_BYTES = 4096
# What a worker must not inherit: it gets the fellow's credential on its channel, and nothing else.
_SECRETS = ("SWARM_INVITE", "SWARM_TOKEN", "SWARM_TOKEN_FILE")


@dataclass(frozen=True)
class Ended:
    """How a process ended: an exit code, a signal, or neither when nobody could tell."""

    code: int | None
    signal: int | None

    def words(self) -> str:
        """In words for people: "was killed by signal 9 (SIGKILL)"."""
        if self.signal is not None:
            name = signal.Signals(self.signal).name if self.signal in _SIGNALS else "unknown"
            return f"was killed by signal {self.signal} ({name})"
        if self.code is not None:
            return f"ended with exit code {self.code}"
        return "is gone, and nobody could tell how it ended"


_SIGNALS = frozenset(int(one) for one in signal.Signals)


class Process:
    """A started worker: its channel, what it prints, and how it ends."""

    def __init__(self, pid: int, channel: Channel, printed: Channel) -> None:
        self.pid = pid
        self.channel = channel
        self.printed = printed
        self.ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._handle: int | None = None
        with contextlib.suppress(OSError, AttributeError):
            self._handle = os.pidfd_open(pid)

    def signal(self, number: int) -> None:
        """Signal it, unless it has ended."""
        if self.ended.done():
            return
        with contextlib.suppress(OSError):
            if self._handle is not None:
                signal.pidfd_send_signal(self._handle, number)
            else:
                os.kill(self.pid, number)

    def has_ended(self, how: Ended) -> None:
        """Note its end, once."""
        if not self.ended.done():
            self.ended.set_result(how)

    def close(self) -> None:
        """Let go of everything but the process."""
        self.channel.close()
        self.printed.close()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


class Launcher(Protocol):
    """Starts workers."""

    async def launch(self, name: str, threads: int) -> Process:
        """Start a worker that waits for its first line.

        Raises:
            SwarmError: unavailable when no process could be started.
        """

    async def close(self) -> None:
        """End what this launcher keeps running itself. Workers are their owner's to stop."""


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a child: this one's without secrets."""
    kept = {k: v for k, v in os.environ.items() if k not in _SECRETS}
    return {**kept, "PYTHONUNBUFFERED": "1", "HF_HUB_DISABLE_TELEMETRY": "1", **(extra or {})}


class PlainLauncher:
    """Starts each worker as a fresh Python: slower to begin, nothing kept in memory."""

    def __init__(self, command: Sequence[str] = WORKER) -> None:
        self._command = tuple(command)
        self._watching: set[asyncio.Task[None]] = set()

    async def launch(self, name: str, threads: int) -> Process:
        """Start a worker that waits for its first line; its channel is stdin and stdout in one."""
        channel, theirs = pair()
        printed, their_stderr = pair(STDERR_LINE_BYTES)
        try:
            child = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=their_stderr.fileno(),
                env=child_environment({"OMP_NUM_THREADS": str(threads)}),
                start_new_session=True,
            )
        except OSError as error:
            channel.close()
            printed.close()
            raise SwarmError(
                "unavailable", f"no worker could be started: {error.strerror}"
            ) from None
        finally:
            theirs.close()
            their_stderr.close()
        process = Process(child.pid, channel, printed)
        task = asyncio.create_task(_wait(child, process), name=f"end of {name}")
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)
        return process

    async def close(self) -> None:
        """Nothing is kept running."""


async def _wait(child: asyncio.subprocess.Process, process: Process) -> None:
    code = await child.wait()
    process.has_ended(Ended(None, -code) if code < 0 else Ended(code, None))


def send_with_handles(end: socket.socket, line: str, handles: Sequence[int]) -> None:
    """One line with file descriptors over a unix socket."""
    data = line.encode() + b"\n"
    sent = socket.send_fds(end, [data], list(handles))
    if sent != len(data):
        raise BlockingIOError("the socket took only part of a line")
