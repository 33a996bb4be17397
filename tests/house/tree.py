"""The repository's own files, as the house tests read them."""

import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("transport", "stage_runtime", "control", "mcp_server", "agents")
APART = {"__pycache__", "dist", "build", "node_modules"}
TEXT = {".py", ".md", ".toml", ".txt", ".sql", ".sh", ".js", ".css", ".html", ".json", ".yml", ""}


def files() -> Iterator[Path]:
    """Every file of the project, without caches and what was installed or built."""
    for folder, inside, names in os.walk(ROOT):
        inside[:] = sorted(name for name in inside if _is_ours(name))
        yield from (Path(folder, name) for name in sorted(names))


def _is_ours(folder: str) -> bool:
    return folder == ".ci" or not (folder in APART or folder.startswith("."))


def texts() -> Iterator[tuple[Path, str]]:
    """Every text file with its text."""
    for path in files():
        if path.suffix in TEXT and path.name != ".git":
            yield path, path.read_text(encoding="utf-8")


def modules() -> list[Path]:
    """Every Python file of the five rooms."""
    return [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def short(path: Path) -> str:
    """A path from the repository's top."""
    return path.relative_to(ROOT).as_posix()
