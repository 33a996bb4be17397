"""A real relay as a process of its own, on a port that it keeps through restarts."""

import os
import signal
import subprocess
import sys
from typing import Self

import psutil

from transport.orders import RelayRoute
from transport.relay import Side, ticket_for, write_ticket
from transport.relay_server import listen

KEY = bytes(range(32))
POOL = "ada/home"
FAR_FUTURE = 4_000_000_000.0


class RelayChild:
    """Like a leader's relay: the socket stays here, so that a dead relay's port is nobody's."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.listener = listen(host, 0)
        self.port: int = self.listener.getsockname()[1]
        self._child = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        number = self.listener.fileno()
        child = subprocess.Popen(
            [sys.executable, "-m", "transport.relay_server", "--listen-fd", str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[number],
        )
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(KEY)
        child.stdin.flush()
        assert b'"ready": true' in child.stdout.readline()
        return child

    @property
    def pid(self) -> int:
        """Of the running relay."""
        return self._child.pid

    @property
    def resident_bytes(self) -> int:
        """Its memory as the system counts it."""
        return int(psutil.Process(self._child.pid).memory_info().rss)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        os.kill(self._child.pid, signal.SIGKILL)
        self._wait()

    def restart(self) -> None:
        """A new one on the same port."""
        self._child = self._start()

    def _wait(self) -> None:
        self._child.wait(10)
        for stream in (self._child.stdin, self._child.stdout):
            assert stream is not None
            stream.close()

    def close(self) -> None:
        """End it as a leader does: by closing its stdin."""
        if self._child.returncode is None:
            assert self._child.stdin is not None
            self._child.stdin.close()
            self._wait()
        self.listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ticket(side: Side, link: str = "j-aaaabbbb/1/0", pool: str = POOL) -> str:
    """A good ticket."""
    return write_ticket(KEY, ticket_for(pool, link, side, FAR_FUTURE))


def routes(port: int, link: str = "j-aaaabbbb/1/0") -> tuple[RelayRoute, RelayRoute]:
    """What the dialling and the answering stage are told of the relay."""
    dials, answers = (
        RelayRoute(host="127.0.0.1", port=port, ticket=ticket(side, link)) for side in Side
    )
    return dials, answers
