"""The process group: equal to one process, closed to everything unplanned, stopped at once."""

import pickle  # noqa: TID251 (a hostile neighbour's weapon)
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from math import isnan
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from stage_runtime.causes import Paused, find_cause
from stage_runtime.process_group import (
    SwarmGroup,
    TensorKind,
    install,
)
from tests.unit.stage_runtime.pipeline_run import Outcome, Task, run_alone, run_pipeline
from transport.errors import SwarmError
from transport.frames import VOTE, Direction, FrameRefused, Header, Kind
from transport.go_back_n import WINDOW_FRAMES
from transport.link import Link, LinkFailed, LinkName
from transport.loopback import Line

JOB = "j-aaaabbbb"
KIND = TensorKind(torch.float32, (2, 3))
FLOATS = Header(
    Kind.DATA, b"", 0, step=1, direction=Direction.FORWARD, dtype="float32", shape=(2, 3)
)
A_VOTE = replace(FLOATS, step=0, micro_batch=VOTE, dtype="int32", shape=(1,))


# --- real processes ---


@pytest.mark.parametrize(
    "task",
    [
        Task(num_stages=2, micro_batches=4),
        Task(num_stages=3, micro_batches=4, dtype=torch.bfloat16),
        Task(num_stages=3, micro_batches=2, schedule="gpipe"),
    ],
    ids=["2 stages", "3 stages bfloat16", "3 stages, 2 micro-batches"],
)
def test_a_pipeline_trains_exactly_as_one_process_does(task: Task) -> None:
    alone, apart = run_alone(task), run_pipeline(task)
    for one, other in zip(alone, apart, strict=True):
        assert other is not None
        assert other.error == ""
        assert (other.losses, other.evaluations) == (one.losses, one.evaluations)
        assert other.digest == one.digest
        assert other.sent_bytes > 0
        assert other.wait_s > 0


def test_a_killed_stage_stops_the_others() -> None:
    outcomes = run_pipeline(Task(num_stages=3, dies_in_step=2, grace_s=0.5))
    first, died, last = outcomes
    assert died is None
    for outcome in (first, last):
        assert isinstance(outcome, Outcome)
        assert "stage 1 closed and did not come back within 0.5 s" in outcome.error
        assert outcome.took_s < 10


# --- groups over loopback lines, in this process ---


@dataclass
class TwinLinks:
    """What PipelineLinks is, over loopback wires."""

    previous: Link | None = None
    next: Link | None = None

    def close(self, drain_s: float = 2.0) -> None:
        for link in (self.previous, self.next):
            if link is not None:
                link.close(drain_s)


def chain(num_stages: int, timeout_s: float = 10.0) -> list[SwarmGroup]:
    """The groups of a pipeline, all in this process; none is torch's default."""
    links = [TwinLinks() for _ in range(num_stages)]
    for stage in range(num_stages - 1):
        line = Line()
        links[stage].next = Link(LinkName(JOB, 1, stage, stage + 1), line.ends[0])
        links[stage + 1].previous = Link(LinkName(JOB, 1, stage + 1, stage), line.ends[1])
    return [
        SwarmGroup(stage, num_stages, links[stage], [KIND], timeout_s)
        for stage in range(num_stages)
    ]


def at_once(actions: list[Callable[[], Any]]) -> list[Any]:
    """Each in a thread of its own; their results, or the first error."""
    with ThreadPoolExecutor(len(actions)) as pool:
        return [future.result(20) for future in [pool.submit(action) for action in actions]]


@pytest.fixture
def pair() -> Iterator[tuple[SwarmGroup, SwarmGroup]]:
    near, far = chain(2)
    yield near, far
    near.close(0)
    far.close(0)


@pytest.mark.parametrize("num_stages", [1, 2, 4])
def test_an_exchange_adds_in_stage_order_and_gives_all_the_same_bits(num_stages: int) -> None:
    groups = chain(num_stages)
    values = [[0.1 * (stage + 1), 1e16 if stage == 0 else 1.0] for stage in range(num_stages)]
    told = at_once([partial(g.exchange, v) for g, v in zip(groups, values, strict=True)])
    expected = values[0]
    for more in values[1:]:
        expected = [one + other for one, other in zip(expected, more, strict=True)]
    assert told == [expected] * num_stages
    for group in groups:
        group.close(0)


def test_an_exchange_passes_what_is_not_a_number(pair: tuple[SwarmGroup, SwarmGroup]) -> None:
    near, far = pair
    nan = float("nan")
    for totals in at_once([lambda: near.exchange([nan, 1]), lambda: far.exchange([1, 1])]):
        assert isnan(totals[0])
        assert totals[1] == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8])
