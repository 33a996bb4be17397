"""Links of a stage over ZeroMQ, fellow to fellow: CURVE, one DEALER a side.

Stage k + 1 binds, stage k dials. A stage opens its socket before it knows its neighbours (nobody
is let in yet), tells the leader where it listens, and connects once the leader names them:

    name = LinkName(order.job_id, order.attempt, order.stage, neighbour=order.stage)
    links = PipelineLinks.open(name, order.num_stages, start.listen_address)
    links.endpoint                 # -> StageBound(public_key, endpoints)
    links.connect(worker_links.links, relay_host)
    ...                            # hand `links` to stage_runtime.process_group.make_group
    links.close()

All calls come from one thread, the one that trains.
"""

import ipaddress
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import zmq

from transport.candidates import MESH_MARK, Candidate, told_endpoint
from transport.errors import SwarmError
from transport.keys import KeyPair, new_key_pair
from transport.link import Link, LinkName
from transport.orders import Links, Neighbour, RelayRoute
from transport.pieces import MAX_FRAME_BYTES, FrameSizes
from transport.porter import Porter
from transport.reach import Reach, Reached, Ways
from transport.zap import (
    CURVE_BYTES,
    ZapHandler,
    answer_socket,
    bind_socket,
    dial_socket,
)
from transport.zmq_wire import ZmqWire

MAX_ENDPOINTS: Final = 8
BIND_AGAIN_S: Final = 2.0
PORT_HELD_S: Final = 10.0
"""How long a port of the owner's choice is waited for: a worker that must go has 5 s."""
RELAYED_GRACE_S: Final = 60.0
"""How long a link that may go through a relay may be down: the relay, or its leader, restarts."""
RELAYED_AGAIN_MS: Final = 50
OnPath = Callable[[Link, Reached], None]


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
    relayed_grace_s: float = RELAYED_GRACE_S
    """The same, where there is a relay to fall back on."""
    max_frame_bytes: int = MAX_FRAME_BYTES
    more_addresses: Sequence[str] = ()
    """Listened on beside the first where that is possible; "mesh+ADDRESS" on a mesh interface."""
    listen_port: int = 0
    """0 = a free one. Another may still be held by the attempt before: it is waited for."""
    announced: Sequence[str] = ()
    """Told to neighbours instead of the addresses that it listens on."""
    on_path: OnPath | None = None
    """Hears, in the links' thread, how a neighbour is reached: on every change and now and then."""
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
        self._bound_at: list[str] = []
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
            self._bound = self._bind(f"tcp://{_host(listen_address)}")
            port = _port_of(self._bound)
            # Not as ZeroMQ tells it: it writes an IPv4 address as IPv6.
            self._bound_at = [told_endpoint(listen_address, port)]
            self._bound_at += self._listen_more(self._bound, port)
            endpoints = list(self._options.announced[:MAX_ENDPOINTS]) or self._bound_at
        self.endpoint = Endpoint(self._keys.public, endpoints)

    def _bind(self, address: str) -> zmq.Socket[Any]:
        options, deadline = self._options, time.monotonic() + PORT_HELD_S
        where = f"{address}:{options.listen_port or '*'}"
        while True:
            try:
                return bind_socket(
                    self.zap, self._keys, self._domain, where, options.max_frame_bytes
                )
            except SwarmError as error:
                is_held = isinstance(error.__cause__, zmq.ZMQError) and options.listen_port
                if not is_held or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _listen_more(self, socket: zmq.Socket[Any], port: int) -> list[str]:
        """Bind the other addresses too; one that has gone since it was told is left out."""
        endpoints = []
        for told in self._options.more_addresses[: MAX_ENDPOINTS - 1]:
            address = told.removeprefix(MESH_MARK)
            for try_port in (str(port), "*"):
                with suppress(zmq.ZMQError, SwarmError):
                    socket.bind(f"tcp://{_host(address)}:{try_port}")
                    endpoints.append(
                        told_endpoint(address, _port_of(socket), is_mesh=address != told)
                    )
                    break
        return endpoints

    def connect(
        self, links: Links, relay_host: str = "", max_frame_bytes: int | None = None
    ) -> None:
        """Let the previous stage in and dial the next one. Returns at once.

        Args:
            relay_host: where a relay is whose route names no host: the leader's.
            max_frame_bytes: the largest frame that the plan lets cross, now that it is known.

        Raises:
            SwarmError: invalid-input when the neighbours are not this stage's; unavailable when
                another program has taken this stage's port meanwhile.
        """
        assert not self._is_connected, "an attempt's links are connected once"
        self._check(links.previous, self.name.stage - 1, self.name.stage > 0)
        self._check(links.next, self.name.stage + 1, self.name.stage < self.num_stages - 1)
        self._is_connected = True
        if max_frame_bytes is not None:
            self._options = replace(self._options, max_frame_bytes=max_frame_bytes)
            self._bind_again(max_frame_bytes)
        if links.next is not None:
            self.next = self._dialling(links.next, relay_host)
        if links.previous is not None:
            self.previous = self._answering(links.previous, relay_host)

    def _bind_again(self, max_frame_bytes: int) -> None:
        """ZeroMQ holds a bound socket to the limits that it was bound with."""
        if self._bound is None:
            return
        self._bound.maxmsgsize = max_frame_bytes + CURVE_BYTES
        for told in self._bound_at:
            endpoint = told.removeprefix(MESH_MARK)
            self._bound.unbind(endpoint)
            _bind_soon(self._bound, endpoint)

    def _dialling(self, neighbour: Neighbour, relay_host: str) -> Link:
        limit = self._options.max_frame_bytes

        def dial() -> zmq.Socket[Any]:
            return dial_socket(self.zap, self._keys, neighbour.public_key, limit)

        ways = Ways(
            candidates=[Candidate.read(one) for one in neighbour.endpoints[:MAX_ENDPOINTS]],
            dial=lambda: ZmqWire(dial(), is_bound=False),
            relay=_relayed(dial, neighbour.relay, relay_host),
        )
        return self._link(neighbour, ways)

    def _answering(self, neighbour: Neighbour, relay_host: str) -> Link:
        assert self._bound is not None
        limit = self._options.max_frame_bytes

        def answer() -> zmq.Socket[Any]:
            return answer_socket(self.zap, self._keys, self._domain, limit)

        bound, self._bound = ZmqWire(self._bound, is_bound=True), None
        self.zap.allow(self._domain, neighbour.public_key)
        ways = Ways(bound=bound, relay=_relayed(answer, neighbour.relay, relay_host))
        return self._link(neighbour, ways)

    def _link(self, neighbour: Neighbour, ways: Ways) -> Link:
        options = self._options
        name = LinkName(self.name.job_id, self.name.attempt, self.name.stage, neighbour.stage)
        grace_s = options.reconnect_grace_s
        if ways.relay is not None:
            grace_s = max(grace_s, options.relayed_grace_s)
        sizes = FrameSizes(options.max_frame_bytes)
        link = Link(name, None, reconnect_grace_s=grace_s, sizes=sizes, clock=options.clock)
        on_path = options.on_path
        if on_path is not None:
            ways = replace(ways, tell=lambda reached: on_path(link, reached))
        link.upkeep = Reach(link, ways)
        return link

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


