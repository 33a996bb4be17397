"""The c10d process group over which torch's pipelining engine talks to the neighbouring stages.

Only send and recv exist, each to the stage before or after this one. Every tensor is held against
the plan before a byte of it is used: dtype, shape, step, micro-batch and direction must be the
expected ones. Metadata tensors (int64, uint8), from which the engine would unpickle a neighbour's
bytes, are in no plan; a shape vote other than 1 is an error. Does not know models or schedules.

    links = PipelineLinks.open(LinkName(job_id, attempt, stage, stage), num_stages, "127.0.0.1")
    ... report links.endpoint, receive Links ...
    links.connect(neighbours)
    group = make_group(order, links, [TensorKind(torch.float32, (B, T, D))])
    stage = PipelineStage(module, order.stage, order.num_stages, device, input_args=...,
                          output_args=..., group=group)   # static examples, requires_grad set
    for step in ...:
        group.begin_step(step)                    # before every schedule.step() and .eval()
        schedule.step(...)
        totals = group.exchange([squared_norm, num_non_finite, loss_sum, num_tokens])
        report(group.marks.lap())
    group.close()

In the forward and backward of a stage call `group.check()` between blocks: it serves the links
and raises when the run must stop. From other threads only `fail` and `pause` may be called.
All failures are SwarmError; once failed, every later call raises the first error again.
"""

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from struct import pack, unpack
from typing import Final, NamedTuple

import torch
import torch.distributed as dist
import zmq
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from stage_runtime.awaited import (
    Awaited,
    NeighbourLinks,
    Peer,
    RecvWork,
    SendWork,
    describe,
    difference,
    too_late,
)
from stage_runtime.causes import Paused
from stage_runtime.codecs.crossing import Crossing, is_of_tokens, slices
from stage_runtime.marks import CONTROL, TRANSFER, WAIT, Marks
from stage_runtime.tensor_bytes import DTYPE_NAMES, bytes_of, fill
from transport.errors import SwarmError
from transport.frames import BASIS, MAX_CONTROL_VALUES, VOTE, Direction, FrameRefused, Header, Kind
from transport.link import Link, LinkFailed, poller_of
from transport.orders import StageOrder

BACKEND: Final = "swarm"
_POLL_S: Final = 0.25
"""The longest single poll: how late a grace period that ends unseen is noticed."""


class TensorKind(NamedTuple):
    """A dtype and shape that may cross a boundary, as activation and as gradient."""

    dtype: torch.dtype
    shape: tuple[int, ...]


_VOTE_KIND: Final = TensorKind(torch.int32, (1,))


