"""One ZeroMQ DEALER as a wire, and the neighbour's connections as its monitor tells them.

The same for a socket that is bound, one that dials, and one that dials through a relay. Knows
nothing of frames, nor where else the neighbour could be reached.
"""

import time
from collections.abc import Iterator
from typing import Any, Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from transport.errors import SwarmError
from transport.frames import Buffer
from transport.porter import Porter
from transport.wire import Change, Pollable

REFUSED_S: Final = 0.2
"""How long after a refusal the neighbour is dialled again."""
CUT_S: Final = 1.0
"""ZeroMQ notices within milliseconds that a connection inside this machine is cut."""
_EVENTS: Final = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


class ZmqWire:
    """One DEALER as a wire: frames, and the neighbour's connections as its monitor tells them."""

    needs_crc = False  # CURVE's Poly1305 covers every byte

    def __init__(
        self, socket: zmq.Socket[Any], *, is_bound: bool, porter: Porter | None = None
    ) -> None:
        """Own a socket, and the porter that it goes through to a relay."""
        self._trouble = "the neighbour has not connected yet"
        self._porter = porter
        self._socket = socket
        self._monitor = socket.get_monitor_socket(_EVENTS)
        self._is_bound = is_bound
        self._answers = not is_bound and bool(socket.curve_server)
        """It dials, and lets in: CURVE's server role on a connecting socket."""
        self._is_up = False
        self._is_refused = False
        self._has_connection = False
        """Of one that dials: something is connected, whether it has shown its key or not."""
        self._neighbour_fds: set[int] = set()
        self._closed_fds: set[int] = set()
        """Were the neighbour's; frames that came on them may still wait to be read."""
        self.has_wrong_answer = False
        """Something answered where it dialled that is not the neighbour."""
        self._dialled: str | None = None
        self._dialled_at = 0.0
        self._is_closed = False

    @property
    def pollables(self) -> list[Pollable]:
        """The socket and its monitor."""
        return [self._socket, self._monitor]

    @property
    def trouble(self) -> str:
        """Why no connection stands, as far as known."""
        told = self._porter.trouble if self._porter is not None and not self._is_up else ""
        return told or self._trouble

    def dial(self, endpoint: str) -> None:
        """Connect to the neighbour, again and again until it answers."""
        if self._dialled is not None:
            self._socket.disconnect(self._dialled)
        self._dialled = endpoint
        self._dialled_at = time.monotonic()
        self._is_refused = False
        self._socket.connect(endpoint)

    def send(self, frame: bytearray) -> bool:
        """Hand the frame to ZeroMQ without copying it; False while no connection stands."""
        try:
            self._socket.send(frame, zmq.NOBLOCK, copy=False)
        except zmq.Again:
            # Asking for the events makes ZeroMQ notice a connection that has just come up.
            if not self._can_send():
                return False
            try:
                self._socket.send(frame, zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return False
        return True

    def events(self) -> Iterator[Change | Buffer]:
        """Connections first, so that frames of a new one come after the news of it."""
        if self._is_closed:
            return
        yield from self._changes()
        yield from self._arrivals()
        # libzmq dials again by itself, but not after a refusal; and a neighbour that has not yet
        # been told of this stage refuses it. (Status 300 would leave both waiting for 5 s.) Whom
        # this side itself refuses is no reason to dial anew: libzmq goes on by itself there.
        rested = time.monotonic() - self._dialled_at > REFUSED_S
        if self._dialled is not None and self._is_refused and not self._is_up and rested:
            self.dial(self._dialled)

    def close(self, linger_s: float) -> None:
        """Close socket and monitor; queued frames get up to linger_s to leave."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._answers:
            self._cut_handshake()
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=round(linger_s * 1000))
        if self._porter is not None:
            self._porter.close()

    def _cut_handshake(self) -> None:
        """libzmq 4.3.5 ends the process when the last word of a handshake meets a connecting socket
        that is being closed and had asked its ZAP handler before ("Transport endpoint is not
        connected"). So nothing may be on its way when it is.
        """
        deadline = time.monotonic() + CUT_S
        while time.monotonic() < deadline:
            for _ in self._changes():
                pass
            if self._is_up:  # the handshake is over
                return
            if self._porter is not None:
                self._porter.cut()
            if not self._has_connection:
                return
            self._monitor.poll(10)

    def _can_send(self) -> bool:
        return bool(int(self._socket.events) & zmq.POLLOUT)

    def _changes(self) -> Iterator[Change]:
        while self._monitor.poll(0):
            message = recv_monitor_message(self._monitor)
            match message["event"]:
                case zmq.EVENT_CONNECTED:
                    self._has_connection = True
                case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    self._closed_fds.clear()
                    yield self._turn(is_up=True)
                case zmq.EVENT_DISCONNECTED:
                    self._has_connection = False
                    if self._was_neighbour(message["value"]):
                        yield self._turn(is_up=False)
                case zmq.EVENT_HANDSHAKE_FAILED_AUTH if self._answers:
                    self._trouble = "who comes there is not the neighbour"
                case zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL if self._answers:
                    self._trouble = "its connection closed before it had shown its key"
                case zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                    self._is_refused = True
                    self._trouble = "the neighbour refuses this stage's key"
                case _ if not self._is_bound:
                    self._is_refused = self.has_wrong_answer = True
                    self._trouble = "what answers there is not the neighbour"
        # Closed before its first frame had shown its descriptor: then nothing can be sent.
        if self._is_bound and self._is_up and not self._can_send():
            yield self._turn(is_up=False)

    def _turn(self, *, is_up: bool) -> Change:
        self._is_up = is_up
        self._trouble = "" if is_up else "its connection closed"
        self._dialled_at = time.monotonic()
        return Change(is_up)

    def _was_neighbour(self, fd: int) -> bool:
        """Whether the connection that closed had been one with the neighbour.

        A bound socket is told of strangers too; only the neighbour's frames have shown which
        descriptor is his. A dialling one is told of handshakes that never succeeded.
        """
        if not self._is_bound:
            return self._is_up
        if fd not in self._neighbour_fds:
            return False
        self._neighbour_fds.discard(fd)
        self._closed_fds.add(fd)
        return True

    def _arrivals(self) -> Iterator[Change | Buffer]:
        while True:
            try:
                frame = self._socket.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            if frame.more:
                raise SwarmError("stage-failed", "a neighbour sent a message of several parts")
            if self._is_bound and (fd := frame.get(zmq.SRCFD)) not in self._closed_fds:
                self._neighbour_fds.add(fd)
                if not self._is_up:  # another connection closed, this one stands
                    yield self._turn(is_up=True)
            yield frame.buffer
