"""A served REST twin, and `swarm` called against it in this process."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agents.cli.main import run
from tests.unit.agents.rest_twin import TOKEN, RestTwin, rest


@dataclass(frozen=True)
class Told:
    """What one call of `swarm` came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Swarm:
    """Calls `swarm` in this process."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def __call__(self, *words: object) -> Told:
        self._capfd.readouterr()
        code = run([str(word) for word in words])
        out, err = self._capfd.readouterr()
        return Told(code, out, err)


@pytest.fixture
def leader() -> Iterator[RestTwin]:
    with rest(RestTwin()) as twin:
        yield twin


@pytest.fixture
def swarm(
    leader: RestTwin,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> Swarm:
    """`swarm` with the twin as its leader and a home of its own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SWARM_LEADER", leader.url)
    monkeypatch.setenv("SWARM_TOKEN", TOKEN)
    monkeypatch.chdir(tmp_path)
    return Swarm(capfd)
