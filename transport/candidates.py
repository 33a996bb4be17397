"""The addresses of a neighbour, tried at once: which answer, which is best, why others are not it.

A trial is a bare TCP connection that says nothing and is closed again. What answers is then dialled
in earnest; only CURVE shows whether it is the neighbour. Knows nothing of ZeroMQ and of relays.
"""

import errno
import ipaddress
import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from transport.cards import PathKind
from transport.errors import SwarmError

RANKS: Final[dict[PathKind, int]] = {
    "local": 0, "lan": 1, "mesh": 2, "public": 3, "direct": 4, "relay": 9, "none": 10,
}  # fmt: skip
"""Best first."""
TRIAL_S: Final = 3.0
BETTER_S: Final = 0.25
"""How long a better address may still answer after a worse one has."""
_MESH_NETS: Final = (
    ipaddress.ip_network("100.64.0.0/10"),  # Tailscale, and any carrier's own network
    ipaddress.ip_network("fd7a:115c:a1e0::/48"),  # Tailscale
)
MESH_MARK: Final = "mesh+"
_WORDS: Final = {
    errno.ECONNREFUSED: "nothing listens there",
    errno.EHOSTUNREACH: "no route to it",
    errno.ENETUNREACH: "no route to its network",
    errno.ETIMEDOUT: "no answer",
    errno.ECONNRESET: "it closed at once",
    errno.EACCES: "a filter here forbids it",
    errno.EPERM: "a filter here forbids it",
}


def kind_of(address: str) -> PathKind:
    """What an IP address says of the way to it.

    Raises:
        ValueError: not an IP address.
    """
    found = ipaddress.ip_address(address)
    if found.is_loopback:
        return "local"
    if any(found in net for net in _MESH_NETS if net.version == found.version):
        return "mesh"
    return "lan" if found.is_private or found.is_link_local else "public"


def told_endpoint(address: str, port: int, *, is_mesh: bool = False) -> str:
    """An endpoint as a stage tells it: "tcp://HOST:PORT", "mesh+tcp://…" for a mesh interface."""
    host = f"[{address}]" if ":" in address else address
    return f"{MESH_MARK if is_mesh else ''}tcp://{host}:{port}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One address of a neighbour."""

    kind: PathKind
    host: str
    port: int

    @property
    def endpoint(self) -> str:
        """For ZeroMQ."""
        return told_endpoint(self.host, self.port)

    @classmethod
    def read(cls, told: str) -> "Candidate":
        """From what the neighbour told.

        Raises:
            SwarmError: invalid-input; it is no address of ours.
        """
        plain = told.removeprefix(MESH_MARK)
        host, _, port = plain.removeprefix("tcp://").rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        try:
            kind = kind_of(host)
            number = int(port)
            if not plain.startswith("tcp://") or not 0 < number < 65536:
                raise ValueError(port)
        except ValueError:
            raise SwarmError(
                "invalid-input",
                f"a neighbour's address {told[:80]!r} is none",
                hint="run the same version of Swarm on every fellow",
            ) from None
        return cls("mesh" if plain != told else kind, host, number)


@dataclass(eq=False)
class _Trial:
    candidate: Candidate
    probe: socket.socket | None = None
    has_answered: bool = False
    why: str = ""
    """Why it is not the way in this round; "" while that is open."""
    told: str = ""
    """The same, of the last round that knew."""


class Trials:
    """One round of trying all addresses of a neighbour.

    Args:
        candidates: best first among those of a kind.
        clock: monotonic seconds.
    """

    def __init__(
        self, candidates: Sequence[Candidate], clock: Callable[[], float] = time.monotonic
    ) -> None:
        ordered = sorted(candidates, key=lambda one: RANKS[one.kind])
        self._trials = [_Trial(one) for one in ordered]
        self._clock = clock
        self._began_at = self._answered_at = 0.0
        self._epoll = select.epoll()

    @property
    def pollable(self) -> int:
        """A file descriptor that is readable while a trial has an outcome to be taken."""
        return self._epoll.fileno()

    @property
    def is_over(self) -> bool:
        """Whether no address is left that could be the way."""
        return all(trial.why for trial in self._trials)

    def why_not(self, better_than: Candidate | None) -> str:
        """Why the better addresses (all of them: None) were not taken; "" when there are none."""
        told = []
        for trial in self._trials:
            if trial.candidate == better_than:
                break
            one = trial.candidate
            told.append(f"{one.kind} {one.host}: {trial.why or trial.told or 'slower to answer'}")
        return "; ".join(told)

    def begin(self) -> None:
        """Start a new round: dial all at once."""
        self.stop()
        self._began_at = self._clock()
        self._answered_at = 0.0
        for trial in self._trials:
            trial.has_answered, trial.why = False, ""
            self._dial(trial)

    def stop(self) -> None:
        """Give up what is under way."""
        for trial in self._trials:
            self._hang_up(trial)

    def close(self) -> None:
        """Stop for good."""
        self.stop()
        self._epoll.close()

    def best(self, wait_s: float = 0.0) -> Candidate | None:
        """The best address that has answered, once no better one may still do so.

        Args:
            wait_s: how long to wait for an outcome, at most.
        """
        deadline = time.monotonic() + wait_s
        self._take(0.0)
        while True:
            found, left_s = self._chosen(), deadline - time.monotonic()
            if found is not None or self.is_over or left_s <= 0:
                return found
            # A worse address that has answered is taken once the better ones had their time.
            self._take(min(left_s, BETTER_S / 4))

    def rule_out(self, candidate: Candidate, why: str) -> None:
        """It answered, and was not the way after all."""
        for trial in self._trials:
            if trial.candidate == candidate:
                trial.why = trial.told = why

    def _dial(self, trial: _Trial) -> None:
        one = trial.candidate
        family = socket.AF_INET6 if ":" in one.host else socket.AF_INET
        try:
            trial.probe = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            outcome = trial.probe.connect_ex((one.host, one.port))
        except OSError as error:
            outcome = error.errno or errno.EINVAL
        if outcome not in (0, errno.EINPROGRESS):
            self._fail(trial, outcome)
            return
        assert trial.probe is not None
        self._epoll.register(trial.probe, select.EPOLLOUT)

    def _take(self, wait_s: float) -> None:
        ready = {fd for fd, _ in self._epoll.poll(wait_s)}
        for trial in self._trials:
            if trial.probe is not None and trial.probe.fileno() in ready:
                outcome = trial.probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if outcome:
                    self._fail(trial, outcome)
                else:
                    trial.has_answered = True
                    self._answered_at = self._answered_at or self._clock()
                    self._hang_up(trial)
            elif trial.probe is not None and self._clock() - self._began_at > TRIAL_S:
                self._fail(trial, errno.ETIMEDOUT)

    def _chosen(self) -> Candidate | None:
        may_wait = self._answered_at and self._clock() - self._answered_at < BETTER_S
        for trial in self._trials:
            if trial.why:
                continue
            if trial.has_answered:
                return trial.candidate
            if may_wait:
                return None
        return None

    def _fail(self, trial: _Trial, number: int) -> None:
        trial.why = trial.told = _WORDS.get(number) or os.strerror(number).lower()
        self._hang_up(trial)

    def _hang_up(self, trial: _Trial) -> None:
        if trial.probe is None:
            return
        with suppress(OSError, ValueError):
            self._epoll.unregister(trial.probe)
        trial.probe.close()
        trial.probe = None
