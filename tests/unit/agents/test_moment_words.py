"""How the command line says when something was, and what crossed a boundary again."""

import time

import pytest

from agents.cli.link_words import boundary_text, measured_text
from agents.cli.render import ago
from transport.api.fellows import MeasuredLink
from transport.api.jobs import ShownBoundary


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (1, "now"),
        (31.04, "31 s ago"),
        (150, "2 min ago"),
        (3_600, "1 h 0 min ago"),
        (11_100, "3 h 5 min ago"),
    ],
)
def test_how_long_ago_something_was_has_no_more_digits_than_it_means(
    seconds: float, words: str
) -> None:
    assert ago(time.time() - seconds) == words


def test_what_was_long_ago_has_its_date_and_what_never_was_a_dash() -> None:
    assert ago(0.0).startswith(("1970-01-01", "1969-12-31"))
    assert ago(None) == "–"


@pytest.mark.parametrize(
    ("bytes_s", "words"),
    [(5_200_000, "41.6 Mbit/s"), (12_500_000, "100 Mbit/s"), (518_750_000, "4,150 Mbit/s")],
)
def test_a_measured_speed_is_a_plain_number(bytes_s: float, words: str) -> None:
    link = MeasuredLink(
        sender="leader", taker="f-aaaaaaaa", bytes_s=bytes_s, latency_s=0.001,
        measured_at=1.8e9, path="lan",
    )  # fmt: skip
    assert f": {words}, 1 ms one way" in measured_text(link)


@pytest.mark.parametrize(
    ("frames", "words"),
    [(0, "20 B back"), (1, "back, 1 frame sent again"), (2, "back, 2 frames sent again")],
)
def test_frames_sent_again_are_counted_in_words(frames: int, words: str) -> None:
    one = ShownBoundary(
        stage=0,
        path="lan",
        forward_bytes=10,
        backward_bytes=20,
        resent_frames=frames,
        untrusted_why="",
    )
    assert boundary_text(one).endswith(words)
