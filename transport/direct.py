"""Links of a stage over ZeroMQ, fellow to fellow: CURVE, one DEALER a side.

Stage k + 1 binds, stage k dials. A stage opens its socket before it knows its neighbours (nobody
is let in yet), tells the leader where it listens, and connects once the leader names them:

    name = LinkName(order.job_id, order.attempt, order.stage, neighbour=order.stage)
    links = PipelineLinks.open(name, order.num_stages, start.listen_address)
    links.endpoint                 # -> StageBound(public_key, endpoints)
    links.connect(worker_links.links)
    ...                            # hand `links` to stage_runtime.process_group.make_group
    links.close()

All calls come from one thread, the one that trains.
"""

import ipaddress
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

import zmq
from zmq.utils.monitor import recv_monitor_message

from transport.errors import SwarmError
from transport.frames import HEADER_BYTES, Buffer
from transport.keys import KeyPair, new_key_pair
from transport.link import Change, Link, LinkName, Pollable
from transport.orders import Links, Neighbour
from transport.zap import ZapHandler, bind_socket, dial_socket

MAX_FRAME_BYTES: Final = HEADER_BYTES + 1_000_000_000
CANDIDATE_S: Final = 3.0
"""How long one of several addresses of a neighbour is tried before the next."""
REFUSED_S: Final = 0.2
"""How long after a refusal the neighbour is dialled again."""
_EVENTS: Final = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


class DirectWire:
    """One DEALER as a wire: frames, and the neighbour's connections as its monitor tells them."""

    needs_crc = False  # CURVE's Poly1305 covers every byte

    def __init__(self, socket: zmq.Socket[Any], *, is_bound: bool) -> None:
        self.trouble = "the neighbour has not connected yet"
        self._socket = socket
        self._monitor = socket.get_monitor_socket(_EVENTS)
        self._is_bound = is_bound
        self._is_up = False
        self._is_refused = False
        self._neighbour_fds: set[int] = set()
        self._closed_fds: set[int] = set()
        """Were the neighbour's; frames that came on them may still wait to be read."""
        self._candidates: list[str] = []
        self._dialled: str | None = None
        self._dialled_at = 0.0
        self._is_closed = False

    @property
    def pollables(self) -> list[Pollable]:
        """The socket and its monitor."""
        return [self._socket, self._monitor]

    def dial(self, endpoints: Iterable[str]) -> None:
        """Connect to the neighbour under the first of its addresses that answers."""
        self._candidates = list(endpoints)
        self._dial_next()

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
        if self._wants_other_address():
            self._dial_next()

    def close(self, linger_s: float) -> None:
        """Close socket and monitor; queued frames get up to linger_s to leave."""
        if self._is_closed:
            return
        self._is_closed = True
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=round(linger_s * 1000))

    def _can_send(self) -> bool:
        return bool(int(self._socket.events) & zmq.POLLOUT)

    def _wants_other_address(self) -> bool:
        if self._dialled is None or self._is_up:
            return False
        # libzmq dials again by itself, but not after a refusal; and a neighbour that has not yet
        # been told of this stage refuses it. (Status 300 would leave both waiting for 5 s.)
        limit_s = REFUSED_S if self._is_refused else CANDIDATE_S
        may_help = len(self._candidates) > 1 or self._is_refused
        return may_help and time.monotonic() - self._dialled_at > limit_s

    def _dial_next(self) -> None:
        if self._dialled is not None:
            self._socket.disconnect(self._dialled)
        self._dialled = self._candidates[0]
        self._candidates.append(self._candidates.pop(0))
        self._dialled_at = time.monotonic()
        self._is_refused = False
        self._socket.connect(self._dialled)

    def _changes(self) -> Iterator[Change]:
        while self._monitor.poll(0):
            message = recv_monitor_message(self._monitor)
            match message["event"]:
                case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    self._closed_fds.clear()
                    yield self._turn(is_up=True)
                case zmq.EVENT_DISCONNECTED:
                    if self._was_neighbour(message["value"]):
                        yield self._turn(is_up=False)
                case zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                    self._is_refused = True
                    self.trouble = "the neighbour refuses this stage's key"
                case _ if not self._is_bound:
                    self._is_refused = True
                    self.trouble = "what answers there is not the neighbour"
        # Closed before its first frame had shown its descriptor: then nothing can be sent.
        if self._is_bound and self._is_up and not self._can_send():
            yield self._turn(is_up=False)

    def _turn(self, *, is_up: bool) -> Change:
        self._is_up = is_up
        self.trouble = "" if is_up else "its connection closed"
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


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How this stage is recognised and reached: what StageBound tells the leader."""

    public_key: str
    endpoints: list[str]
    """ZeroMQ addresses of its socket; empty for the first stage, which only dials."""


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """Limits of a stage's links."""

    reconnect_grace_s: float = 5.0
    max_frame_bytes: int = MAX_FRAME_BYTES
    clock: Callable[[], float] = time.monotonic


