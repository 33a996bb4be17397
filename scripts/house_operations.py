"""Writes docs/operations.md from the declared operations: what each asks, where it is offered."""

import sys
from pathlib import Path

from pydantic.fields import FieldInfo

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from transport.api.catalog import OPERATIONS  # noqa: E402
from transport.api.operation import Operation  # noqa: E402

TARGET = ROOT / "docs" / "operations.md"
HEAD = """# Operations

Every operation, under one name on every face: an MCP tool, a REST route below `/api/v1`, and a
command. The same handler answers all three, with the same errors. Written by
`scripts/house --operations` from the declarations in `transport/api/`; a test checks that it is
current.

*listed* operations appear in MCP's `tools/list`; the others can be called all the same. Scopes:
`read` looks, `train` also spends the pool's time, `admin` also changes who and what is in it.
"""


def argument(name: str, field: FieldInfo) -> str:
    """One row of the table of arguments."""
    need = "needed" if field.is_required() else "optional"
    text = " ".join((field.description or "").split()).replace("|", "\\|")
    return f"| `{name}` | {need} | {text} |"


def section(operation: Operation) -> str:
    """The page's part about one operation."""
    words = " ".join(("swarm", *operation.words))
    places = " ".join(name.upper() for name in operation.positional)
    listed = ", listed" if operation.listed else ""
    command = f"{words} {places}".strip()
    route = f"{operation.method} /api/v1{operation.path}"
    offered = f"{operation.effect}, scope `{operation.scope}`{listed} · `{route}` · `{command}`"
    lines = [f"## {operation.name}", "", operation.doc.replace("\n    ", "\n"), "", offered, ""]
    rows = [argument(name, field) for name, field in operation.asks.model_fields.items()]
    if rows:
        lines += ["| argument | | |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


def page() -> str:
    """The whole page."""
    return HEAD + "\n" + "\n".join(section(one) for one in OPERATIONS.values())


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
