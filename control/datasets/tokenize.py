"""Rows to tokens, with a mark on each that the model shall learn from.

text: one stream, documents ended by EOS, every token learned. prompt-completion: one row each, the
completion and its EOS learned. messages: one row each, the assistant's turns and their end learned.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from control.datasets.chat import ChatTemplate
from control.datasets.rows import Row
from control.datasets.tokenizer_folder import TokenizerFolder
from transport.errors import SwarmError

PIECE = 16_384  # characters of a long text that are encoded at once, cut at a line's end
TOGETHER = 256  # rows encoded in one call, on all threads


@dataclass(frozen=True)
class Tokens:
    """Tokens and marks of some rows."""

    ids: NDArray[np.int32]
    supervised: NDArray[np.uint8]


class Encoder:
    """Encodes rows with one model's tokenizer."""

    def __init__(self, source: TokenizerFolder) -> None:
        self._source = source
        self._tokenizer = source.tokenizer
        self._eos = source.eos_id
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = frozenset(number for number, token in added.items() if token.special)
        template = source.template
        self._template = ChatTemplate(template, source.special) if template else None

    def encode(self, rows: Iterable[Row]) -> Iterator[Tokens]:
        """The rows in order, each as its tokens."""
        waiting: list[Row] = []
        for row in rows:
            waiting.append(row)
            if len(waiting) >= TOGETHER or len(row.text) > PIECE:
                yield from self._together(waiting)
                waiting = []
        yield from self._together(waiting)

    def _together(self, rows: list[Row]) -> Iterator[Tokens]:
        short = [row for row in rows if row.kind == "text" and len(row.text) <= PIECE]
        encoded = iter(self._tokenizer.encode_batch_fast([row.text for row in short]))
        for row in rows:
            if row.kind == "messages":
                yield self._chat(row)
            elif row.kind == "prompt-completion":
                yield self._pair(row)
            elif len(row.text) <= PIECE:
                yield self._document(next(encoded).ids)
            else:
                yield self._long(row.text)

    def _document(self, ids: list[int]) -> Tokens:
        ended = ids if ids and ids[-1] == self._eos else [*ids, self._eos]
        return _tokens(ended, [1] * len(ended))

    def _long(self, text: str) -> Tokens:
        """A long text in pieces: special tokens at its start only."""
        pieces = _pieces(text)
        opening = self._tokenizer.encode_batch_fast([next(pieces)])[0].ids
        opening = opening[:-1] if opening and opening[-1] == self._eos else opening
        parts = [np.array(opening, dtype=np.int32)]
        # In groups: an encoding takes a hundred bytes a token until it is an array.
        while group := list(itertools.islice(pieces, TOGETHER)):
            encoded = self._tokenizer.encode_batch_fast(group, add_special_tokens=False)
            parts += [np.array(one.ids, dtype=np.int32) for one in encoded]
        ids = np.concatenate([*parts, np.array([self._eos], dtype=np.int32)])
        return Tokens(ids, np.ones(len(ids), dtype=np.uint8))

    def _pair(self, row: Row) -> Tokens:
        prompt = self._tokenizer.encode(row.text).ids
        prompt = prompt[:-1] if prompt and prompt[-1] == self._eos else prompt
        answer = self._tokenizer.encode(row.completion, add_special_tokens=False).ids
        answer = [*answer, self._eos]
        return _tokens([*prompt, *answer], [0] * len(prompt) + [1] * len(answer))

    def _chat(self, row: Row) -> Tokens:
        if self._template is None:
            raise SwarmError(
                "invalid-input",
                "this model has no chat template, so it cannot be trained on messages",
                hint="take an instruct model, or rows with prompt and completion",
            )
        chat = self._template.chat(row.messages)
        encoded = self._tokenizer.encode(chat.text, add_special_tokens=False)
        marks = _marks(encoded, chat.spans, self._special)
        return _tokens(encoded.ids, marks)


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = start + PIECE
        if end < len(text):
            line_end = text.rfind("\n", start, end)
            end = line_end + 1 if line_end > start else end
        yield text[start:end]
        start = end


def _marks(encoded: Any, spans: tuple[tuple[int, int], ...], special: frozenset[int]) -> list[int]:
    """1 for tokens inside a span, and for the special token that ends the turn right behind it."""
    marks = [0] * len(encoded.ids)
    number = 0
    for start, end in spans:
        while number < len(marks) and encoded.offsets[number][1] <= start:
            number += 1
        while number < len(marks) and encoded.offsets[number][0] < end:
            marks[number] = 1
            number += 1
        has_end = number > 0 and marks[number - 1] and encoded.ids[number - 1] in special
        if number < len(marks) and not has_end and encoded.ids[number] in special:
            marks[number] = 1
            number += 1
    return marks


def _tokens(ids: list[int], marks: list[int]) -> Tokens:
    return Tokens(np.array(ids, dtype=np.int32), np.array(marks, dtype=np.uint8))
