"""Rows to tokens, with a mark on each that the model shall learn from.

text, tokens: one stream; documents ended by EOS, every token but a document's first learned, for
nothing before it foretells that one. prompt-completion: one row each, the completion and its EOS
learned. messages: one row each, the assistant's turns and their end learned.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from control.datasets.chat import Chat, ChatTemplate
from control.datasets.readers import PIECE
from control.datasets.rows import Row, number_in, place_words
from control.datasets.tokenizer_folder import TokenizerFolder
from transport.errors import SwarmError

TOGETHER = 256  # rows encoded in one call, on all threads


def _none() -> NDArray[np.int64]:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Tokens:
    """Tokens and marks of a row, of a piece of a long document, or of several documents."""

    ids: NDArray[np.int32]
    supervised: NDArray[np.uint8]
    starts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    """Where in ids a row begins; empty when all of it goes on with the row before."""
    places: NDArray[np.int64] = field(default_factory=_none)
    """Of each row that begins here."""
    kind: str = "text"
    group: str = ""
    ends: bool = True
    """False: the next piece goes on with the last row here."""
    newlines: int = 0
    characters: int = 0
    added_eos: bool = False
    """A chat whose template ends the last turn by no special token."""


class Encoder:
    """Encodes rows with one model's tokenizer.

    Args:
        names: what the files are called, for refusals.
        guard: held around the rendering of each chat; may raise when it takes too long.
    """

    def __init__(
        self,
        source: TokenizerFolder,
        names: Sequence[str] = (),
        guard: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._source = source
        self._names = list(names)
        self._guard = guard
        self._tokenizer = source.tokenizer
        self._eos = source.eos_id
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = frozenset(number for number, token in added.items() if token.special)
        self._ends = self._special | source.stop_ids
        self._template: ChatTemplate | None = None
        self._document_open = False
        self._documents = 0
        """Begun in the file of ready ids that is being read."""

    def encode(self, rows: Iterable[Row]) -> Iterator[Tokens]:
        """The rows in order, each as its tokens.

        Raises:
            SwarmError: invalid-input naming the row that cannot be encoded.
        """
        waiting: list[Row] = []
        size = 0
        for row in rows:
            for piece in _pieces(row):
                waiting.append(piece)
                size += _size(piece)
                if len(waiting) >= TOGETHER or size >= TOGETHER * PIECE:
                    yield from self._together(waiting)
                    waiting, size = [], 0
        yield from self._together(waiting)

    def _together(self, rows: list[Row]) -> Iterator[Tokens]:
        """Rows encoded in a few calls, each on all threads."""
        chats = [self._rendered(row) for row in rows if row.kind == "messages"]
        pairs = [row for row in rows if row.kind == "prompt-completion"]
        texts = [row for row in rows if row.kind == "text"]
        begins = self._ids([row.text for row in (*texts, *pairs) if row.begins], special=True)
        goes_on = self._ids([row.text for row in texts if not row.begins], special=False)
        answers = self._ids([row.completion for row in pairs], special=False)
        talks = self._tokenizer.encode_batch([c.text for c in chats], add_special_tokens=False)
        prompts = iter(begins[len(begins) - len(pairs) :])
        documents, later, ends, talk = iter(begins), iter(goes_on), iter(answers), zip(chats, talks)
        for row in rows:
            if row.kind == "messages":
                yield self._chat(row, *next(talk))
            elif row.kind == "prompt-completion":
                yield self._pair(row, next(prompts), next(ends))
            elif row.kind == "tokens":
                yield self._stream(row)
            else:
                yield self._document(row, next(documents if row.begins else later))

    def _ids(self, texts: list[str], *, special: bool) -> list[list[int]]:
        encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=special)
        return [one.ids for one in encoded]

    def _document(self, row: Row, ids: list[int]) -> Tokens:
        if row.begins and not row.ends and ids and ids[-1] == self._eos:
            ids = ids[:-1]  # written by the tokenizer at the end of each text
        if row.ends and not (ids and ids[-1] == self._eos):
            ids = [*ids, self._eos]
        marks = np.ones(len(ids), dtype=np.uint8)
        if row.begins and row.text:
            marks[:1] = 0
        elif row.begins:
            ids, marks = [], marks[:0]
        return _tokens(row, ids, marks)

    def _stream(self, row: Row) -> Tokens:
        """A piece of ready ids: documents end at EOS."""
        ids = row.ids
        assert ids is not None
        if int(ids.max()) >= self._source.vocab:
            raise self._at(row, self._unknown_id(ids))
        is_end = ids == self._eos
        starts = np.flatnonzero(is_end)[:-1] + 1 if is_end[-1] else np.flatnonzero(is_end) + 1
        if row.begins or not self._document_open:
            starts = np.concatenate([[0], starts])
        self._documents = 0 if row.begins else self._documents
        self._document_open = not bool(is_end[-1])
        marks = np.ones(len(ids), dtype=np.uint8)
        marks[starts] = 0
        first = row.place - number_in(row.place) + self._documents + 1
        self._documents += len(starts)
        places = np.arange(first, first + len(starts), dtype=np.int64)
        return Tokens(ids, marks, starts.astype(np.int64), places, "tokens", ends=row.ends)

    def _unknown_id(self, ids: NDArray[np.int32]) -> SwarmError:
        at = int(np.argmax(ids >= self._source.vocab))
        return SwarmError(
            "invalid-input",
            f"the data holds token {int(ids[at])}, but the model's vocabulary has "
            f"{self._source.vocab} entries",
            hint="tokenize the data with this model's own tokenizer",
        )

    def _pair(self, row: Row, prompt: list[int], answer: list[int]) -> Tokens:
        prompt = prompt[:-1] if prompt and prompt[-1] == self._eos else prompt
        answer = answer if answer and answer[-1] == self._eos else [*answer, self._eos]
        marks = np.ones(len(prompt) + len(answer), dtype=np.uint8)
        marks[: len(prompt)] = 0
        return _tokens(row, [*prompt, *answer], marks)

    def _rendered(self, row: Row) -> Chat:
        try:
            with self._guard():
                if self._template is None:
                    self._template = self._compiled()
                return self._template.chat(row.messages, row.tools)
        except SwarmError as error:
            raise self._at(row, error) from None

    def _compiled(self) -> ChatTemplate:
        template = self._source.template
        if template is None:
            raise SwarmError(
                "invalid-input",
                "this model has no chat template, so it cannot be trained on messages",
                hint="take an instruct model, or rows with prompt and completion",
            )
        return ChatTemplate(template, self._source.special)

    def _chat(self, row: Row, chat: Chat, encoded: Any) -> Tokens:
        ids, marks = encoded.ids, _marks(encoded, chat.spans, self._ends)
        learned = np.flatnonzero(marks)
        ended = not len(learned) or ids[learned[-1]] in self._ends
        if row.messages[-1]["role"] == "assistant" and not ended:
            # Else the model would learn to answer and never to stop. What the template writes
            # between the answer and its end is learned too, or generating would not get past it.
            end = int(learned[-1]) + 1
            ids, marks = [*ids, self._eos], [*marks[:end], *[1] * (len(ids) + 1 - end)]
        told = np.array(marks, dtype=np.uint8)
        return _tokens(row, ids, told, added_eos=not ended)

    def _at(self, row: Row, error: SwarmError) -> SwarmError:
        """A refusal with the row that it is about."""
        words = place_words(row.place, self._names) if self._names else "a row"
        facts = {**error.facts, "line": number_in(row.place)}
        return SwarmError(error.code, f"{words}: {error.message}", hint=error.hint, facts=facts)


def _size(row: Row) -> int:
    return len(row.text) + sum(len(message["content"]) for message in row.messages)


def _pieces(row: Row) -> Iterator[Row]:
    """A long text in pieces that end with a line, where they can."""
    if row.kind != "text" or len(row.text) <= PIECE:
        yield row
        return
    start = 0
    while start < len(row.text):
        end = start + PIECE
        if end < len(row.text):
            line_end = row.text.rfind("\n", start, end)
            end = line_end + 1 if line_end > start else end
        yield Row(
            "text",
            row.text[start:end],
            begins=row.begins and start == 0,
            ends=row.ends and end >= len(row.text),
            place=row.place,
            group=row.group,
        )
        start = end


def _marks(encoded: Any, spans: tuple[tuple[int, int], ...], ends: frozenset[int]) -> list[int]:
    """1 for tokens inside a span, and for the special token that ends the turn right behind it."""
    marks = [0] * len(encoded.ids)
    offsets = encoded.offsets
    number = 0
    for start, end in spans:
        while number < len(marks) and offsets[number][1] <= start:
            number += 1
        while number < len(marks) and offsets[number][0] < end:
            marks[number] = 1
            number += 1
        has_end = number > 0 and marks[number - 1] and encoded.ids[number - 1] in ends
        if number < len(marks) and not has_end and encoded.ids[number] in ends:
            marks[number] = 1
            number += 1
    return marks


def _tokens(
    row: Row, ids: list[int], marks: NDArray[np.uint8], *, added_eos: bool = False
) -> Tokens:
    return Tokens(
        np.array(ids, dtype=np.int32),
        marks,
        np.zeros(1 if row.begins else 0, dtype=np.int64),
        np.array([row.place] if row.begins else [], dtype=np.int64),
        row.kind,
        row.group,
        ends=row.ends,
        newlines=row.text.count("\n"),
        characters=len(row.text),
        added_eos=added_eos,
    )