class SwarmGroup(dist.ProcessGroup):
    """A process group of one pipeline; rank = stage. Made by `make_group`.

    Args:
        stage, num_stages: rank and size.
        links: owned from now on.
        boundaries: every kind of tensor that the plan lets across this stage's boundaries.
        link_timeout_s: the longest wait for one frame.
    """

    def __init__(
        self,
        stage: int,
        num_stages: int,
        links: NeighbourLinks,
        boundaries: Collection[TensorKind],
        link_timeout_s: float,
    ) -> None:
        super().__init__(stage, num_stages)  # type: ignore[call-arg]  # torch's stub lacks this one
        self._stage, self._num_stages = stage, num_stages
        self._links = links
        self._boundaries = frozenset(boundaries)
        self._timeout_s = link_timeout_s
        self._peers: dict[int, Peer] = {}
        self._add(links.previous, stage - 1, Direction.FORWARD, Direction.BACKWARD)
        self._add(links.next, stage + 1, Direction.BACKWARD, Direction.FORWARD)
        self._step = 0
        self.marks = Marks()
        self._wait_s = 0.0
        self.moved = 0
        """Blocks computed and frames received: what another thread sees of this one's progress."""
        self.block_s, self._looked_at = 0.0, time.monotonic()
        """The longest time from one check to the next without a wait: how late a stop is seen."""
        self._waiting: tuple[Callable[[], str], int, datetime] | None = None
        self._lock = threading.Lock()
        self._error: SwarmError | None = None
        self._has_told = False
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller, self._polled = zmq.Poller(), -1
        self._is_closed = False
        # Work that needs no neighbour, while a gradient is awaited; False when there is none.
        self.while_waiting: Callable[[], bool] | None = None

    def _add(self, link: Link | None, stage: int, inward: Direction, outward: Direction) -> None:
        if link is not None:
            self._peers[stage] = Peer(link, stage, inward, outward)

    # --- what the engine calls ---

    def getBackendName(self) -> str:  # noqa: N802 (torch's name)
        """The name under which torch knows this group."""
        return BACKEND

    def shutdown(self) -> None:
        """torch calls this when it destroys the group; `close` does the work."""

    def send(self, tensors: list[Tensor], dst: int, tag: int) -> dist.Work:
        """Queue one planned tensor for a neighbour. The tensor is free to change at once.

        Raises:
            SwarmError: the group has failed, or the tensor is not in the plan.
        """
        self._raise_if_failed()
        peer, (tensor,) = self._peers[dst], tensors
        header = self._header(tensor, peer, peer.outward)
        if header.micro_batch == VOTE:
            self._check_vote(int(tensor.item()), "this stage")
            return SendWork(self, peer, peer.link.send(header, bytes_of(tensor)))
        peer.num_sent += 1
        if is_of_tokens(tensor.shape):
            peer.count(header.payload_bytes, sent=True, step=self._step)
        with self.marks.of(TRANSFER):
            payload = peer.crossing.encode(tensor.detach())
            return SendWork(self, peer, peer.link.send(header, payload))

    def recv(self, tensors: list[Tensor], src: int, tag: int) -> dist.Work:
        """Post a receive of one planned tensor from a neighbour; frames match in posting order.

        Raises:
            SwarmError: the group has failed, or the tensor is not in the plan.
        """
        self._raise_if_failed()
        peer, (tensor,) = self._peers[src], tensors
        header = self._header(tensor, peer, peer.inward)
        peer.num_received += header.micro_batch != VOTE
        crossing = peer.crossing

        def take(payload: memoryview) -> None:
            if header.micro_batch == VOTE:
                fill(tensor.detach(), payload)
                self._check_vote(int(tensor.item()), f"stage {src}")
                return
            if is_of_tokens(tensor.shape):
                peer.count(len(payload), sent=False, step=header.step)
            crossing.decode(payload, tensor.detach())

        awaited = Awaited(header, take)
        peer.awaited.append(awaited)
        return RecvWork(self, peer, awaited)

    # --- what the stage calls ---

    def begin_step(self, step: int) -> None:
        """Count micro-batches from 0; frames carry this step from now on.

        Call it on every stage with the same number, before each `schedule.step` and `.eval`
        (an evaluation repeats the number of the step it follows).
        """
        self._looked_at = time.monotonic()  # what lay between the steps is no block
        self.check()
        self._step = step
        for peer in self._peers.values():
            peer.num_received = peer.num_sent = 0

    def exchange(self, values: Sequence[float], timeout_s: float | None = None) -> list[float]:
        """Sum float64 values over all stages: up the chain in stage order, the totals back down.

        The order of addition is ((stage 0 + stage 1) + stage 2) + ..., so every stage gets the
        same bits. NaN and infinity pass. Also a barrier: nobody leaves before all have entered.

        Args:
            values: 1..64 numbers, the same count on every stage.
            timeout_s: instead of the job's link_timeout_s, for example while others still load.
        """
        self._raise_if_failed()
        assert 0 < len(values) <= MAX_CONTROL_VALUES
        totals = [float(value) for value in values]
        before = self._peers.get(self._stage - 1)
        after = self._peers.get(self._stage + 1)
        if before:
            partial = self._receive_values(before, len(totals), timeout_s)
            totals = [theirs + ours for theirs, ours in zip(partial, totals, strict=True)]
        if after:
            self._send_values(after, totals)
            totals = self._receive_values(after, len(totals), timeout_s)
        if before:
            self._send_values(before, totals)
        return totals

    def cross(self, neighbour: int, crossing: Crossing) -> None:
        """From now on what crosses to and from this neighbour does so in this way."""
        self._peers[neighbour].crossing = crossing

    def swap(
        self, given: Mapping[int, Sequence[Tensor]], taken: Mapping[int, Sequence[Tensor]]
    ) -> None:
        """Send tensors to neighbours, and fill those that they send here. Both sides must know
        dtypes and shapes; large ones go in slices. Meant for before the first step.

        Raises:
            SwarmError: the group has failed, or something else came.
        """
        self.check()
        works: list[SendWork | RecvWork] = []
        for stage, tensors in taken.items():
            peer = self._peers[stage]
            for part in slices(tensors):
                awaited = Awaited(self._basis_header(part, peer.inward), _filling(part))
                peer.before_bytes += part.nbytes
                peer.awaited.append(awaited)
                works.append(RecvWork(self, peer, awaited))
        for stage, tensors in given.items():
            peer = self._peers[stage]
            for part in slices(tensors):
                header = self._basis_header(part, peer.outward)
                peer.before_bytes += part.nbytes
                works.append(SendWork(self, peer, peer.link.send(header, bytes_of(part))))
        for work in works:
            work.wait()

    def crossed(self, neighbour: int) -> tuple[int, int, int]:
        """Bytes of activations and gradients, each frame once, without headers: sent in steps,
        received in steps, both before the first one (with the basis of the codes).
        """
        peer = self._peers[neighbour]
        return peer.sent_bytes, peer.received_bytes, peer.before_bytes

    def check(self) -> None:
        """Serve the links without waiting; raise if the run must stop. For block guards."""
        self.moved += 1
        self.block_s = max(self.block_s, time.monotonic() - self._looked_at)
        with self.marks.of(TRANSFER):
            self._serve()
        self._raise_if_failed()
        self._looked_at = time.monotonic()

    def fail(self, error: SwarmError) -> None:
        """Stop: every pending and later wait raises `error` (the first one told). Any thread."""
        with self._lock:
            if self._error is None:
                self._error = error
            if not self._is_closed:
                os.eventfd_write(self._wake_fd, 1)

    def pause(self, reason: str) -> None:
        """Stop on order: like `fail(Paused(reason))`. Any thread."""
        self.fail(Paused(reason))

    def close(self, drain_s: float = 2.0) -> None:
        """Deliver what was sent (or, after a failure, tell the neighbours why), and close.

        Takes at most 2 * drain_s + 1 s. Idempotent; destroys torch's default group if it is this.
        """
        if self._is_closed:
            return
        if self._error is not None:
            self._tell_neighbours(self._error)
        self._links.close(0.0 if self._error is not None else drain_s)
        with self._lock:
            self._is_closed = True
            if self._error is None:
                self._error = SwarmError("stage-failed", "the group is closed")
            os.close(self._wake_fd)
        if dist.is_initialized() and dist.group.WORLD is self:
            dist.destroy_process_group()

    @property
    def error(self) -> SwarmError | None:
        """The first failure, None while all is well."""
        return self._error

    engine_mark = CONTROL
    """What the engine's own time is: its waits come here, so the rest is Python."""

    @property
    def wait_s(self) -> float:
        """Seconds this stage has waited on its links since the group was made."""
        return self._wait_s

    @property
    def sent_bytes(self) -> int:
        """Whole frames handed to the links since the start, resent ones included."""
        return sum(peer.link.counts.sent_bytes for peer in self._peers.values())

    @property
    def received_bytes(self) -> int:
        """Whole frames received since the start, dropped ones included."""
        return sum(peer.link.counts.received_bytes for peer in self._peers.values())

    def wait_until(
        self,
        is_done: Callable[[], bool],
        peer: Peer,
        what: Callable[[], str],
        timeout_s: float | None = None,
    ) -> bool:
        """Serve the links until is_done; the time counts as waiting.

        Raises:
            SwarmError: the first failure, or that `what` did not come within the timeout.
        """
        start, began_at = time.monotonic(), datetime.now(UTC)
        deadline = start + (self._timeout_s if timeout_s is None else timeout_s)
        try:
            with self.marks.of(WAIT):
                while True:
                    self._serve()
                    self._raise_if_failed()
                    if is_done():
                        return True
                    left_s = deadline - time.monotonic()
                    if left_s <= 0:
                        self.fail(too_late(peer, what(), start, began_at))
                        continue
                    self._waiting = (what, peer.stage, began_at)
                    if not self._works_while(peer):
                        self._rest(min(left_s, _POLL_S))
        finally:
            self._waiting = None
            self._looked_at = time.monotonic()
            self._wait_s += self._looked_at - start

    def waits_for(self) -> str:
        """What this stage waits for, from whom and since when; "" when it does not. Any thread."""
        waiting = self._waiting
        if waiting is None:
            return ""
        what, stage, since = waiting
        return f"{what()} from stage {stage}, since {since:%H:%M:%S} UTC"

    # --- inside ---

    def _works_while(self, peer: Peer) -> bool:
        """What comes from the next stage are gradients: blocks can be made ready for them."""
        return bool(peer.stage > self._stage and self.while_waiting and self.while_waiting())

    def _header(self, tensor: Tensor, peer: Peer, direction: Direction) -> Header:
        """What the frame of this tensor says; refuses a tensor that no plan announces."""
        kind = TensorKind(tensor.dtype, tuple(tensor.shape))
        is_out = direction is peer.outward
        micro_batch = peer.num_sent if is_out else peer.num_received
        wire = kind
        if kind == _VOTE_KIND:
            micro_batch = VOTE
        elif kind not in self._boundaries:
            name = f"{str(kind.dtype).removeprefix('torch.')}{list(kind.shape)}"
            self._refuse(f"the engine asks to move {name}, which the plan does not announce")
        else:
            wire = TensorKind(*peer.crossing.on_wire(kind.dtype, kind.shape, outward=is_out))
        return Header(
            Kind.DATA, b"", 0, step=self._step, micro_batch=micro_batch, direction=direction,
            dtype=DTYPE_NAMES[wire.dtype], shape=wire.shape,
        )  # fmt: skip

    def _basis_header(self, tensor: Tensor, direction: Direction) -> Header:
        return Header(
            Kind.DATA, b"", 0, step=self._step, micro_batch=BASIS, direction=direction,
            dtype=DTYPE_NAMES[tensor.dtype], shape=tuple(tensor.shape),
        )  # fmt: skip

    def _check_vote(self, vote: int, who: str) -> None:
        if vote != 1:
            self._refuse(f"{who} votes {vote} on static shapes; only 1 is allowed")

    def _refuse(self, reason: str) -> None:
        error = FrameRefused(reason)
        self.fail(error)
        self._raise_if_failed()

    def _send_values(self, peer: Peer, values: Sequence[float]) -> None:
        header = self._control_header(peer.outward, len(values))
        peer.link.send(header, pack(f"<{len(values)}d", *values))

    def _receive_values(self, peer: Peer, count: int, timeout_s: float | None) -> list[float]:
        values: list[float] = []
        awaited = Awaited(
            self._control_header(peer.inward, count),
            lambda payload: values.extend(unpack(f"<{count}d", payload)),
        )
        peer.awaited.append(awaited)
        self.wait_until(
            lambda: awaited.is_done, peer, lambda: describe(peer, awaited.expected), timeout_s
        )
        return values

    def _control_header(self, direction: Direction, count: int) -> Header:
        return Header(
            Kind.CONTROL, b"", 0, step=self._step, direction=direction,
            dtype="float64", shape=(count,),
        )  # fmt: skip

    def _serve(self) -> None:
        """Move frames; a failure of a link or a refused frame becomes the group's error."""
        if self._error is not None:
            return
        try:
            for peer in self._peers.values():
                peer.link.service()
                self._deliver(peer)
                if peer.link.failure is not None:
                    raise peer.link.failure
                if peer.awaited and peer.link.has_left:
                    raise LinkFailed(
                        f"stage {peer.stage} has ended; this stage still needs "
                        f"{describe(peer, peer.awaited[0].expected)}"
                    )
        except SwarmError as error:
            self.fail(error)

    def _deliver(self, peer: Peer) -> None:
        while peer.awaited and (frame := peer.link.receive()) is not None:
            awaited = peer.awaited.popleft()
            other = difference(frame.header, awaited.expected)
            if other:
                raise FrameRefused(
                    f"stage {peer.stage} sent {other} where "
                    f"{describe(peer, awaited.expected)} was due"
                )
            with self.marks.of(TRANSFER):
                awaited.take(frame.payload)
            awaited.is_done = True
            self.moved += 1

    def _rest(self, seconds: float) -> None:
        """Sleep until a link or another thread has something, telling what was used up first."""
        for peer in self._peers.values():
            peer.link.acknowledge()
        wires = sum(peer.link.version for peer in self._peers.values())
        if wires != self._polled:
            links = (peer.link for peer in self._peers.values())
            self._poller, self._polled = poller_of(links, self._wake_fd), wires
        try:
            self._poller.poll(round(seconds * 1000) + 1)
        except zmq.ZMQError as error:
            raise LinkFailed(f"the links cannot be polled: {error}") from error

    def _raise_if_failed(self) -> None:
        if self._error is None:
            return
        self._tell_neighbours(self._error)
        raise self._error

    def _tell_neighbours(self, error: SwarmError) -> None:
        if not self._has_told:
            self._has_told = True
            for peer in self._peers.values():
                peer.link.pause(error.message)


def make_group(
    order: StageOrder, links: NeighbourLinks, boundaries: Collection[TensorKind]
) -> SwarmGroup:
    """Make the group of a stage and install it as torch's default process group.

    Args:
        order: stage, num_stages and settings.link_timeout_s are read.
        links: connected ones (`links.connect` was called); the group closes them.
        boundaries: what may cross, normally one TensorKind: (sequences of a micro-batch,
            seq_len, hidden width) in settings.dtype.
    """
    group = SwarmGroup(
        order.stage, order.num_stages, links, boundaries, order.settings.link_timeout_s
    )
    install(group)
    return group


def install(group: SwarmGroup) -> None:
    """Make `group` torch's default process group. Nothing is exchanged with other processes."""
    dist.Backend.register_backend(
        BACKEND, lambda _options, _more: group, extended_api=True, devices=["cpu", "cuda"]
    )
    dist.init_process_group(BACKEND, store=HashStore(), rank=group.rank(), world_size=group.size())


def _filling(tensor: Tensor) -> Callable[[memoryview], None]:
    return lambda payload: fill(tensor, payload)
