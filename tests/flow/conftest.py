"""One warm forkserver and one cache of tiny models for all runs of a session."""

from collections.abc import Iterator

import pytest

from tests.oracle.grid import Ground
from tests.oracle.stages import Workers


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
