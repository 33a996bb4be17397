"""The doors of one leader, open for one test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.mcp_server.twin import House, open_house


@pytest.fixture
async def house(tmp_path: Path, anyio_backend: str) -> AsyncIterator[House]:
    async with open_house(tmp_path) as open_one:
        yield open_one
