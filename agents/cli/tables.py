"""Columns of text without lines, and the dash of what nobody measured."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from agents.log_lines import clean

DASH = "–"


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """Columns without lines; a heading that ends in ">" is for numbers."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        is_number = heading.endswith(">")
        made.add_column(heading.rstrip(">"), justify="right" if is_number else "left")
    for row in rows:
        made.add_row(*(Text(clean(str(cell), 200)) for cell in row))
    return made
