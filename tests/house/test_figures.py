"""The measuring stick itself: lengths, complexity and circles of small examples."""

import ast
from pathlib import Path

import grimp

from scripts.house_figures import (
    File,
    Function,
    breaches,
    circles,
    complexity,
    percentile,
    read_file,
)

SOURCE = '''"""A module."""


def plain(x: int) -> int:
    """Says something

    over three lines.
    """

    return x


def branching(values: list[int]) -> int:
    total = 0
    for value in values:
        if value > 0:
            total += value
        elif value < -1:
            total -= 1
    return total
'''


def test_a_function_counts_without_docstring_and_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    path.write_text(SOURCE)
    measured = read_file(path, tmp_path)
    assert measured == File(
        "example.py",
        20,
        (Function("example.py:4 plain", 2, 1), Function("example.py:13 branching", 8, 4)),
    )


def test_a_function_inside_another_does_not_add_to_its_complexity() -> None:
    tree = ast.parse("def outer():\n def inner():\n  if 1: pass\n  if 2: pass\n return inner")
    outer = tree.body[0]
    assert isinstance(outer, ast.FunctionDef)
    assert complexity(outer) == 1


def test_two_modules_that_import_each_other_are_a_circle() -> None:
    graph = grimp.ImportGraph()
    for importer, imported in (("a", "b"), ("b", "c"), ("c", "b")):
        graph.add_import(importer=importer, imported=imported)
    assert circles(graph) == [["b", "c"]]


def test_each_limit_that_is_passed_is_named() -> None:
    long_file = File("room/long.py", 501, (Function("room/long.py:1 f", 40, 16),))
    told = breaches([long_file], [], [["a", "b"]])
    assert len(told) == 5
    assert breaches([File("room/fine.py", 500, ())], [], []) == []


def test_nothing_has_a_percentile_of_zero() -> None:
    assert (percentile([], 0.9), percentile([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 0.9)) == (0, 10)
