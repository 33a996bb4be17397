"""Tiny models and token files of a session."""

import pytest

from tests.oracle.grid import Ground


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    """Models, token files and references, made when first asked for."""
    return Ground(tmp_path_factory.mktemp("cache"))
