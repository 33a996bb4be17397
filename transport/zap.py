"""Who may connect: the one ZAP handler of a process's ZeroMQ context, and sockets that obey it.

A CURVE server without a live handler lets every key in, and an exception in a callback can kill a
handler for good (notes of both were measured). So the sockets are made here and nowhere else: a
socket is not bound without a live handler, its domain is enforced, and no exception ends the loop.
Source: ZeroMQ RFC 27 (ZAP), RFC 26 (CurveZMQ).
"""

import logging
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import zmq
from zmq.utils import z85

from transport.errors import SwarmError
from transport.keys import KeyPair, check_public_key

log = logging.getLogger(__name__)

_ADDRESS: Final = "inproc://zeromq.zap.01"
_START_TIMEOUT_S: Final = 5.0
CURVE_BYTES: Final = 33
"""What CURVE adds to a message: libzmq's limit counts it (measured with libzmq 4.3.5)."""
MAX_COUNTED_KEYS: Final = 1024
HANDSHAKE_MS: Final = 5_000
HEARTBEAT_MS: Final = 500
HEARTBEAT_TIMEOUT_MS: Final = 2_500
RECONNECT_MS: Final = 50
RECONNECT_MAX_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the handler says of one handshake."""

    status: str
    text: str
    user_id: str = ""


class ZapHandler:
    """Answers every handshake of one context from a map in memory: domain -> allowed keys."""

    def __init__(self, context: zmq.Context[zmq.Socket[Any]]) -> None:
        self.context = context
        self.refusals: Counter[str] = Counter()
        """Refused handshakes per client key (Z85), or per mechanism where there is none."""
        self._allowed: dict[str, frozenset[str]] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def is_alive(self) -> bool:
        """Whether handshakes are being answered."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Begin to answer.

        Raises:
            SwarmError: conflict; this context has a handler already.
        """
        socket = self.context.socket(zmq.REP)
        socket.linger = 0
        try:
            socket.bind(_ADDRESS)
        except zmq.ZMQError as error:
            socket.close()
            raise SwarmError(
                "conflict",
                f"this ZeroMQ context has a ZAP handler already ({error})",
                hint="use that handler; there is one for each context",
            ) from error
        self._thread = threading.Thread(target=self._run, args=(socket,), name="zap", daemon=True)
        self._thread.start()

    def wait_for_end(self, timeout_s: float) -> bool:
        """Whether the handler ends within timeout_s; it does when its context is terminated."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return not self.is_alive

    def allow(self, domain: str, *public_keys: str) -> None:
        """From now on exactly these keys may connect to sockets of `domain`."""
        keys = frozenset(check_public_key(key) for key in public_keys)
        with self._lock:
            self._allowed[domain] = keys

    def judge(self, request: list[bytes]) -> Verdict:
        """The verdict on the frames of one request, after its version and id."""
        _, _, domain, _address, _identity, mechanism, *credentials = request
        if mechanism != b"CURVE" or len(credentials) != 1:
            return self._refuse(mechanism.decode("ascii", "replace"), "only CURVE is spoken")
        key = z85.encode(credentials[0]).decode("ascii")
        with self._lock:
            allowed = self._allowed.get(domain.decode("utf-8", "replace"), frozenset())
        if key in allowed:
            return Verdict("200", "OK", key)
        return self._refuse(key, "unknown key" if allowed else "nobody is let in yet")

    def _refuse(self, who: str, why: str) -> Verdict:
        if who not in self.refusals and len(self.refusals) >= MAX_COUNTED_KEYS:
            who = "others"
        if not self.refusals[who]:  # a refused client dials again and again: one line a key
            # A neighbour that loaded faster dials before this stage knows him: nothing to warn of.
            level = logging.DEBUG if why == "nobody is let in yet" else logging.WARNING
            log.log(level, "connection refused: %s", why, extra={"key": who})
        self.refusals[who] += 1
        return Verdict("400", why)

    def _run(self, socket: zmq.Socket[Any]) -> None:
        with socket:
            while True:
                try:
                    request = socket.recv_multipart()
                except zmq.ContextTerminated:
                    return
                except zmq.ZMQError as error:  # the next request may be read again
                    log.warning("ZAP request unreadable: %s", error)
                    continue
                self._answer(socket, request)

    def _answer(self, socket: zmq.Socket[Any], request: list[bytes]) -> None:
        try:
            is_known = len(request) >= 6 and request[0] == b"1.0"
            verdict = self.judge(request) if is_known else Verdict("500", "not ZAP 1.0")
        except Exception:
            log.exception("ZAP handler failed on one request; the client is refused")
            verdict = Verdict("500", "internal")
        request_id = request[1] if len(request) > 1 else b""
        told = (verdict.status, verdict.text, verdict.user_id)
        try:
            socket.send_multipart([b"1.0", request_id, *(s.encode() for s in told), b""])
        except zmq.ContextTerminated:
            return


