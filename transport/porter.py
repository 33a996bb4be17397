"""The way of one link through a relay: dials it, shows the ticket, and joins it to ZeroMQ's socket.

ZeroMQ has a SOCKS client of its own. But libzmq 4.3.5 ends the whole process when a socket is
closed whose dial by SOCKS has failed and waits to be tried again ("Bad file descriptor"): it gives
back a handle that it gave back before. So the dial is made here, and ZeroMQ connects to a socket
inside this machine, which is there only while the relay has joined both ends. Knows nothing of
frames and keys: what it passes on is ciphertext.
"""

import os
import platform
import secrets
import socket
import struct
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

CONNECT_S: Final = 10.0
PAIRED_S: Final = 70.0
"""A relay holds its answer back until the other end has come, at most a minute."""
MEET_S: Final = 5.0
"""ZeroMQ tries again every tenth of a second; past this it is not there any more."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
BLOCK: Final = 1 << 18
IS_LINUX: Final = platform.system() == "Linux"
"""Which has socket names outside the file system, and tells who is at the other end."""
_HELLO: Final = b"\x05\x01\x00"
_WELCOME: Final = b"\x05\x00"
_REPLY_BYTES: Final = 10
_CREDENTIALS: Final = struct.Struct("3i")


class Porter:
    """One door. Runs until `close`, through every failure of the relay.

    Args:
        host, port: of the relay.
        ticket: which link and side this is.
    """

    def __init__(self, host: str, port: int, ticket: str) -> None:
        self.trouble = ""
        """Why the relay has not joined the two ends, as far as known."""
        self._relay = (host, port)
        self._request = b"\x05\x01\x00\x03" + bytes([len(ticket)]) + ticket.encode() + b"\x00\x01"
        self._folder: str | None = None
        self._address = self._free_address()
        self._is_closed = threading.Event()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._passes = False
        self._thread = threading.Thread(target=self._run, name="porter", daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        """What ZeroMQ connects to."""
        return f"ipc://{self._address.replace(chr(0), '@')}"

    def close(self) -> None:
        """Dial no more; what passes now ends when ZeroMQ's socket does. Idempotent, never waits."""
        self._end(cuts=False)

    def cut(self) -> None:
        """Dial no more, and let nothing pass from now on. Idempotent, never waits."""
        self._end(cuts=True)

    def _end(self, *, cuts: bool) -> None:
        self._is_closed.set()
        with self._lock:
            for one in self._open if cuts or not self._passes else ():
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        if self._folder is not None:
            with suppress(OSError):
                Path(self._address).unlink(missing_ok=True)
                Path(self._folder).rmdir()

    def _free_address(self) -> str:
        """A name that exists nowhere else; of the file system where there are no others."""
        if IS_LINUX:
            return f"\0swarm-{secrets.token_hex(16)}"
        self._folder = tempfile.mkdtemp(prefix="swarm-")
        return str(Path(self._folder) / "relay")

    def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._is_closed.is_set():
            try:
                self._pass_once()
                pause_s = FIRST_PAUSE_S
            except OSError as error:
                self.trouble = f"relay {self._relay[0]}:{self._relay[1]}: {_in_words(error)}"
            self._is_closed.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _pass_once(self) -> None:
        """From a dial to the end of what passes."""
        far = socket.create_connection(self._relay, CONNECT_S)
        self._note(far)
        try:
            far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._show_ticket(far)
            near = self._meet()
            try:
                self.trouble = ""
                self._join(near, far)
            finally:
                self._drop(near)
        finally:
            self._drop(far)

    def _show_ticket(self, far: socket.socket) -> None:
        far.sendall(_HELLO)
        if _exactly(far, len(_WELCOME)) != _WELCOME:
            raise ConnectionRefusedError("it is no relay")
        far.sendall(self._request)
        self.trouble = "the neighbour has not come to the relay"
        far.settimeout(PAIRED_S)
        if _exactly(far, _REPLY_BYTES)[1]:
            raise ConnectionRefusedError("it refuses the ticket")

    def _meet(self) -> socket.socket:
        """ZeroMQ's connection, from this very process."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
            self._note(door)
            try:
                door.bind(self._address)
                door.listen(4)
                door.settimeout(MEET_S)
                while True:
                    near, _ = door.accept()
                    if _is_ours(near):
                        self._note(near)
                        return near
                    near.close()
            finally:
                self._drop(door)
                if self._folder is not None:
                    Path(self._address).unlink(missing_ok=True)

    def _join(self, near: socket.socket, far: socket.socket) -> None:
        """Pass on both ways until one side has ended."""
        for one in (near, far):
            one.settimeout(None)
        with self._lock:
            if self._is_closed.is_set():
                return
            self._passes = True
        back = threading.Thread(target=_pump, args=(far, near), name="porter-back", daemon=True)
        back.start()
        _pump(near, far)
        back.join()
        with self._lock:
            self._passes = False

    def _note(self, one: socket.socket) -> None:
        """Keep it for whoever ends this porter; past its end it is closed here."""
        with self._lock:
            if self._is_closed.is_set():
                one.close()
                raise ConnectionAbortedError("closed")
            self._open.add(one)

    def _drop(self, one: socket.socket) -> None:
        with self._lock:
            self._open.discard(one)
        one.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    """One direction. ZeroMQ never closes half of a connection: when one way ends, both do."""
    block = memoryview(bytearray(BLOCK))
    with suppress(OSError):
        while size := source.recv_into(block):
            target.sendall(block[:size])
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


def _exactly(far: socket.socket, size: int) -> bytes:
    told = b""
    while len(told) < size:
        more = far.recv(size - len(told))
        if not more:
            raise ConnectionResetError("it closed the connection")
        told += more
    return told


def _is_ours(near: socket.socket) -> bool:
    """Whether this process is at the other end, where the system tells."""
    if not IS_LINUX:
        return True
    told = near.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(told)[0] == os.getpid())


def _in_words(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    return error.strerror or str(error) or type(error).__name__
