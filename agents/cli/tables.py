"""Columns of text without lines, and the dash of what nobody measured."""

from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions
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


LABEL = 9
"""Columns of a line's name."""
FEWEST = 20
"""Columns of words below which a terminal is too narrow to set them apart."""


class Labelled:
    """A name and what is said of it. On a terminal further lines stand under the first one's words;
    in a pipe it is one line.
    """

    def __init__(self, name: str, words: str, style: str = "") -> None:
        self.name, self.words = Text(f"{name:<{LABEL}}", "bold"), Text(clean(words, 1000), style)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """One line, or as many as the terminal needs."""
        room = options.max_width - len(self.name)
        if console.soft_wrap or room < FEWEST:
            yield Text.assemble(self.name, self.words)
            return
        for at, line in enumerate(self.words.wrap(console, room)):
            yield Text.assemble(Text(" " * len(self.name)) if at else self.name, line)
