"""The leader's own relay, a process that exists only where somebody dials it.

The leader holds the listening socket. The first dial starts the relay, and the one after its death
starts it again on the same port; meanwhile dials wait in the socket's queue. When the leader ends,
however it ends, the relay ends too. Does not know what a relay does.
"""

import asyncio
import logging
import socket
import sys

from control.settings import Settings
from transport.errors import SwarmError
from transport.relay_server import listen

log = logging.getLogger(__name__)

REST_S = 0.5
"""After a relay's death, before another is started."""
END_S = 3.0


def listen_for_relay(settings: Settings, leader_port: int) -> socket.socket | None:
    """The socket of the leader's own relay; None when it has none.

    Raises:
        SwarmError: conflict when a port that was asked for is in use.
    """
    if settings.relay != "own":
        return None
    host = settings.relay_host or settings.host
    if settings.relay_port is not None:
        return listen(host, settings.relay_port)
    if settings.port == 0 or leader_port == 65535:
        return listen(host, 0)
    try:
        return listen(host, leader_port + 1)
    except SwarmError as error:
        # Nobody asked for this port, so its loss must not keep a leader down.
        log.warning("the relay takes another port", extra={"why": error.message})
        return listen(host, 0)


class RelayProcess:
    """Starts the relay when it is dialled.

    Args:
        listener: owned from now on.
        key: shared with whoever writes tickets.
    """

    def __init__(self, listener: socket.socket, key: bytes) -> None:
        self._listener = listener
        self._key = key
        self._task: asyncio.Task[None] | None = None
        self.process: asyncio.subprocess.Process | None = None

    def start(self) -> None:
        """Begin to wait for the first dial."""
        self._task = asyncio.get_running_loop().create_task(self._keep(), name="relay")

    async def close(self) -> None:
        """End the relay and the socket."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._listener.close()

    async def _keep(self) -> None:
        while True:
            await self._dialled()
            try:
                code = await self._run()
                log.warning("the relay ended", extra={"code": code})
            except OSError as error:
                log.warning("the relay cannot be started", extra={"why": str(error)})
            await asyncio.sleep(REST_S)

    async def _dialled(self) -> None:
        loop = asyncio.get_running_loop()
        dialled = asyncio.Event()
        loop.add_reader(self._listener, dialled.set)
        try:
            await dialled.wait()
        finally:
            loop.remove_reader(self._listener)

    async def _run(self) -> int:
        number = self._listener.fileno()
        words = ["-m", "transport.relay_server", "--listen-fd", str(number)]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            pass_fds=[number],
        )
        self.process = process
        log.info("relay started", extra={"relay_pid": process.pid})
        try:
            assert process.stdin is not None
            process.stdin.write(self._key)
            return await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                try:
                    async with asyncio.timeout(END_S):
                        await process.wait()
                except TimeoutError:
                    process.kill()
                    await process.wait()
            self.process = None