def bind_socket(
    handler: ZapHandler, keys: KeyPair, domain: str, address: str, max_frame_bytes: int
) -> zmq.Socket[Any]:
    """A DEALER bound to `address` ("tcp://HOST:*") that lets in only the keys allowed in `domain`.

    Raises:
        SwarmError: unavailable; no live handler, or the address cannot be bound.
    """
    socket = answer_socket(handler, keys, domain, max_frame_bytes)
    socket.immediate = False
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        socket.close()
        raise SwarmError(
            "unavailable",
            f"cannot listen on {address}: {error}",
            hint="check that the fellow's listen address belongs to this machine",
        ) from error
    return socket


def answer_socket(
    handler: ZapHandler, keys: KeyPair, domain: str, max_frame_bytes: int
) -> zmq.Socket[Any]:
    """A DEALER in CURVE's server role that is not bound: the caller connects it to a porter.

    Raises:
        SwarmError: unavailable; no live handler.
    """
    assert domain, "an empty domain is never enforced"
    if not handler.is_alive:
        raise SwarmError(
            "unavailable",
            "no ZAP handler is running: a socket opened now would let every key in",
            hint="start the handler of this context first",
        )
    socket = _dealer(handler, keys, max_frame_bytes)
    socket.curve_server = True
    socket.zap_domain = domain.encode()
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    socket.immediate = True  # nothing is queued for a connection that does not stand
    return socket


def dial_socket(
    handler: ZapHandler, keys: KeyPair, server_key: str, max_frame_bytes: int
) -> zmq.Socket[Any]:
    """A DEALER that will talk only to the holder of `server_key`; the caller connects it."""
    socket = _dealer(handler, keys, max_frame_bytes)
    socket.setsockopt_string(zmq.CURVE_SERVERKEY, check_public_key(server_key))
    socket.immediate = True  # nothing is queued for a connection that does not stand
    return socket


def _dealer(handler: ZapHandler, keys: KeyPair, max_frame_bytes: int) -> zmq.Socket[Any]:
    socket = handler.context.socket(zmq.DEALER)
    socket.setsockopt_string(zmq.CURVE_PUBLICKEY, keys.public)
    socket.setsockopt_string(zmq.CURVE_SECRETKEY, keys.secret)
    socket.linger = 0
    socket.ipv6 = True
    # A finite mark would silently drop frames of a connected slow peer; the link's window bounds.
    # A finite mark for receiving can end the process: libzmq 4.3.5 aborts ("!_io_error") when a
    # peer goes whose frames wait at the mark. So a link drops who sends past its window.
    socket.sndhwm = socket.rcvhwm = 0
    socket.handshake_ivl = HANDSHAKE_MS
    socket.heartbeat_ivl = HEARTBEAT_MS
    socket.heartbeat_timeout = socket.heartbeat_ttl = HEARTBEAT_TIMEOUT_MS
    socket.reconnect_ivl = RECONNECT_MS
    socket.reconnect_ivl_max = RECONNECT_MAX_MS
    socket.maxmsgsize = max_frame_bytes + CURVE_BYTES
    return socket
