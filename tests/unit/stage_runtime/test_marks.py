"""Marks: every moment of a stage's thread belongs to one name, and to no other."""

import time
from contextlib import AbstractContextManager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stage_runtime.marks import BACKWARD, CONTROL, FORWARD, RECOMPUTE, TRANSFER, Marks, marks_on


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_an_inner_mark_interrupts_the_outer_and_the_rest_is_control() -> None:
    hand = Hand()
    marks = Marks(hand)
    hand.now += 1
    with marks.of(BACKWARD):
        hand.now += 2
        with marks.of(RECOMPUTE):
            hand.now += 4
        hand.now += 8
    hand.now += 16
    assert marks.lap() == {CONTROL: 17.0, BACKWARD: 10.0, RECOMPUTE: 4.0}
    assert marks.lap() == {CONTROL: 0.0}


def test_a_lap_inside_a_mark_splits_it_and_an_error_ends_it() -> None:
    hand = Hand()
    marks = Marks(hand)

    def fail() -> None:
        hand.now += 1
        assert marks.lap() == {CONTROL: 0.0, TRANSFER: 1.0}
        hand.now += 2
        raise KeyError

    with pytest.raises(KeyError):
        marks.timed(TRANSFER, fail)()
    hand.now += 4
    assert marks.lap() == {TRANSFER: 2.0, CONTROL: 4.0}


@given(st.lists(st.tuples(st.sampled_from(["in", "out", "a", "b"]), st.integers(0, 9))))
def test_whatever_nests_the_marks_add_up_to_the_time_that_passed(
    moves: list[tuple[str, int]],
) -> None:
    hand = Hand()
    marks = Marks(hand)
    opened: list[AbstractContextManager[None]] = []
    for what, seconds in moves:
        hand.now += seconds
        if what == "out" and opened:
            opened.pop().__exit__(None, None, None)
        elif what != "out":
            opened.append(marks.of(what))
            opened[-1].__enter__()
    assert sum(marks.lap().values()) == sum(seconds for _, seconds in moves)


def test_a_timed_function_is_the_function_and_its_time_is_of_the_mark() -> None:
    hand = Hand()
    marks = Marks(hand)

    def add(a: int, b: int) -> int:
        hand.now += 3
        return a + b

    assert marks.timed(FORWARD, add)(2, b=3) == 5
    assert marks.lap()[FORWARD] == 3.0


def test_a_device_that_runs_behind_python_is_settled_before_its_mark_ends() -> None:
    hand, settled = Hand(), 0

    def settle() -> None:
        nonlocal settled
        settled += 1
        hand.now += 5

    marks = Marks(hand, settle)
    with marks.of(FORWARD):
        hand.now += 1
    with marks.of(TRANSFER):
        hand.now += 2
    assert marks.lap() == {CONTROL: 0.0, FORWARD: 6.0, TRANSFER: 2.0}
    assert (settled, marks.sees_blocks) == (1, False)
    assert marks_on(torch.device("cpu")).sees_blocks


def test_a_mark_costs_microseconds() -> None:
    marks, best = Marks(), float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(1000):
            with marks.of(FORWARD):
                pass
        best = min(best, (time.perf_counter() - began) / 1000)
    assert best < 20e-6
