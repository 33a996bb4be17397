"""Data files as rows: JSONL, plain text, CSV, parquet, NumPy arrays of token ids.

The format is known by a file's ending and must agree with its first bytes. Reads in pieces: no
file is ever whole in memory. A wrong row is refused by its number.
"""

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from control.datasets.rows import (
    COLUMNS,
    WAYS,
    Row,
    layout_of,
    number_in,
    place_of,
    row_of,
    unit_of,
    wrong_row,
)
from transport.errors import SwarmError
from transport.units import count_of

ENDINGS = (".jsonl", ".txt", ".csv", ".parquet", ".npy")
MAX_LINE = 8_000_000  # bytes; longer lines stall whoever reads them
PIECE = 16_384  # characters of a long text that are read at once, cut at a line's end
PIECE_TOKENS = 1_000_000
BATCH = 64  # rows of a table that are in memory at once
MAGIC = {b"PAR1": ".parquet", b"\x93NUM": ".npy"}
TOKEN_TYPES = ("uint16", "int32")


@dataclass
class FileRows:
    """What a file holds."""

    num_rows: int = 0
    kinds: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """A data file, and how to read it."""

    path: Path
    name: str
    """As its owner calls it; the ending says the format."""
    number: int = 0
    """Among the files that are read together."""
    group: str | None = None
    """The column whose values keep rows together."""
    joined: str = ""
    """How rows of text become documents again; "wikitext" is the only way."""


def check_file(path: Path, name: str) -> FileRows:
    """Read every row of a file.

    Raises:
        SwarmError: invalid-input naming the first wrong row, a row that does not go with those
            before it, or that the file is empty or binary.
    """
    told = FileRows()
    for row in read_rows(Source(path, name)):
        _refuse_mixture(row, told, name)
        if row.begins:
            told.num_rows += 1
            told.kinds[row.kind] = told.kinds.get(row.kind, 0) + 1
    if told.num_rows == 0:
        raise SwarmError(
            "invalid-input", f"{name} holds no rows", hint="send a file with at least one row"
        )
    return told


def _refuse_mixture(row: Row, told: FileRows, name: str) -> None:
    before = next(iter(told.kinds), row.kind)
    if layout_of(before) != layout_of(row.kind):
        number = number_in(row.place)
        raise SwarmError(
            "invalid-input",
            f"{name}: {unit_of(name)} {number} is {row.kind}, the {told.num_rows} rows before it "
            f"are {before}",
            hint="put plain text into a file and a bucket of its own",
            facts={"file": name, "line": number},
        )


def read_rows(source: Source) -> Iterator[Row]:
    """The rows of a file, in order. A text file is one document, read in pieces.

    Raises:
        SwarmError: invalid-input, as check_file.
    """
    _refuse_unlike(source)
    if source.name.endswith(".txt"):
        yield from _read_text(source)
    elif source.name.endswith(".npy"):
        yield from _read_tokens(source)
    elif source.joined:
        yield from _articles(source)
    else:
        for number, told in _named(source):
            yield _row(source, number, told)


def _refuse_unlike(source: Source) -> None:
    """A name that says something else than the file's first bytes."""
    ending = next((one for one in ENDINGS if source.name.endswith(one)), None)
    if ending is None:
        raise SwarmError(
            "invalid-input",
            f"{source.name} ends neither in .jsonl nor in {', '.join(ENDINGS[1:])}",
            hint="name the file by what it holds: one JSON object a line, text, a table, token ids",
        )
    with source.path.open("rb") as handle:
        real = MAGIC.get(handle.read(4))
    if real != ending and (real or ending in MAGIC.values()):
        looks = f"looks like {real}" if real else f"is no {ending[1:]} file"
        raise SwarmError("invalid-input", f"{source.name} {looks}", hint="name it by what it holds")
    if source.group is not None and ending in (".txt", ".npy"):
        raise SwarmError(
            "invalid-input",
            f"{source.name} has no columns, so no column {source.group!r} to hold out by",
            hint="hold out by tail or random, or send the rows as JSONL, CSV or parquet",
        )


