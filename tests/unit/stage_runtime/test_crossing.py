"""Tensors that cross a boundary as codes, and what a calibration sends before the first step."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from stage_runtime.codecs.crossing import SLICE_BYTES, Crossing, slices
from stage_runtime.codecs.scaled import ScaledCodec
from stage_runtime.process_group import SwarmGroup, TensorKind
from tests.unit.stage_runtime.test_process_group import KIND, at_once, chain
from transport.frames import Direction, FrameRefused, Header, Kind

CODEC = ScaledCodec(3, 8)
CODES = Header(
    Kind.DATA, b"", 0, step=1, direction=Direction.FORWARD, dtype="uint8",
    shape=(2, CODEC.row_bytes),
)  # fmt: skip


@pytest.fixture
def pair() -> Iterator[tuple[SwarmGroup, SwarmGroup]]:
    near, far = chain(2)
    near.cross(1, Crossing(CODEC, CODEC))
    far.cross(0, Crossing(CODEC, CODEC))
    yield near, far
    near.close(0)
    far.close(0)


def test_codes_cross_both_ways_and_are_counted_to_the_byte(
    pair: tuple[SwarmGroup, SwarmGroup],
) -> None:
    near, far = pair
    values = torch.tensor([[1.0, -2.0, 127.0], [0.5, 0.0, 0.25]])
    for sender, taker, to in ((near, far, 1), (far, near, 0)):
        sender.begin_step(1)
        taker.begin_step(1)
        sender.send([values], to, 0)
        arrived = torch.empty(2, 3)
        assert taker.recv([arrived], 1 - to, 0).wait()
        assert torch.allclose(arrived, values, atol=0.5)
        assert arrived[0].tolist() == [1.0, -2.0, 127.0]
    assert near.crossed(1) == far.crossed(0) == (10, 10, 0)


def test_a_vote_crosses_as_it_is_and_is_not_counted(pair: tuple[SwarmGroup, SwarmGroup]) -> None:
    near, far = pair
    near.send([torch.ones(1, dtype=torch.int32)], 1, 0)
    taken = torch.zeros(1, dtype=torch.int32)
    assert far.recv([taken], 0, 0).wait()
    assert taken.item() == 1
    assert near.crossed(1) == far.crossed(0) == (0, 0, 0)


@pytest.mark.parametrize(
    "frame",
    [
        replace(CODES, dtype="float32", shape=KIND.shape),
        replace(CODES, shape=(2, 6)),
        replace(CODES, shape=(5, 2)),
        replace(CODES, dtype="int8"),
        replace(CODES, micro_batch=1),
    ],
    ids=["plain numbers", "longer rows", "same bytes, other shape", "other dtype", "another turn"],
)
def test_what_is_not_exactly_the_planned_codes_is_refused(
    pair: tuple[SwarmGroup, SwarmGroup], frame: Header
) -> None:
    near, far = pair
    far.begin_step(1)
    next_link = near._links.next
    assert next_link is not None
    next_link.send(frame, bytes(frame.payload_bytes))
    arrived = torch.full((2, 3), 7.0)
    with pytest.raises(FrameRefused):
        far.recv([arrived], 0, 0).wait()
    assert bool((arrived == 7.0).all())


def test_the_engine_cannot_ask_for_codes_itself(pair: tuple[SwarmGroup, SwarmGroup]) -> None:
    with pytest.raises(FrameRefused):
        pair[1].recv([torch.empty(2, CODEC.row_bytes, dtype=torch.uint8)], 0, 0)


def test_a_basis_is_swapped_in_slices_while_both_sides_send(
    pair: tuple[SwarmGroup, SwarmGroup],
) -> None:
    near, far = pair
    ours = [torch.randn(3000, 1500), torch.arange(5.0)]  # 18 MB: three frames and one
    theirs = [torch.randn(7, 2)]
    taken_there = [torch.empty(3000, 1500), torch.empty(5)]
    taken_here = [torch.empty(7, 2)]
    at_once(
        [
            lambda: near.swap({1: ours}, {1: taken_here}),
            lambda: far.swap({0: theirs}, {0: taken_there}),
        ]
    )
    assert all(torch.equal(a, b) for a, b in zip(ours + theirs, taken_there + taken_here))
    assert max(part.numel() * 4 for part in slices(ours)) <= SLICE_BYTES
    assert near.crossed(1) == far.crossed(0) == (0, 0, 18_000_000 + 20 + 56)


def test_a_basis_of_another_shape_is_refused(pair: tuple[SwarmGroup, SwarmGroup]) -> None:
    near, far = pair
    # The one who refuses stands first: the other may hear of it before its own swap is over.
    with pytest.raises(FrameRefused):
        at_once(
            [
                lambda: far.swap({}, {0: [torch.zeros(5)]}),
                lambda: near.swap({1: [torch.zeros(4)]}, {}),
            ]
        )


def test_a_watch_sees_what_is_sent_before_it_is_coded() -> None:
    seen: list[torch.Tensor] = []
    crossing = Crossing(CODEC, None, seen.append)
    crossing.encode(torch.ones(2, 3))
    assert torch.equal(seen[0], torch.ones(2, 3))
    kinds = [crossing.on_wire(torch.float16, (2, 3), outward=out) for out in (True, False)]
    assert kinds == [(torch.uint8, (2, 5)), TensorKind(torch.float16, (2, 3))]
