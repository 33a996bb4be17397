"""Every format gives the same rows; what is no such file is refused by its row."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from control.datasets.readers import MAX_LINE, Source, check_file, read_rows
from control.datasets.rows import Row, number_in
from control.datasets.tokenize import Encoder
from tests.unit.control.data_files import (
    WORDS,
    chat,
    made_of,
    tokenizer_folder,
    write_jsonl,
    write_parquet,
    write_tokens,
)
from transport.errors import SwarmError

PAIRS = [{"prompt": f"say {n}, please", "completion": f'"{n}"\nis said'} for n in range(5)]
KINDS: dict[str, list[dict[str, Any]]] = {
    "text": [{"text": "a, b"}, {"text": 'c "d"\ne'}],
    "prompt-completion": PAIRS,
    "messages": [
        chat(("user", "a"), ("assistant", "b")),
        chat(("system", "s"), ("assistant", "c")),
    ],
}


def write_csv(path: Path, rows: list[dict[str, Any]], mark: str = ",") -> Path:
    """Rows as a table of text; lists as JSON."""
    import csv

    with path.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, list(rows[0]), delimiter=mark)
        writer.writeheader()
        for row in rows:
            cells = {k: v if isinstance(v, str) else json.dumps(v) for k, v in row.items()}
            writer.writerow(cells)
    return path


def rows_in(path: Path) -> list[Row]:
    """All rows."""
    return list(read_rows(Source(path, path.name)))


@pytest.mark.parametrize("kind", KINDS)
def test_jsonl_csv_and_parquet_give_the_same_rows(kind: str, tmp_path: Path) -> None:
    rows = KINDS[kind]
    told = {
        "parquet": rows_in(write_parquet(tmp_path / "a.parquet", rows)),
        "jsonl": rows_in(write_jsonl(tmp_path / "a.jsonl", rows)),
        "csv": rows_in(write_csv(tmp_path / "a.csv", rows)),
    }
    if len(rows[0]) > 1:  # of one column no sign tells what stands between columns
        told["semicolons"] = rows_in(write_csv(tmp_path / "b.csv", rows, ";"))
    assert len(told["jsonl"]) == len(rows)
    assert told == dict.fromkeys(told, told["jsonl"])
    assert [number_in(row.place) for row in told["csv"]] == list(range(1, len(rows) + 1))
    assert {row.kind for row in told["csv"]} == {kind}


def test_a_text_file_is_one_document_however_large(tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path / "tokenizer")
    path = tmp_path / "a.txt"
    path.write_text((WORDS + "\n") * 2000)
    rows = rows_in(path)
    assert len(rows) > 3
    assert [row.begins for row in rows] == [True] + [False] * (len(rows) - 1)
    assert [row.ends for row in rows] == [False] * (len(rows) - 1) + [True]
    ids = [int(i) for told in Encoder(folder).encode(rows) for i in told.ids]
    whole = folder.tokenizer.encode((WORDS + "\n") * 2000).ids
    assert ids == [*whole, folder.eos_id]
    assert check_file(path, "a.txt").num_rows == 1


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_ready_tokens_are_a_stream_whose_documents_end_at_eos(dtype: str, tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path / "tokenizer")
    ids = [1, 30, 31, 2, 1, 32, 2, 1, 33, 34, 35, 2, 40]
    path = write_tokens(tmp_path / "a.npy", ids, dtype)
    made = made_of(path, folder, 4)
    assert made.measured.file.num_rows == 4
    assert made.measured.file.num_tokens == len(ids)
    (told,) = Encoder(folder).encode(rows_in(path))
    assert told.ids.tolist() == ids
    assert np.flatnonzero(told.supervised == 0).tolist() == [0, 4, 7, 12]


def broken(folder: Path) -> dict[str, tuple[Path, str]]:
    """Name -> (a wrong file, what is said)."""
    objects = folder / "objects.npy"
    np.save(objects, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    square = folder / "square.npy"
    np.save(square, np.zeros((3, 3), dtype=np.int32))
    floats = folder / "floats.npy"
    np.save(floats, np.zeros(3))
    whole = write_parquet(folder / "whole.parquet", PAIRS).read_bytes()
    told: dict[str, tuple[Path, str]] = {
        "objects": (objects, "it holds Python objects"),
        "square": (square, "holds 2 dimensions of int32"),
        "floats": (floats, "1 dimension of float64; token ids are one dimension of uint16"),
        "negative": (write_tokens(folder / "negative.npy", [3, -1]), "token 2 is -1, below zero"),
        "columns": (
            write_parquet(folder / "columns.parquet", [{"question": "a", "answer": "b"}]),
            "instruction and output; its columns are question, answer",
        ),
        "numbers": (write_parquet(folder / "n.parquet", [{"text": 7}]), "row 1 has a text that is"),
    }
    for name, content, said in (
        ("cut.parquet", whole[:-20], "cannot be read as parquet"),
        ("swapped.jsonl", whole, "looks like .parquet"),
        ("text.parquet", b"hello, world", "is no parquet file"),
        ("cut.npy", b"\x93NUMPY\x01\x00", "cannot be read as an array"),
        ("short.csv", b"prompt,completion\na,b\nc\n", "row 2 has 1 cells, the heading has 2"),
        ("open.csv", b'text\n"never closed\n', "row 1 cannot be read"),
        ("binary.csv", b"text\na\0b\n", "line 2 is not text"),
        ("none.csv", b"text\n", "holds no rows"),
        ("empty.parquet", b"", "is no parquet file"),
        ("long.jsonl", b'{"text": "' + b"x" * MAX_LINE + b'"}', "line 1 is longer than 8 MB"),
    ):
        path = folder / name
        path.write_bytes(content)
        told[name] = (path, said)
    return told


NAMES = (
    "objects", "square", "floats", "negative", "columns", "numbers", "cut.parquet",
    "swapped.jsonl", "text.parquet", "cut.npy", "short.csv", "open.csv", "binary.csv", "none.csv",
    "empty.parquet", "long.jsonl",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_not_what_it_says_is_refused_with_what_is_wrong(
    name: str, tmp_path: Path
) -> None:
    path, said = broken(tmp_path)[name]
    with pytest.raises(SwarmError) as refusal:
        check_file(path, path.name)
    assert refusal.value.code == "invalid-input"
    assert said in refusal.value.message
    assert str(tmp_path) not in refusal.value.message


def test_a_token_that_the_model_does_not_know_is_refused(tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path / "tokenizer")
    path = write_tokens(tmp_path / "a.npy", [3, 4, 60_000], "uint16")
    with pytest.raises(SwarmError) as refusal:
        list(Encoder(folder, ["a.npy"]).encode(rows_in(path)))
    assert "holds token 60000, but the model's vocabulary has" in refusal.value.message


def test_lines_of_articles_become_articles_again(tmp_path: Path) -> None:
    told = [
        "",
        " = One = \n",
        "",
        " First . \n",
        " = = Part = = \n",
        " more \n",
        " = Two = \n",
        " x \n",
    ]
    path = write_parquet(tmp_path / "a.parquet", [{"text": line} for line in told])
    rows = list(read_rows(Source(path, "a.parquet", joined="wikitext")))
    assert [row.text for row in rows] == ["".join(told[:6]), "".join(told[6:])]
    assert [number_in(row.place) for row in rows] == [1, 7]


def test_content_in_parts_is_joined_and_a_picture_is_refused(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    row = {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "c"}]}
    (found,) = rows_in(write_jsonl(tmp_path / "a.jsonl", [row]))
    assert found.messages[0]["content"] == "ab"
    parts[1] = {"type": "image", "url": "x"}
    with pytest.raises(SwarmError) as refusal:
        rows_in(write_jsonl(tmp_path / "b.jsonl", [row]))
    assert "line 1 has a message with a part that is not text" in refusal.value.message


@pytest.mark.parametrize("name", ["a.parquet", "a.npy", "a.csv", "a.jsonl"])
def test_a_damaged_file_is_read_or_refused_and_nothing_else_comes_of_it(
    name: str, tmp_path: Path
) -> None:
    whole = {
        "a.parquet": lambda path: write_parquet(path, PAIRS * 20),
        "a.npy": lambda path: write_tokens(path, range(200)),
        "a.csv": lambda path: write_csv(path, PAIRS * 4),
        "a.jsonl": lambda path: write_jsonl(path, KINDS["messages"] * 4),
    }[name](tmp_path / name)
    dice, sound = random.Random(name), whole.read_bytes()
    refused: list[SwarmError] = []
    for _ in range(150):
        damaged = bytearray(sound)
        for _ in range(dice.choice([1, 2, 8])):
            at = dice.randrange(len(damaged))
            damaged[at : at + dice.randrange(3)] = dice.randbytes(dice.randrange(1, 4))
        whole.write_bytes(damaged)
        try:
            check_file(whole, name)
        except SwarmError as error:
            refused.append(error)
    assert {error.code for error in refused} == {"invalid-input"}
    assert [error for error in refused if str(tmp_path) in error.message] == []
    assert len(refused) > 20
