"""Bytes and seconds as people read them."""

import pytest

from transport.units import human_bytes, human_count, human_seconds


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "–"),
        (0, "0 B"),
        (999, "999 B"),
        (1_500, "1.5 kB"),
        (6_060_000_000, "6.06 GB"),
        (128_000_000, "128 MB"),
        (2_000_000_000_000, "2000 GB"),
    ],
)
def test_bytes_are_powers_of_ten_and_unknown_is_a_dash(count: int | None, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "–"),
        (0, "0"),
        (840, "840"),
        (38_656, "38.7 k"),
        (134_515_008, "135 M"),
        (999_900_000, "1 B"),
        (70_553_706_496, "70.6 B"),
    ],
)
def test_parameters_are_three_digits_and_unknown_is_a_dash(count: int | None, text: str) -> None:
    assert human_count(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0.25, "250 ms"), (1.5, "1.5 s"), (95.0, "1 min 35 s"), (7_320.0, "2 h 2 min")],
)
def test_seconds_are_short_and_unknown_is_a_dash(seconds: float | None, text: str) -> None:
    assert human_seconds(seconds) == text
