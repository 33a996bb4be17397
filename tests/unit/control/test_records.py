"""Records: the smoothed loss, the log of a job, and word to those who listen."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.job_states import MOVES, has_ended, may_move
from control.records.events import QUEUE, Events
from control.records.job_files import KEPT_LINES, JobFiles, Line, Wanted
from control.records.smoothing import debias, extend, smooth


def line(number: int, level: str = "info", stage: int = 0) -> Line:
    return Line(1.0, stage, "f-aaaaaaaa", level, f"line {number}", 1, number)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50))
def test_the_smoothed_loss_is_the_weighted_mean_of_all_losses(losses: list[float]) -> None:
    weights = [0.8 ** (len(losses) - 1 - n) for n in range(len(losses))]
    exact = sum(w * x for w, x in zip(weights, losses)) / sum(weights)
    assert smooth(losses)[-1] == pytest.approx(exact, abs=1e-6)
    mean = 0.0
    for loss in losses:
        mean = extend(mean, loss)
    assert debias(mean, len(losses)) == smooth(losses)[-1]


def test_there_is_no_smoothed_loss_before_the_first_step() -> None:
    assert debias(0.0, 0) is None


def test_a_repeated_log_line_is_the_same_line_also_after_a_restart(tmp_path: Path) -> None:
    JobFiles(tmp_path).append_lines("j-1", [line(1), line(2)])
    files = JobFiles(tmp_path)
    assert files.append_lines("j-1", [line(2), line(3)]) == [line(3)]
    assert files.read_lines("j-1", Wanted())[0] == [line(1), line(2), line(3)]


def test_a_line_cut_by_a_crash_is_left_out_and_the_next_one_is_whole(tmp_path: Path) -> None:
    JobFiles(tmp_path).append_lines("j-1", [line(1)])
    path = tmp_path / "j-1" / "log.jsonl"
    path.write_bytes(path.read_bytes() + b'{"at": 1.0, "sta')
    files = JobFiles(tmp_path)
    files.append_lines("j-1", [line(2)])
    assert JobFiles(tmp_path).read_lines("j-1", Wanted())[0] == [line(1), line(2)]


def test_the_newest_lines_are_kept_in_memory_and_on_disk(tmp_path: Path) -> None:
    files = JobFiles(tmp_path)
    for start in range(1, 3 * KEPT_LINES, 1000):
        files.append_lines("j-1", [line(start + n) for n in range(1000)])
    shown, omitted, _ = files.read_lines("j-1", Wanted(limit=10))
    assert (shown[-1], len(shown), omitted) == (line(3 * KEPT_LINES), 10, KEPT_LINES - 10)
    assert len((tmp_path / "j-1" / "log.jsonl").read_text().splitlines()) <= 2 * KEPT_LINES


def test_a_cursor_reads_every_fitting_line_once(tmp_path: Path) -> None:
    files = JobFiles(tmp_path)
    files.append_lines("j-1", [line(n, "error" if n % 2 else "debug") for n in range(1, 21)])
    seen, cursor, omitted = [], 0, 1
    while omitted:
        shown, omitted, cursor = files.read_lines(
            "j-1", Wanted(level="error", limit=3, after=cursor)
        )
        seen += shown
    assert [one.sequence for one in seen] == list(range(1, 21, 2))


async def test_a_listener_hears_what_follows_and_a_slow_one_loses_the_oldest() -> None:
    events = Events()
    events.publish("jobs", "a/b", "early")
    with events.queue() as queue:
        for number in range(QUEUE + 5):
            events.publish("jobs", "a/b", str(number))
        assert queue.qsize() == QUEUE
        assert (await queue.get()).what == "5"
    async with events.subscribe() as told:
        events.publish("jobs", "a/b", "now", "j-1")
        event = await asyncio.wait_for(anext(told), 1)
    assert (event.what, event.job_id) == ("now", "j-1")


def test_events_since_a_number_are_all_of_them_or_none() -> None:
    events = Events()
    for number in range(1005):
        events.publish("jobs", "a/b", str(number))
    newest = events.last_number
    assert [e.what for e in events.since(newest - 2) or []] == ["1003", "1004"]
    assert events.since(0) is None
    assert events.since(newest) == []


def test_an_ended_job_moves_only_by_being_resumed() -> None:
    for state in MOVES:
        allowed = {new for new in MOVES if may_move(state, new)}
        if has_ended(state):
            assert allowed <= {"recovering"}
        else:
            assert "cancelled" in allowed