class PipelineLinks:
    """The links of one stage in one attempt: to the stage before it and to the one after.

    Owns the process's ZeroMQ context and ZAP handler. `previous` and `next` are None at the ends
    of the pipeline, and before `connect`.
    """

    def __init__(self, name: LinkName, num_stages: int, options: LinkOptions) -> None:
        """Use `open`. name.neighbour is not read."""
        self.previous: Link | None = None
        self.next: Link | None = None
        self.num_stages = num_stages
        self.name = name
        self.endpoint = Endpoint("", [])
        self.zap = ZapHandler(zmq.Context(io_threads=1))
        self._keys: KeyPair = new_key_pair()
        self._options = options
        self._bound: zmq.Socket[Any] | None = None
        self._domain = f"{name.job_id}/{name.attempt}/{name.stage - 1}"
        self._is_connected = False

    @classmethod
    def open(
        cls,
        name: LinkName,
        num_stages: int,
        listen_address: str,
        options: LinkOptions | None = None,
    ) -> Self:
        """Make a key pair and, but for the first stage, bind a socket that lets nobody in yet.

        Args:
            name: LinkName(job_id, attempt, stage, neighbour=stage).
            num_stages: of the pipeline.
            listen_address: an IP address of this machine; the port is the system's choice.
            options: limits; the defaults hold for every job.

        Raises:
            SwarmError: invalid-input for what is no IP address, unavailable if it cannot be bound.
        """
        links = cls(name, num_stages, options or LinkOptions())
        try:
            links._listen(listen_address)
        except BaseException:
            links.close()
            raise
        return links

    def _listen(self, listen_address: str) -> None:
        self.zap.start()
        endpoints: list[str] = []
        if self.name.stage > 0:
            self.zap.allow(self._domain)
            address = f"tcp://{_host(listen_address)}:*"
            self._bound = bind_socket(
                self.zap, self._keys, self._domain, address, self._options.max_frame_bytes
            )
            endpoints = [self._bound.getsockopt_string(zmq.LAST_ENDPOINT)]
        self.endpoint = Endpoint(self._keys.public, endpoints)

    def connect(self, links: Links) -> None:
        """Let the previous stage in and dial the next one. Returns at once.

        Raises:
            SwarmError: invalid-input when the neighbours are not this stage's.
        """
        assert not self._is_connected, "an attempt's links are connected once"
        self._check(links.previous, self.name.stage - 1, self.name.stage > 0)
        self._check(links.next, self.name.stage + 1, self.name.stage < self.num_stages - 1)
        self._is_connected = True
        if links.next is not None:
            socket = dial_socket(
                self.zap, self._keys, links.next.public_key, self._options.max_frame_bytes
            )
            wire = DirectWire(socket, is_bound=False)
            wire.dial(links.next.endpoints)
            self.next = self._link(links.next.stage, wire)
        if links.previous is not None:
            assert self._bound is not None
            wire = DirectWire(self._bound, is_bound=True)
            self._bound = None
            self.zap.allow(self._domain, links.previous.public_key)
            self.previous = self._link(links.previous.stage, wire)

    def close(self, drain_s: float = 2.0) -> None:
        """Close both links, waiting up to drain_s for each neighbour to confirm what was sent.

        Idempotent. Takes at most 2 * drain_s + 1 s.
        """
        links = [link for link in (self.previous, self.next) if link is not None]
        for link in links:  # so that the neighbours' own drains do not wait for each other
            link.acknowledge()
        for link in links:
            link.close(drain_s)
        if self._bound is not None:
            self._bound.close(linger=0)
            self._bound = None
        self.zap.context.term()

    def _link(self, neighbour: int, wire: DirectWire) -> Link:
        name = LinkName(self.name.job_id, self.name.attempt, self.name.stage, neighbour)
        options = self._options
        return Link(name, wire, reconnect_grace_s=options.reconnect_grace_s, clock=options.clock)

    def _check(self, neighbour: Neighbour | None, stage: int, is_due: bool) -> None:
        found = None if neighbour is None else neighbour.stage
        if found != (stage if is_due else None) or (
            neighbour is not None and stage > self.name.stage and not neighbour.endpoints
        ):
            raise SwarmError(
                "invalid-input",
                f"stage {self.name.stage} of {self.num_stages} cannot have neighbour "
                f"{found} where stage {stage if is_due else None} belongs",
                hint="send the links of this stage, with the addresses of the one it dials",
            )


def _host(listen_address: str) -> str:
    """The address as it stands in an endpoint: IPv6 in brackets."""
    try:
        address = ipaddress.ip_address(listen_address)
    except ValueError:
        raise SwarmError(
            "invalid-input",
            f"{listen_address!r} is not an IP address",
            hint="give the fellow the IP address under which its neighbours reach it",
        ) from None
    return f"[{address}]" if address.version == 6 else str(address)
