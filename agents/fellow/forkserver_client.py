"""Keeps one warm process with torch loaded, and has each worker forked from it.

Speaks the forkserver's lines: {"start": name} with two descriptors goes out; ready, started and
exited come back, and proven to {"prove": true}. When the forkserver dies its workers are ended with
it, and the next start brings up a new one. Does not know orders.
"""

import asyncio
import contextlib
import json
import logging
import signal
from collections.abc import Sequence
from typing import Any

from agents.fellow.channel import Channel, pair
from agents.fellow.launcher import (
    FORKSERVER,
    STDERR_LINE_BYTES,
    Ended,
    Process,
    child_environment,
    send_with_handles,
)
from transport.errors import SwarmError

# Importing torch, transformers and peft took 4-16 s on two cores; a cold disk needs far longer.
_READY_S = 180.0
_STARTED_S = 20.0
_PROVEN_S = 120.0

log = logging.getLogger("swarm.fellow")


class Forkserver:
    """One running forkserver process."""

    def __init__(self, child: asyncio.subprocess.Process, channel: Channel, printed: Channel):
        self._child = child
        self._channel = channel
        self._printed = printed
        self._ready: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._proven: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._starting: dict[str, asyncio.Future[int]] = {}
        self._running: dict[str, Process] = {}
        self._early: dict[str, Ended] = {}
        self._last_words: list[str] = []
        self._tasks = [
            asyncio.create_task(self._listen(), name="forkserver"),
            asyncio.create_task(self._read_printed(), name="forkserver's stderr"),
        ]

    @classmethod
    async def start(cls, command: Sequence[str] = FORKSERVER) -> "Forkserver":
        """Start the process; it gets ready in the background."""
        channel, theirs = pair()
        printed, their_stderr = pair(STDERR_LINE_BYTES)
        try:
            child = await asyncio.create_subprocess_exec(
                *command,
                stdin=theirs.fileno(),
                stdout=their_stderr.fileno(),
                stderr=their_stderr.fileno(),
                env=child_environment(),
                start_new_session=True,
            )
        except OSError as error:
            channel.close()
            printed.close()
            raise SwarmError(
                "unavailable", f"the forkserver could not be started: {error.strerror}"
            ) from None
        finally:
            theirs.close()
            their_stderr.close()
        return cls(child, channel, printed)

    @property
    def is_alive(self) -> bool:
        """Whether it can still start workers."""
        return self._child.returncode is None and not self._tasks[0].done()

    async def fork(self, name: str) -> Process:
        """Have one worker forked.

        Raises:
            SwarmError: unavailable when the forkserver is not ready, or died, in time.
        """
        await self._wait_for(asyncio.shield(self._ready), _READY_S, "did not get ready")
        channel, theirs = pair()
        printed, their_stderr = pair(STDERR_LINE_BYTES)
        started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._starting[name] = started
        pid = 0
        try:
            handles = (theirs.fileno(), their_stderr.fileno())
            with contextlib.suppress(OSError):  # then nothing is started, and the wait says so
                send_with_handles(self._channel.socket, json.dumps({"start": name}), handles)
            pid = await self._wait_for(started, _STARTED_S, f"did not start {name}")
        finally:
            theirs.close()
            their_stderr.close()
            self._starting.pop(name, None)
            if not pid:
                channel.close()
                printed.close()
        return self._keep(name, Process(pid, channel, printed))

    async def prove(self) -> Any:
        """What its self-tests of number formats found, as it printed it.

        Raises:
            SwarmError: unavailable when it does not answer in time.
        """
        await self._wait_for(asyncio.shield(self._ready), _READY_S, "did not get ready")
        await self._channel.send(json.dumps({"prove": True}))
        return await self._wait_for(asyncio.shield(self._proven), _PROVEN_S, "proved nothing")

    async def close(self) -> None:
        """Hang up: it ends its children and itself; killed when it does not."""
        self._channel.close()
        try:
            async with asyncio.timeout(2.0):
                await self._child.wait()
        except TimeoutError:
            self._child.kill()
            await self._child.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._printed.close()

    def _keep(self, name: str, process: Process) -> Process:
        early = self._early.pop(name, None)
        if early is not None:
            process.has_ended(early)
        elif not self.is_alive:
            self._end_with_server(process)
        else:
            self._running[name] = process
        return process

    async def _wait_for(self, what: "asyncio.Future[Any]", limit_s: float, how: str) -> Any:
        try:
            async with asyncio.timeout(limit_s):
                return await what
        except TimeoutError:
            raise SwarmError(
                "unavailable", f"the forkserver {how} within {limit_s:.0f} s"
            ) from None

    async def _listen(self) -> None:
        async for line in self._channel.lines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                self._take(json.loads(line))
        await self._child.wait()
        self._died()

    def _take(self, told: dict[str, Any]) -> None:
        if "ready" in told:
            if not self._ready.done():
                self._ready.set_result(float(told.get("preload_s", 0.0)))
                log.info("forkserver ready", extra={"preload_s": told.get("preload_s")})
        elif "proven" in told:
            if not self._proven.done():
                self._proven.set_result(told["proven"])
        elif "started" in told:
            waiting = self._starting.get(told["started"])
            if waiting is not None and not waiting.done():
                waiting.set_result(int(told["pid"]))
        elif "refused" in told:
            waiting = self._starting.get(told["refused"])
            if waiting is not None and not waiting.done():
                why = f"the forkserver refused: {told.get('why', 'it did not say why')}"
                waiting.set_exception(SwarmError("unavailable", why))
        elif "exited" in told:
            how = Ended(told.get("code"), told.get("signal"))
            process = self._running.pop(told["exited"], None)
            if process is None:
                self._early[told["exited"]] = how
            else:
                process.has_ended(how)

    def _died(self) -> None:
        words = self._last_words[-1] if self._last_words else ""
        log.warning("forkserver ended", extra={"code": self._child.returncode, "last": words})
        error = SwarmError(
            "unavailable",
            f"the forkserver ended with code {self._child.returncode}" + (words and f": {words}"),
            hint="see the fellow's log; `swarm doctor` checks that torch can be imported",
        )
        waiting: list[asyncio.Future[Any]] = [self._ready, self._proven, *self._starting.values()]
        for one in waiting:
            if not one.done():
                one.set_exception(error)
        for one in (self._ready, self._proven):
            one.exception()  # seen: nobody may be waiting for it
        for process in self._running.values():
            self._end_with_server(process)
        self._running.clear()

    @staticmethod
    def _end_with_server(process: Process) -> None:
        # Its parent is gone, so nobody can reap it for us: make sure, and say what is known.
        process.signal(signal.SIGKILL)
        process.has_ended(Ended(None, None))

    async def _read_printed(self) -> None:
        async for line in self._printed.lines():
            self._last_words = [*self._last_words[-4:], line]
            log.info("forkserver says", extra={"text": line})


class WarmLauncher:
    """Starts workers from a forkserver that is kept ready."""

    def __init__(self, command: Sequence[str] = FORKSERVER) -> None:
        self._command = tuple(command)
        self._server: Forkserver | None = None
        self._lock = asyncio.Lock()

    async def warm_up(self) -> None:
        """Start the forkserver unless it runs."""
        async with self._lock:
            if self._server is not None and self._server.is_alive:
                return
            if self._server is not None:
                await self._server.close()
            self._server = await Forkserver.start(self._command)

    async def launch(self, name: str, threads: int) -> Process:
        """Have a worker forked; the worker takes its number of threads from its order."""
        await self.warm_up()
        assert self._server is not None
        return await self._server.fork(name)

    async def prove(self) -> Any:
        """What the self-tests of number formats found (see agents.fellow.proof).

        Raises:
            SwarmError: unavailable when the forkserver does not get ready, or does not answer.
        """
        await self.warm_up()
        assert self._server is not None
        return await self._server.prove()

    async def close(self) -> None:
        """End the forkserver."""
        async with self._lock:
            if self._server is not None:
                await self._server.close()
                self._server = None
