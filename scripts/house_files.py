"""Writes docs/files.md: every file of the house with the first sentence it says of itself."""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "files.md"
FOLDERS = (
    "transport",
    "stage_runtime",
    "control",
    "mcp_server",
    "agents",
    "static_console",
    "scripts",
    "tests",
)
SUFFIXES = {".py", ".sql", ".sh", ".js", ".css", ".html", ".md", ".json", ".txt", ""}
HEAD = """# Files

Every file and what it says of itself. Written by `scripts/house --files`; a test checks that it is
current, so edit the first line of the file, not this page.
"""


def first_comment(text: str) -> str:
    """The first comment of a file that is not Python, in any of its styles."""
    skip = ("#!", "<!doctype", "<!DOCTYPE")
    lines = [line for line in text.splitlines() if not line.startswith(skip)]
    for line in lines[:5]:
        found = re.match(r"\s*(?:--|//|/\*+|<!--|#+)\s*(.+?)\s*(?:\*/|-->)?\s*$", line)
        if found:
            return found.group(1)
    return ""


def says(path: Path) -> str:
    """One line that a file says of itself; empty when it says nothing."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0].replace("\n", " ")
    return first_comment(text)


def is_shown(path: Path) -> bool:
    """Python, console, SQL, shell and skill files; no caches and no recorded bytes."""
    parts = path.relative_to(ROOT).parts
    hidden = any(part.startswith((".", "__pycache__")) for part in parts)
    return path.is_file() and path.suffix in SUFFIXES and not hidden and "golden" not in parts


def section(folder: str) -> list[str]:
    """The lines of one top-level folder."""
    lines = [f"\n## {folder}/\n"]
    for path in sorted((ROOT / folder).rglob("*")):
        if is_shown(path):
            words = says(path)
            name = f"`{path.relative_to(ROOT).as_posix()}`"
            lines.append(f"- {name}" + (f" – {words}" if words else ""))
    return lines


def render() -> str:
    """The whole page."""
    lines = [line for folder in FOLDERS if (ROOT / folder).is_dir() for line in section(folder)]
    return HEAD + "\n".join(lines) + "\n"


def main() -> int:
    """Write the page."""
    TARGET.write_text(render(), encoding="utf-8")
    print(f"wrote {TARGET.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