def test_a_tensor_of_any_planned_dtype_arrives_bit_for_bit(dtype: torch.dtype) -> None:
    near, far = chain(2)
    kind = TensorKind(dtype, (3, 5))
    near._boundaries = far._boundaries = frozenset([kind])
    values = (torch.randn(3, 5) * 100).to(dtype)
    sent = values.clone()
    assert near.send([sent.t().contiguous().t()], 1, 0).wait()
    sent.zero_()  # a sent tensor is free to change at once
    received = torch.empty(5, 3, dtype=dtype).t()
    assert far.recv([received], 0, 0).wait()
    assert torch.equal(received, values)
    for group in (near, far):
        group.close(0)


def test_a_sender_far_ahead_waits_for_the_consumer(pair: tuple[SwarmGroup, SwarmGroup]) -> None:
    near, far = pair
    works = [near.send([torch.zeros(2, 3)], 1, 0) for _ in range(WINDOW_FRAMES + 1)]
    assert works[WINDOW_FRAMES - 1].wait()
    assert not works[WINDOW_FRAMES].is_completed()

    def consume() -> bool:
        return all(far.recv([torch.empty(2, 3)], 0, 0).wait() for _ in range(WINDOW_FRAMES + 1))

    assert at_once([works[WINDOW_FRAMES].wait, consume]) == [True, True]


def test_a_failure_told_by_another_thread_ends_a_wait_at_once(
    pair: tuple[SwarmGroup, SwarmGroup],
) -> None:
    near, far = pair
    work = far.recv([torch.empty(2, 3)], 0, 0)
    error = SwarmError("internal", "the card is lost")
    timer = threading.Timer(0.1, far.fail, [error])
    began = time.monotonic()
    timer.start()
    with pytest.raises(SwarmError) as refusal:
        work.wait()
    assert refusal.value is error
    assert time.monotonic() - began < 2
    timer.join()
    for later in (work.wait, far.check, lambda: far.recv([torch.empty(2, 3)], 0, 0)):
        with pytest.raises(SwarmError) as refusal:
            later()
        assert refusal.value is error
    assert far.wait_s > 0.05

    # The neighbour is told why.
    with pytest.raises(LinkFailed) as echo:
        near.recv([torch.empty(2, 3)], 1, 0).wait()
    assert echo.value.message == "stage 1 stopped: the card is lost"
    assert echo.value.facts["echo"] is True


def test_a_pause_runs_along_the_chain_and_the_first_error_stays() -> None:
    groups = chain(3)
    groups[1].pause("job j-aaaabbbb was cancelled")
    groups[1].fail(SwarmError("internal", "later"))
    with pytest.raises(Paused):
        groups[1].check()
    for end in (0, 2):
        with pytest.raises(LinkFailed) as refusal:
            groups[end].check()
        assert "stage 1 stopped: paused: job j-aaaabbbb was cancelled" in refusal.value.message
    for group in groups:
        group.close()


def test_a_wait_that_takes_too_long_says_for_what() -> None:
    near, far = chain(2, timeout_s=0.05)
    far.begin_step(7)
    far.recv([torch.empty(2, 3)], 0, 0)
    work = far.recv([torch.empty(2, 3)], 0, 0)
    with pytest.raises(LinkFailed) as refusal:
        work.wait()
    for word in (
        "activations of micro-batch 1 of step 7",
        "stage 0",
        "waited 0.",
        "frame 0",
        "UTC",
    ):
        assert word in refusal.value.message
    for group in (near, far):
        group.close(0)


def test_a_neighbour_that_ended_in_order_is_not_waited_for(
    pair: tuple[SwarmGroup, SwarmGroup],
) -> None:
    near, far = pair
    near.send([torch.ones(2, 3)], 1, 0)
    near.close(0)
    there = torch.empty(2, 3)
    assert far.recv([there], 0, 0).wait()
    assert torch.equal(there, torch.ones(2, 3))
    with pytest.raises(LinkFailed) as refusal:
        far.recv([torch.empty(2, 3)], 0, 0).wait()
    assert "stage 0 has ended" in refusal.value.message


# --- a hostile neighbour ---


@pytest.fixture
def attacked() -> Iterator[tuple[Link, SwarmGroup]]:
    """A link held by hand as stage 0, and the group of stage 1 in step 1."""
    line = Line()
    group = SwarmGroup(1, 2, TwinLinks(Link(LinkName(JOB, 1, 1, 0), line.ends[1])), [KIND], 2.0)
    group.begin_step(1)
    hostile = Link(LinkName(JOB, 1, 0, 1), line.ends[0])
    yield hostile, group
    hostile.close()
    group.close(0)


