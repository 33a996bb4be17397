"""docs/operations.md says what is declared."""

import importlib.util

from tests.house.tree import ROOT


def test_the_page_of_operations_is_current() -> None:
    spec = importlib.util.spec_from_file_location(
        "house_operations", ROOT / "scripts" / "house_operations.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "operations.md").read_text("utf-8") == module.page(), (
        "run scripts/house --operations"
    )
