"""One warm forkserver and one cache of tiny models for all runs of a session."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.oracle.grid import Ground
from tests.oracle.stages import Workers

if TYPE_CHECKING:
    from tests.flow.refusals import World


@pytest.fixture(scope="session")
def workers() -> Iterator[Workers]:
    """Starts stage workers in a tenth of a second each."""
    pool = Workers()
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    """Models, token files and references, made when first asked for."""
    return Ground(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
async def world(
    tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> "AsyncIterator[World]":
    """One furnished leader for a file about bad input."""
    from tests.flow.refusing_leaders import open_world  # the other files need no doors

    async with open_world(tmp_path_factory.mktemp("leader")) as opened:
        yield opened


@pytest.fixture
def told_where(world: "World", monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The command line of this process speaks to that leader, as its owner."""
    monkeypatch.setenv("SWARM_LEADER", world.url)
    monkeypatch.setenv("SWARM_TOKEN", world.token)
    monkeypatch.setenv("SWARM_CONFIG", str(tmp_path / "no.toml"))
    # It asks a busy leader again after seconds; here at once.
    monkeypatch.setattr("agents.client._pause_s", lambda *_: 0.0)