@pytest.mark.parametrize(
    "header",
    [
        replace(FLOATS, dtype="float64", shape=(1, 3)),
        replace(FLOATS, dtype="bfloat16", shape=(2, 6)),
        replace(FLOATS, shape=(3, 2)),
        replace(FLOATS, shape=(2, 300_000)),
        replace(FLOATS, step=2),
        replace(FLOATS, step=0),
        replace(FLOATS, micro_batch=1),
        replace(FLOATS, direction=Direction.BACKWARD),
        replace(FLOATS, kind=Kind.CONTROL, dtype="float64", shape=(3,)),
        replace(FLOATS, dtype="int64", shape=(1,)),
        replace(FLOATS, dtype="uint8", shape=(160,)),
        replace(A_VOTE, step=1),
    ],
    ids=lambda header: (
        f"{header.kind.name} {header.dtype}{header.shape} step {header.step} "
        f"{header.direction.name} {header.micro_batch}"
    ),
)
def test_a_frame_that_is_not_the_planned_one_is_refused_and_changes_nothing(
    attacked: tuple[Link, SwarmGroup], header: Header
) -> None:
    hostile, group = attacked
    target = torch.full((2, 3), 7.0)
    work = group.recv([target], 0, 0)
    hostile.send(header, bytes(header.payload_bytes))
    with pytest.raises(FrameRefused):
        work.wait()
    assert torch.equal(target, torch.full((2, 3), 7.0))
    with pytest.raises(FrameRefused):
        group.send([target], 0, 0)
    hostile.service()
    assert hostile.failure is not None
    assert "refused" in hostile.failure.message


@pytest.mark.parametrize("vote", [0, 2, -1])
def test_a_vote_other_than_1_is_refused(attacked: tuple[Link, SwarmGroup], vote: int) -> None:
    hostile, group = attacked
    work = group.recv([torch.zeros(1, dtype=torch.int32)], 0, 0)
    hostile.send(replace(A_VOTE, step=1), vote.to_bytes(4, "little", signed=True))
    with pytest.raises(FrameRefused, match="votes"):
        work.wait()


def test_this_stage_s_own_vote_for_dynamic_shapes_is_refused(
    pair: tuple[SwarmGroup, SwarmGroup],
) -> None:
    with pytest.raises(FrameRefused, match="this stage votes 0"):
        pair[0].send([torch.zeros(1, dtype=torch.int32)], 1, 0)


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(1, dtype=torch.int64), torch.zeros(160, dtype=torch.uint8), torch.zeros(3, 2)],
    ids=["metadata size", "metadata", "other shape"],
)
@pytest.mark.parametrize("way", ["send", "recv"])
def test_the_engine_cannot_move_what_the_plan_does_not_announce(
    pair: tuple[SwarmGroup, SwarmGroup], tensor: Tensor, way: str
) -> None:
    with pytest.raises(FrameRefused, match="does not announce"):
        getattr(pair[0], way)([tensor], 1, 0)


@pytest.mark.parametrize("attempt", [1, 3], ids=["older", "newer"])
def test_frames_of_another_attempt_never_reach_the_stage(attempt: int) -> None:
    line = Line()
    link = Link(LinkName(JOB, 2, 1, 0), line.ends[1])
    group = SwarmGroup(1, 2, TwinLinks(link), [KIND], 0.1)
    hostile = Link(LinkName(JOB, attempt, 0, 1), line.ends[0])
    target = torch.full((2, 3), 7.0)
    work = group.recv([target], 0, 0)
    hostile.send(replace(FLOATS, step=0), bytes(24))
    with pytest.raises(LinkFailed, match="waited"):
        work.wait()
    assert link.counts.fenced_frames >= 1
    assert torch.equal(target, torch.full((2, 3), 7.0))
    group.close(0)


class CreatesAFile:
    """Runs when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_the_engine_unpickles_nothing_that_a_neighbour_sends(tmp_path: Path) -> None:
    """Under other backends this very exchange runs the neighbour's code."""
    proof = tmp_path / "executed"
    weapon = pickle.dumps(CreatesAFile(proof))
    assert weapon
    line = Line()
    group = SwarmGroup(1, 2, TwinLinks(Link(LinkName(JOB, 1, 1, 0), line.ends[1])), [KIND], 2.0)
    install(group)
    stage = PipelineStage(
        nn.Linear(3, 3),
        1,
        2,
        torch.device("cpu"),
        input_args=torch.zeros(2, 3, requires_grad=True),
        output_args=torch.zeros(2, 3),
        group=group,
    )
    schedule = ScheduleGPipe(stage, 1, loss_fn=lambda out, target: out.sum(), scale_grads=False)
    hostile = Link(LinkName(JOB, 1, 0, 1), line.ends[0])
    hostile.send(A_VOTE, (0).to_bytes(4, "little"))
    hostile.send(replace(A_VOTE, micro_batch=0, dtype="int64"), len(weapon).to_bytes(8, "little"))
    hostile.send(replace(A_VOTE, micro_batch=0, dtype="uint8", shape=(len(weapon),)), weapon)
    with pytest.raises(Exception) as caught:
        schedule.step(target=torch.zeros(2, 3))
    assert isinstance(find_cause(caught.value), FrameRefused)
    assert not proof.exists()
    pickle.loads(weapon)
    assert proof.exists()  # the weapon was live
    hostile.close()
    group.close(0)
    assert not dist.is_initialized()
