"""Reports on disk: numbered once, kept until committed, whatever is cut off and when."""

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.fellow import spool as spools
from agents.fellow.spool import Spool
from tests.unit.agents.build import JOB
from transport.reports import LogLine, StageFailed

Open = Callable[..., Spool]


@pytest.fixture
def open_spool(tmp_path: Path) -> Iterator[Open]:
    """Opens spools on the test's folder, and closes them at its end."""
    opened: list[Spool] = []

    def one(**more: Any) -> Spool:
        opened.append(Spool(tmp_path, **more))
        return opened[-1]

    yield one
    for spool in opened:
        spool.close()


def a_line(text: str = "x") -> LogLine:
    return LogLine(job_id=JOB, attempt=1, stage=0, at=1.0, level="info", text=text)


def a_failure() -> StageFailed:
    return StageFailed(job_id=JOB, attempt=1, stage=0, at=1.0, code="stage-failed", message="m")


def numbers(spool: Spool) -> list[int]:
    return [line.sequence for line in spool.batch(10_000, 10**9)]


def test_reports_are_numbered_from_one_and_come_out_in_order(open_spool: Open) -> None:
    spool = open_spool()
    assert [spool.append(a_line()) for _ in range(3)] == [1, 2, 3]
    assert [line.sequence for line in spool.batch(2)] == [1, 2]
    spool.commit(2)
    assert numbers(spool) == [3]


def test_a_batch_is_bounded_in_bytes_but_never_empty(open_spool: Open) -> None:
    spool = open_spool()
    for _ in range(3):
        spool.append(a_line("x" * 1000))
    assert [line.sequence for line in spool.batch(500, most_bytes=10)] == [1]


def test_what_was_not_committed_is_there_after_a_restart(open_spool: Open) -> None:
    spool = open_spool()
    for _ in range(3):
        spool.append(a_line())
    spool.commit(1)
    spool.close()

    again = open_spool()
    again.commit(1)
    assert numbers(again) == [2, 3]
    assert again.append(a_line()) == 4


def test_a_line_that_was_cut_short_is_dropped_and_the_next_is_whole(
    tmp_path: Path, open_spool: Open
) -> None:
    spool = open_spool()
    spool.append(a_line("first"))
    spool.append(a_line("second"))
    spool.close()
    (segment,) = tmp_path.glob("*.jsonl")
    os.truncate(segment, segment.stat().st_size - 5)

    again = open_spool()
    assert numbers(again) == [1]
    assert again.append(a_line("third")) == 2
    again.close()
    assert numbers(open_spool()) == [1, 2]


def test_numbers_go_on_after_everything_was_committed_and_the_daemon_restarted(
    tmp_path: Path, open_spool: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spools, "_SEGMENT_BYTES", 200)
    spool = open_spool()
    for _ in range(10):
        spool.append(a_line())
    spool.commit(10)
    assert len(list(tmp_path.glob("*.jsonl"))) == 1
    spool.close()
    assert open_spool().append(a_line()) == 11


def test_a_folder_put_back_from_an_old_copy_never_reuses_the_leader_s_numbers(
    open_spool: Open,
) -> None:
    spool = open_spool()
    spool.commit(40)
    assert spool.append(a_line()) == 41


def test_a_full_spool_leaves_out_log_lines_first_and_what_decides_a_job_last(
    open_spool: Open,
) -> None:
    spool = open_spool(limit_bytes=2000)
    taken = sum(spool.append(a_line("x" * 50)) is not None for _ in range(100))
    assert 3 < taken < 20
    assert spool.dropped == 100 - taken
    assert spool.append(a_failure()) == taken + 1
    for _ in range(100):
        spool.append(a_failure())
    assert sum(len(line.text) for line in spool.batch(10_000)) <= 4000


def test_a_full_disk_keeps_reports_in_memory_and_says_so(
    open_spool: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spool = open_spool()
    spool.append(a_line("before"))

    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Spool, "_open_segment", full)
        assert spool.append(a_line("while")) == 2
    assert spool.append(a_line("after")) == 3
    assert numbers(spool) == [1, 2, 3]
    assert "could not be written" in caplog.text
    spool.close()
    assert numbers(open_spool()) == [1, 3]


# One life of a daemon: what it does, and how many bytes that were never synced survive its end.
STEPS = st.lists(st.sampled_from(["append", "send", "commit"]), max_size=12)
LIVES = st.lists(st.tuples(STEPS, st.integers(0, 100)), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(LIVES)
def test_no_sent_number_is_used_twice_and_no_sent_report_is_lost_over_crashes(
    lives: list[tuple[list[str], int]],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        told: dict[int, str] = {}
        committed, made = 0, 0
        for steps, kept_percent in lives:
            spool = Spool(folder)
            spool.commit(committed)
            durable = _sizes(folder)
            for step in steps:
                if step == "append":
                    made += 1
                    assert spool.append(a_line(f"report {made}")) is not None
                elif step == "send":
                    lines = spool.batch()
                    spool.sync()
                    durable = _sizes(folder)
                    for line in lines:
                        assert told.setdefault(line.sequence, line.text) == line.text
                else:
                    committed = max([committed, *told])
                    spool.commit(committed)
            spool.close()
            _lose_unsynced(folder, durable, kept_percent)
        after = Spool(folder)
        after.commit(committed)
        waiting = {line.sequence: line.text for line in after.batch(10_000)}
        assert {n: t for n, t in told.items() if n > committed}.items() <= waiting.items()
        assert after.next_sequence > max(told, default=0)
        after.close()


def _sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.glob("*.jsonl")}


def _lose_unsynced(folder: Path, durable: dict[str, int], kept_percent: int) -> None:
    """Cut each file somewhere between its durable length and its end, as a power cut may."""
    for path in folder.glob("*.jsonl"):
        safe, size = durable.get(path.name, 0), path.stat().st_size
        os.truncate(path, safe + (size - safe) * kept_percent // 100)
