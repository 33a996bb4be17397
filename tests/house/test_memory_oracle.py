"""The oracle that counts bytes knows nothing of the prices that it judges."""

import ast
from pathlib import Path

from tests.house.tree import ROOT

ORACLE = ("memory_oracle", "memory_grid", "memory_models")


def imported(file: Path) -> set[str]:
    """Modules that a file imports anywhere, by their full names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def reached(start: str) -> set[str]:
    """Our modules that a module imports, directly or through others."""
    seen, waiting = set[str](), [start]
    while waiting:
        module = waiting.pop()
        file = ROOT / (module.replace(".", "/") + ".py")
        if module in seen or not file.is_file():
            continue
        seen.add(module)
        waiting += imported(file)
    return seen


def test_the_memory_oracle_reaches_no_price() -> None:
    for name in ORACLE:
        touched = reached(f"tests.oracle.{name}")
        assert [one for one in touched if one.endswith("costs")] == []


def test_the_search_for_prices_would_find_one() -> None:
    assert "stage_runtime.costs" in reached("tests.oracle.memory_table")
    assert "stage_runtime.layer_costs" in reached("stage_runtime.costs")