def _row(source: Source, number: int, told: Mapping[str, Any]) -> Row:
    try:
        row, group = row_of(told), _group(source, told)
        if len(row.text) + len(row.completion) > MAX_LINE:
            raise ValueError(f"is longer than {MAX_LINE // 1_000_000} MB")
    except ValueError as error:
        raise wrong_row(source.name, number, str(error)) from None
    return replace(row, place=place_of(source.number, number), group=group)


def _group(source: Source, told: Mapping[str, Any]) -> str:
    if source.group is None:
        return ""
    value = told.get(source.group)
    if not isinstance(value, (str, int)) or value == "":
        raise ValueError(f"has no {source.group!r} to hold out by")
    return str(value)


def _named(source: Source) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(row number, column -> value) of a file with columns."""
    if source.name.endswith(".csv"):
        return _read_csv(source)
    return _read_parquet(source) if source.name.endswith(".parquet") else _read_jsonl(source)


# --- text ----------------------------------------------------------------------------------------


def _lines(source: Source) -> Iterator[tuple[int, str]]:
    with source.path.open("rb") as handle:
        number = 0
        while raw := handle.readline(MAX_LINE + 1):
            number += 1
            if len(raw) > MAX_LINE:
                what = f"is longer than {MAX_LINE // 1_000_000} MB"
                raise wrong_row(source.name, number, what, "line")
            if b"\0" in raw:
                what = "is not text: it holds zero bytes"
                raise wrong_row(source.name, number, what, "line")
            try:
                line = raw.decode("utf-8")
            except UnicodeDecodeError:
                raise wrong_row(source.name, number, "is not UTF-8 text", "line") from None
            yield number, line.removeprefix("\ufeff") if number == 1 else line


def _read_text(source: Source) -> Iterator[Row]:
    """One document in pieces of whole lines, white space alone is none."""
    waiting: Row | None = None
    began = False
    for number, text in _blocks(source):
        piece = Row("text", text, begins=not began, place=place_of(source.number, number))
        if waiting is not None:
            yield replace(waiting, ends=False)
        elif not text.strip():
            continue
        waiting, began = piece, True
    if waiting is not None:
        yield waiting


def _blocks(source: Source) -> Iterator[tuple[int, str]]:
    """(number of the first line, lines together) of about PIECE characters."""
    held: list[str] = []
    first = size = 0
    for number, line in _lines(source):
        if held and size + len(line) > PIECE:
            yield first, "".join(held)
            held, size = [], 0
        first = first if held else number
        held.append(line)
        size += len(line)
    if held:
        yield first, "".join(held)


def _read_jsonl(source: Source) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in _lines(source):
        if not line.strip():
            continue
        try:
            told = json.loads(line)
        except (ValueError, RecursionError):
            raise wrong_row(source.name, number, "is not a JSON object") from None
        if not isinstance(told, dict):
            raise wrong_row(source.name, number, "is not a JSON object")
        yield number, told


# --- tables --------------------------------------------------------------------------------------


def _read_csv(source: Source) -> Iterator[tuple[int, Mapping[str, Any]]]:
    lines = (line for _, line in _lines(source))
    heading = next(lines, "")
    if not heading.strip():
        return
    marks = {mark: _cells(heading, mark) for mark in ",;\t"}
    mark = next((m for m, names in marks.items() if set(names) & set(COLUMNS)), ",")
    names = marks[mark]
    _refuse_columns(source, names)
    csv.field_size_limit(MAX_LINE)
    reader = csv.reader(lines, delimiter=mark, strict=True)
    number = 0
    while True:
        number += 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise wrong_row(source.name, number, f"cannot be read: {error}") from None
        if cells is None:
            return
        if cells and len(cells) != len(names):
            what = f"has {len(cells)} cells, the heading has {len(names)}"
            raise wrong_row(source.name, number, what)
        if cells:
            yield number, {n: cell for n, cell in zip(names, cells) if cell or n != "tools"}


def _cells(heading: str, mark: str) -> list[str]:
    try:
        return [name.strip() for name in next(csv.reader([heading], delimiter=mark), [])]
    except csv.Error:
        return []


def _read_parquet(source: Source) -> Iterator[tuple[int, Mapping[str, Any]]]:
    # Imported here: a quarter of a second that other formats need not pay.
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        with pq.ParquetFile(source.path) as table:
            names = list(table.schema_arrow.names)
            _refuse_columns(source, names)
            kept = [name for name in names if name in (*COLUMNS, source.group)]
            number = 0
            for batch in table.iter_batches(batch_size=BATCH, columns=kept, use_threads=False):
                for told in batch.to_pylist():
                    number += 1
                    yield number, _without_gaps(told)
    except pa.ArrowMemoryError:
        raise MemoryError from None
    except (pa.ArrowException, OSError, ValueError) as error:
        said = " ".join(str(error).split())[:160].rstrip(".") or type(error).__name__
        raise SwarmError(
            "invalid-input",
            f"{source.name} cannot be read as parquet: {said.replace(str(source.path), 'it')}",
            hint="write the file again; nothing of it was stored",
        ) from None


def _without_gaps(value: Any) -> Any:
    """Nested values without the keys that a table fills up with nothing."""
    if isinstance(value, dict):
        return {name: _without_gaps(one) for name, one in value.items() if one is not None}
    return [_without_gaps(one) for one in value] if isinstance(value, list) else value


def _refuse_columns(source: Source, names: list[str]) -> None:
    if not set(names) & set(COLUMNS):
        shown = ", ".join(name[:40] for name in names[:6] if name.isprintable()) or "none"
        raise SwarmError(
            "invalid-input",
            f"{source.name}: row 1 has none of {WAYS}; its columns are {shown}",
            hint="rename the columns, or leave out the file",
            facts={"file": source.name, "line": 1},
        )


def _articles(source: Source) -> Iterator[Row]:
    """Rows that are lines of articles, as articles: " = Title = " begins one, lines are whole."""
    held: list[str] = []
    first = 0
    for number, told in _named(source):
        text = _row(source, number, told).text
        bare = text.strip()
        is_title = bare[:2] == "= " and bare[-2:] == " =" and bare[2:3] not in ("=", "")
        if is_title and "".join(held).strip():
            yield Row("text", "".join(held), place=place_of(source.number, first))
            held = []
        first = first if held else number
        held.append(text)
    if "".join(held).strip():
        yield Row("text", "".join(held), place=place_of(source.number, first))


# --- token ids -----------------------------------------------------------------------------------


def _read_tokens(source: Source) -> Iterator[Row]:
    """A stream of token ids in pieces; documents are told apart by the model's EOS later."""
    stream = open_tokens(source)
    for start in range(0, len(stream), PIECE_TOKENS):
        piece = np.array(stream[start : start + PIECE_TOKENS], dtype=np.int32)
        if int(piece.min()) < 0:
            at = start + int(np.argmax(piece < 0))
            raise SwarmError(
                "invalid-input",
                f"{source.name}: token {at + 1} is {int(piece[at - start])}, below zero",
                hint="write the ids of the model's own tokenizer",
            )
        ends = start + PIECE_TOKENS >= len(stream)
        place = place_of(source.number, 1)
        yield Row("tokens", ids=piece, begins=start == 0, ends=ends, place=place)


def open_tokens(source: Source) -> Any:
    """A .npy file as an array that is read as it is used; nothing in it is unpickled.

    Raises:
        SwarmError: invalid-input; not an array, another type of number, more than one dimension.
    """
    try:
        found = np.load(source.path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # noqa: BLE001 - its header is parsed as Python: anything comes
        holds = any(word in str(error) for word in ("pickle", "Python objects"))
        said = "it holds Python objects" if holds else type(error).__name__
        raise SwarmError(
            "invalid-input",
            f"{source.name} cannot be read as an array of numbers: {said}",
            hint="write it with numpy.save(name, ids.astype('int32'))",
        ) from None
    if found.dtype.name not in TOKEN_TYPES or found.ndim != 1:
        raise SwarmError(
            "invalid-input",
            f"{source.name} holds {count_of(found.ndim, 'dimension')} of {found.dtype.name}; token "
            f"ids are one dimension of {' or '.join(TOKEN_TYPES)}",
            hint="flatten the ids, each document ended by EOS, and convert their type",
        )
    return found
