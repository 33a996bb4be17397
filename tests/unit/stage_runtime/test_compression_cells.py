"""A long table goes on where it was stopped, and never mixes two sets of conditions."""

from pathlib import Path

import pytest

from tests.oracle.compression_cells import Cells, Figures
from transport.errors import SwarmError


def test_a_cell_is_measured_once_and_a_failed_one_again(tmp_path: Path) -> None:
    said: list[str] = []
    calls: list[str] = []

    def measure() -> Figures:
        calls.append("measured")
        if len(calls) == 1:
            raise RuntimeError
        return {"loss": 3.5}

    first = Cells(tmp_path, {"model": "a"}, said.append)
    with pytest.raises(RuntimeError):
        first.of("learned 1/2 width", measure)
    assert first.found("learned 1/2 width") is None
    assert first.of("learned 1/2 width", measure) == {"loss": 3.5}
    again = Cells(tmp_path, {"model": "a"}, said.append)
    assert again.of("learned 1/2 width", measure) == {"loss": 3.5}
    assert (len(calls), len(said)) == (2, 1)


def test_cells_of_other_conditions_are_refused(tmp_path: Path) -> None:
    Cells(tmp_path, {"model": "a"}, print)
    with pytest.raises(SwarmError, match="other conditions") as refusal:
        Cells(tmp_path, {"model": "b"}, print)
    assert refusal.value.code == "conflict"
