"""A TCP line that a test can cut: accepts on a port of its own and passes bytes on, both ways."""

import select
import socket
import struct
import threading


class Splice:
    """Passes connections to `port` of this machine. `cut` resets all of them."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._is_open = True
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cut(self, *, for_good: bool = False) -> None:
        """Reset every connection, losing what is under way; new ones are let in (or not)."""
        with self._lock:
            self._is_open = not for_good
            for pair in self._pairs:
                _reset(pair)
            self._pairs.clear()
        self._wake.send(b"x")

    def mend(self) -> None:
        """Let connections in again."""
        with self._lock:
            self._is_open = True

    def close(self) -> None:
        """End, within 5 s."""
        self.cut(for_good=True)
        self._wake.close()
        self._thread.join(5)
        assert not self._thread.is_alive()
        self._listener.close()
        self._woken.close()

    def _run(self) -> None:
        while True:
            with self._lock:
                routes = {one: other for pair in self._pairs for one, other in (pair, pair[::-1])}
            readable, _, _ = select.select([self._listener, self._woken, *routes], [], [])
            if self._woken in readable and not self._woken.recv(64):
                return
            if self._listener in readable:
                self._accept()
            for one in readable:
                if one in routes:
                    self._move(one, routes[one])

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        with self._lock:
            if not self._is_open:
                near.close()
                return
            self._pairs.append((near, socket.create_connection(("127.0.0.1", self._target))))

    def _move(self, one: socket.socket, other: socket.socket) -> None:
        with self._lock:
            pair = next((pair for pair in self._pairs if one in pair), None)
            if pair is None:
                return
            try:
                data = one.recv(65536)
                other.sendall(data)
            except OSError:
                data = b""
            if not data:
                self._pairs.remove(pair)
                _reset(pair)


def _reset(pair: tuple[socket.socket, socket.socket]) -> None:
    for end in pair:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.close()
