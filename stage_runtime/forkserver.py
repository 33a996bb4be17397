"""Starts stage workers in a tenth of a second: `python -m stage_runtime.forkserver`.

Has torch, transformers and peft loaded and forks for each worker. Stays single-threaded, makes no
ZeroMQ context and touches no card, because none of those survives a fork. Spoken to over a socket
on fd 0, one JSON object a line: {"start": NAME} with two file descriptors (channel, stderr).
Answers {"ready": true, "preload_s"}, {"started", "pid"}, {"exited", "pid", "code", "signal"},
{"refused", "why"}. On {"prove": true} a fork tests the number formats of every device, and its
findings come as {"proven": {...}} (stage_runtime.probe).
"""

import gc
import importlib
import json
import logging
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from contextlib import suppress
from typing import Any

PRELOADED = (
    "stage_runtime.worker",
    "peft",
    "transformers.models.llama.modeling_llama",
    "transformers.models.mistral.modeling_mistral",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.qwen3.modeling_qwen3",
    "transformers.models.gemma3.modeling_gemma3",
    "transformers.models.gpt2.modeling_gpt2",
)
MAX_LINE_BYTES = 65_536
FDS_OF_A_START = 2
PROOF_LIMIT_S = 120


class Forkserver:
    """One socket to the daemon, and the workers forked for it."""

    def __init__(self, daemon: socket.socket) -> None:
        self._daemon = daemon
        self._buffer = bytearray()
        self._fds: deque[int] = deque()
        self._workers: dict[int, str] = {}
        self._wake_read, self._wake_write = os.pipe()
        self._proving: int | None = None
        """Read end of the pipe on which a fork tells what it found."""
        self._proof = bytearray()

    def serve(self, preload_s: float) -> None:
        """Fork on request until the daemon is gone; then kill what still runs."""
        os.set_blocking(self._wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self._say(ready=True, preload_s=round(preload_s, 3))
        while True:
            waiting: list[Any] = [self._daemon, self._wake_read]
            waiting += [] if self._proving is None else [self._proving]
            readable, _, _ = select.select(waiting, [], [])
            if self._wake_read in readable:
                os.read(self._wake_read, 4096)
                self._reap()
            if self._proving in readable:
                self._hear_proof()
            if self._daemon in readable and not self._take():
                break
        self._kill_all()

    def _take(self) -> bool:
        """Read what the daemon sent; False when it is gone."""
        try:
            data, fds, _, _ = socket.recv_fds(self._daemon, MAX_LINE_BYTES, 16)
        except OSError:
            return False
        self._buffer += data
        self._fds.extend(fds)
        while (end := self._buffer.find(b"\n")) >= 0:
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            self._carry_out(line)
        return bool(data) and len(self._buffer) <= MAX_LINE_BYTES

    def _carry_out(self, line: bytes) -> None:
        try:
            told = json.loads(line)
            if "prove" in told:
                self._prove()
                return
            name = str(told["start"])
        except (ValueError, KeyError, TypeError):
            self._say(refused="", why='a line must be {"start": NAME}')
            return
        if len(self._fds) < FDS_OF_A_START:
            self._say(refused=name, why="two file descriptors must come with a start")
            return
        channel, stderr = self._fds.popleft(), self._fds.popleft()
        pid = os.fork()
        if pid == 0:
            self._become_worker(channel, stderr)
        os.close(channel)
        os.close(stderr)
        self._workers[pid] = name
        self._say(started=name, pid=pid)

    def _prove(self) -> None:
        """Have a fork test the number formats: what it touches must not survive in this process."""
        if self._proving is not None:
            return
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._become_prover(write)
        os.close(write)
        self._workers[pid] = ""
        self._proving = read

    def _become_prover(self, write: int) -> None:
        """In the child: never returns."""
        try:
            signal.set_wakeup_fd(-1)
            signal.alarm(PROOF_LIMIT_S)
            self._forget_the_parent()
            from stage_runtime.probe import proven  # noqa: PLC0415 - late, as a worker's

            with os.fdopen(write, "wb") as opened:
                opened.write(json.dumps(proven()).encode())
        finally:
            os._exit(0)

    def _hear_proof(self) -> None:
        assert self._proving is not None
        data = os.read(self._proving, MAX_LINE_BYTES)
        self._proof += data
        if data and len(self._proof) <= MAX_LINE_BYTES:
            return
        os.close(self._proving)
        self._proving = None
        try:
            self._say(proven=json.loads(bytes(self._proof)))
        except ValueError:
            self._say(proven={})
        self._proof.clear()

    def _become_worker(self, channel: int, stderr: int) -> None:
        """In the child: never returns."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(stderr, 1)
            os.dup2(stderr, 2)
            os.close(stderr)
            self._forget_the_parent()
            code = _run(channel)
        finally:
            with suppress(OSError, ValueError):
                sys.stderr.flush()
            os._exit(code)

    def _forget_the_parent(self) -> None:
        """Close what belongs to the forkserver: its socket, its pipe, fds of other starts."""
        null = os.open(os.devnull, os.O_RDONLY)
        self._daemon.close()
        os.dup2(null, 0)
        for fd in (null, self._wake_read, self._wake_write, *self._fds):
            os.close(fd)

    def _reap(self) -> None:
        while self._workers:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            name = self._workers.pop(pid, None)
            if not name:
                continue
            ended = os.waitstatus_to_exitcode(status)
            killed = ended < 0
            self._say(
                exited=name,
                pid=pid,
                code=None if killed else ended,
                signal=-ended if killed else None,
            )

    def _kill_all(self) -> None:
        for pid in self._workers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self._workers:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)

    def _say(self, **values: Any) -> None:
        with suppress(OSError):
            self._daemon.sendall(json.dumps(values).encode() + b"\n")


def _run(channel: int) -> int:
    # Late: the forkserver's own module must load before torch does, to say when torch is ready.
    from stage_runtime.channel import Channel  # noqa: PLC0415
    from stage_runtime.worker import run_worker  # noqa: PLC0415

    return run_worker(Channel(channel, channel))


def main() -> None:
    """Preload, then serve the socket on fd 0."""
    started = time.monotonic()
    daemon = socket.socket(fileno=0)
    # It warns at import of a package that would fetch kernels from a hub.
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    for name in PRELOADED:
        importlib.import_module(name)
    # What is loaded stays shared with the workers: the collector must not touch, and copy, it.
    gc.collect()
    gc.freeze()
    Forkserver(daemon).serve(time.monotonic() - started)


if __name__ == "__main__":
    main()
