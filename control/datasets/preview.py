"""The first rows of some data as a model would learn them, in parts that are learned or not."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from control.datasets.lint import decoded
from control.datasets.rows import Row, place_words
from control.datasets.tokenize import Encoder
from control.datasets.tokenizer_folder import TokenizerFolder

ROW_CHARACTERS = 1200
ROW_TOKENS = 600

Parts = list[tuple[str, bool]]


def preview(
    rows: Iterable[Row],
    asked: Mapping[str, Any],
    folder: TokenizerFolder | None,
    guard: Callable[[], AbstractContextManager[None]],
) -> dict[str, Any]:
    """The first `limit` rows as JSON values.

    Raises:
        SwarmError: invalid-input for a row that the model's template refuses.
    """
    names = [file["name"] for file in asked["files"]]
    first = list(itertools.islice((row for row in rows if row.begins), int(asked["limit"])))
    if folder is None:
        return {"rows": [_as_sent(row, names) for row in first]}
    return {"rows": _as_learned(first, folder, names, guard)}


def _as_sent(row: Row, names: Sequence[str]) -> dict[str, Any]:
    parts: Parts
    if row.kind == "messages":
        parts = [(f"{m['role']}: {m['content']}\n", m["role"] == "assistant") for m in row.messages]
    elif row.kind == "prompt-completion":
        parts = [(row.text, False), (row.completion, True)]
    elif row.ids is not None:
        parts = [(" ".join(map(str, row.ids[:100].tolist())), True)]
    else:
        parts = [(row.text, True)]
    told = {**_cut(parts, is_cut=not row.ends), **_named(row, names)}
    return {**told, "tokens": None, "learned_tokens": None}


def _as_learned(
    rows: Sequence[Row],
    folder: TokenizerFolder,
    names: Sequence[str],
    guard: Callable[[], AbstractContextManager[None]],
) -> list[dict[str, Any]]:
    told = []
    for row in rows:
        encoded = list(Encoder(folder, names, guard).encode([row]))
        parts = [part for one in encoded for part in decoded(folder, one, ROW_TOKENS)]
        counts = {
            "tokens": sum(len(one.ids) for one in encoded),
            "learned_tokens": sum(int(one.supervised.sum()) for one in encoded),
        }
        is_cut = not row.ends or any(len(one.ids) > ROW_TOKENS for one in encoded)
        told.append({**_cut(parts, is_cut=is_cut), **_named(row, names), **counts})
    return told


def _named(row: Row, names: Sequence[str]) -> dict[str, Any]:
    return {"place": place_words(row.place, list(names)), "kind": row.kind}


def _cut(parts: Parts, *, is_cut: bool) -> dict[str, Any]:
    """Parts up to ROW_CHARACTERS, and whether there is more."""
    kept, room = [], ROW_CHARACTERS
    for text, learned in parts:
        if room > 0 and text:
            kept.append({"untrusted_text": text[:room], "learned": learned})
        room -= len(text)
    return {"parts": kept, "is_cut": is_cut or room < 0}
