"""Measures the house: files, functions, complexity, circles. Fails past its limits.

A function's length is its lines from `def` to its end without the docstring and blank lines.
Complexity is McCabe's: one, and one more for each branch, loop, handler, case and comprehension.
"""

import ast
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("transport", "stage_runtime", "control", "mcp_server", "agents")
BESIDE = ("tests", "scripts")
MAX_FILE_LINES = 500
MAX_FUNCTION_MEDIAN = 10
MAX_FUNCTION_P90 = 35
MAX_COMPLEXITY = 15
MAX_CIRCLES = 0

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
BRANCHES = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.match_case,
    ast.comprehension,
)


@dataclass(frozen=True)
class Function:
    """One function or method, nested ones too."""

    place: str
    lines: int
    complexity: int


@dataclass(frozen=True)
class File:
    """One source file."""

    path: str
    lines: int
    functions: tuple[Function, ...]


def percentile(values: Sequence[int], share: float) -> int:
    """The value below which `share` of all values lie; 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0


def median(values: Sequence[int]) -> float:
    """The middle value; 0 of nothing."""
    return statistics.median(values) if values else 0.0


def own_nodes(function: FunctionNode) -> Iterator[ast.AST]:
    """Everything in a function but what lies in functions and classes inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, FunctionNode | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(node))


def complexity(function: FunctionNode) -> int:
    """McCabe's number of a function, without the functions inside it."""
    return 1 + sum(isinstance(node, BRANCHES) for node in own_nodes(function))


def length(function: FunctionNode, source: Sequence[str]) -> int:
    """Lines from `def` to the end, without docstring and blank lines."""
    first, last = function.lineno, function.end_lineno or function.lineno
    body = source[first - 1 : last]
    docstring = function.body[0] if ast.get_docstring(function) is not None else None
    if docstring is not None:
        start, end = docstring.lineno, docstring.end_lineno or docstring.lineno
        body = [*source[first - 1 : start - 1], *source[end:last]]
    return sum(bool(line.strip()) for line in body)


def read_file(path: Path, root: Path = ROOT) -> File:
    """Measure one Python file."""
    text = path.read_text(encoding="utf-8")
    source = text.splitlines()
    where = path.relative_to(root).as_posix()
    functions = tuple(
        Function(f"{where}:{node.lineno} {node.name}", length(node, source), complexity(node))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, FunctionNode)
    )
    return File(where, len(source), functions)


def read_folder(folder: str, root: Path = ROOT) -> list[File]:
    """Measure every Python file below a folder."""
    return [read_file(path, root) for path in sorted((root / folder).rglob("*.py"))]


def console_files(root: Path = ROOT) -> list[File]:
    """The console's files: only their length counts here."""
    paths = [p for p in sorted((root / "static_console").rglob("*")) if p.suffix in {".js", ".css"}]
    return [
        File(p.relative_to(root).as_posix(), len(p.read_text("utf-8").splitlines()), ())
        for p in paths
    ]


def circles(graph: grimp.ImportGraph) -> list[list[str]]:
    """Groups of modules that reach each other, each sorted (Tarjan's strong components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for imported in graph.find_modules_directly_imported_by(module):
            if imported not in index:
                visit(imported)
                low[module] = min(low[module], low[imported])
            elif imported in stack:
                low[module] = min(low[module], index[imported])
        if low[module] == index[module]:
            cut = stack.index(module)
            found.append(sorted(stack[cut:]))
            del stack[cut:]

    for module in sorted(graph.modules):
        if module not in index:
            visit(module)
    return [group for group in found if len(group) > 1]


def build_graph() -> grimp.ImportGraph:
    """The imports between the modules of the five rooms."""
    sys.path.insert(0, str(ROOT))
    return grimp.build_graph(*ROOMS, cache_dir=str(ROOT / ".cache" / "imports"))


def breaches(rooms: Sequence[File], others: Sequence[File], rings: Sequence[object]) -> list[str]:
    """One sentence for each limit that is passed; empty when the house is in order."""
    functions = [function for file in rooms for function in file.functions]
    lengths = [function.lines for function in functions]
    told = [
        f"{file.path} has {file.lines} lines, at most {MAX_FILE_LINES}"
        for file in [*rooms, *others]
        if file.lines > MAX_FILE_LINES
    ]
    told += [
        f"{function.place} has complexity {function.complexity}, at most {MAX_COMPLEXITY}"
        for file in [*rooms, *others]
        for function in file.functions
        if function.complexity > MAX_COMPLEXITY
    ]
    if median(lengths) > MAX_FUNCTION_MEDIAN:
        told.append(f"the median function has {median(lengths):g} lines, at most 10")
    if percentile(lengths, 0.9) > MAX_FUNCTION_P90:
        told.append(f"a tenth of the functions exceed {percentile(lengths, 0.9)} lines, limit 35")
    if len(rings) > MAX_CIRCLES:
        told.append(f"{len(rings)} circles of imports, at most {MAX_CIRCLES}")
    return told


def print_rooms(by_folder: dict[str, list[File]]) -> None:
    """One line a folder: how many files, how long."""
    print(f"{'folder':<16}{'files':>6}{'lines':>8}{'median':>8}{'p90':>6}{'longest':>9}")
    for folder, files in by_folder.items():
        lines = [file.lines for file in files] or [0]
        print(
            f"{folder:<16}{len(files):>6}{sum(lines):>8}{median(lines):>8.0f}"
            f"{percentile(lines, 0.9):>6}{max(lines):>9}"
        )


def print_functions(rooms: Sequence[File], graph: grimp.ImportGraph, num_circles: int) -> None:
    """The figures of all rooms together, and the ten longest functions."""
    functions = [function for file in rooms for function in file.functions]
    lengths = [function.lines for function in functions]
    worst = max((function.complexity for function in functions), default=0)
    print(
        f"\nfunctions {len(functions)} · median {median(lengths):g}"
        f" · p90 {percentile(lengths, 0.9)} · longest {max(lengths, default=0)}"
        f" · worst complexity {worst}"
    )
    print(
        f"modules {len(graph.modules)} · imports between them {graph.count_imports()}"
        f" · circles {num_circles}"
    )
    print("\nlongest functions")
    for function in sorted(functions, key=lambda one: -one.lines)[:10]:
        print(f"{function.lines:>6}  {function.place}")


def main() -> int:
    """Print everything; 1 when a limit is passed."""
    by_folder = {folder: read_folder(folder) for folder in (*ROOMS, *BESIDE)}
    by_folder["static_console"] = console_files()
    rooms = [file for folder in ROOMS for file in by_folder[folder]]
    others = [file for folder in (*BESIDE, "static_console") for file in by_folder[folder]]
    graph = build_graph()
    rings = circles(graph)
    print_rooms(by_folder)
    print_functions(rooms, graph, len(rings))
    print("\nlongest files")
    for file in sorted([*rooms, *others], key=lambda one: -one.lines)[:10]:
        print(f"{file.lines:>6}  {file.path}")
    told = breaches(rooms, others, rings)
    told += [f"a circle: {' ↔ '.join(ring)}" for ring in rings]
    print()
    print("\n".join(f"TOO MUCH: {one}" for one in told) or "house: in order")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