def _relayed(
    socket: Callable[[], zmq.Socket[Any]], route: RelayRoute | None, relay_host: str
) -> Callable[[], ZmqWire] | None:
    """What opens a socket that dials the neighbour through the relay; None without one."""
    host = (route.host or relay_host) if route is not None else ""
    if route is None or not host:
        return None

    def open_wire() -> ZmqWire:
        porter = Porter(host, route.port, route.ticket)
        dealer = socket()
        # The porter's door opens when the relay has joined both ends: then at once.
        dealer.reconnect_ivl, dealer.reconnect_ivl_max = RELAYED_AGAIN_MS, 0
        wire = ZmqWire(dealer, is_bound=False, porter=porter)
        wire.dial(porter.endpoint)
        return wire

    return open_wire


def _bind_soon(socket: zmq.Socket[Any], endpoint: str) -> None:
    """Bind what was unbound just now: ZeroMQ lets go of it in a thread of its own."""
    deadline = time.monotonic() + BIND_AGAIN_S
    while True:
        try:
            socket.bind(endpoint)
            return
        except zmq.ZMQError as error:
            if time.monotonic() > deadline:
                raise SwarmError(
                    "unavailable",
                    f"cannot listen on {endpoint} again: {error}",
                    hint="start the job again",
                ) from error
            time.sleep(0.005)


def _port_of(socket: zmq.Socket[Any]) -> int:
    """Where it was bound last."""
    return int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])


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
