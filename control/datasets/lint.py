"""Looks through tokens as they are made, for what spoils a run without stopping it.

Each fault is counted, with the place of the first row that has it. What depends on the sequence
length is found later, in token_file.
"""

import hashlib
from array import array
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from control.datasets.rows import place_words
from control.datasets.tokenize import Tokens
from control.datasets.tokenizer_folder import TokenizerFolder
from transport.errors import SwarmError

LONG_LINE = 20_000  # characters of a document without a line's end
SAMPLE_TOKENS = 110
SAMPLE_CHARACTERS = 480
OPEN, CLOSE = "⟦", "⟧"


@dataclass
class Fault:
    """How many rows have a fault, and the first of them."""

    count: int = 0
    place: int = -1

    def note(self, place: int, more: int = 1) -> None:
        """One more."""
        self.count += more
        if self.place < 0:
            self.place = place


@dataclass
class _Document:
    """A document that comes in several pieces."""

    place: int
    newlines: int = 0
    characters: int = 0
    digest: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=8))


class Lint:
    """The watch over one data set's tokens."""

    def __init__(self, source: TokenizerFolder) -> None:
        self._source = source
        self._eos = source.eos_id
        self._stops = source.stop_ids
        self._bos = source.bos_id
        opening = source.tokenizer.encode("a").ids
        self._wants_bos = self._bos is not None and opening[:1] == [self._bos]
        self._faults: dict[str, Fault] = {}
        self._digests = array("Q")
        self._places = array("q")
        self._document: _Document | None = None
        self._sample: list[tuple[str, bool]] | None = None
        self._first: list[tuple[str, bool]] | None = None
        """The beginning of the first row that is not empty, learned or not."""
        self._turn_ends: set[int] = set()
        self.num_rows = 0
        self.num_eos = 0

    def look(self, told: Tokens) -> None:
        """Take in what was encoded."""
        self.num_rows += len(told.places)
        if self._first is None and len(told.ids):
            self._first = decoded(self._source, told)
        if self._sample is None and told.supervised.any():
            self._sample = _around_learned(self._source, told)
        if told.kind == "tokens":
            self.num_eos += int((told.ids == self._eos).sum())
            self._streams(told)
        elif told.kind == "text":
            self._piece(told)
        else:
            self._row(told)

    def told(self) -> dict[str, Any]:
        """All that was found, as JSON values: fault -> [count, place]."""
        self._close()
        faults = {name: [f.count, f.place] for name, f in self._faults.items() if f.count}
        twice = self._duplicates()
        faults |= {"duplicates": [twice.count, twice.place]} if twice.count else {}
        names = [self._source.tokenizer.id_to_token(one) for one in sorted(self._turn_ends)[:3]]
        return {
            "faults": faults,
            "rows": self.num_rows,
            "turn_ends": names,
            "stops": [self._source.tokenizer.id_to_token(one) for one in sorted(self._stops)[:3]],
            "sample": marked_text(self._sample or []),
        }

    def useless(self, error: SwarmError, names: list[str]) -> SwarmError:
        """The refusal of data of which nothing is learned, with the first such row."""
        fault = self._faults.get("masked")
        if fault is None:
            return error
        where = place_words(fault.place, names)
        count = f"{fault.count:,} have all their tokens masked, first {where}"
        facts = {**error.facts, "untrusted_sample": marked_text(self._first or [])}
        return SwarmError(error.code, f"{error.message}: {count}", hint=error.hint, facts=facts)

    def _note(self, fault: str, place: int) -> None:
        self._faults.setdefault(fault, Fault()).note(place)

    def _piece(self, told: Tokens) -> None:
        if len(told.places):
            self._close()
            self._document = _Document(int(told.places[0]))
            if len(told.ids):
                self._openings(told, int(told.places[0]))
            else:
                self._note("empty", int(told.places[0]))
                self._document = None
        if self._document is not None:
            self._document.newlines += told.newlines
            self._document.characters += told.characters
            self._document.digest.update(told.ids.tobytes())
            if told.ends:
                self._close()

    def _close(self) -> None:
        document, self._document = self._document, None
        if document is None:
            return
        if not document.newlines and document.characters > LONG_LINE:
            self._note("long-line", document.place)
        self._remember(document.digest.digest(), document.place)

    def _streams(self, told: Tokens) -> None:
        """Ready ids: whole documents between two starts are compared, pieces are not."""
        starts = told.starts.tolist()
        for at, place in enumerate(told.places.tolist()):
            end = starts[at + 1] if at + 1 < len(starts) else len(told.ids)
            ids = told.ids[starts[at] : end]
            whole = bool(len(ids)) and int(ids[-1]) == self._eos
            twice = ids[:2].tolist() == [self._bos, self._bos]
            if twice and self._bos != self._eos:
                self._note("bos-doubled", place)
            if whole and len(ids) == 1:
                self._note("eos-doubled", place)
            elif whole:
                self._remember(_digest(ids), place)
        if told.ends and not self.num_eos:
            self._note("eos-missing", int(told.places[0]) if len(told.places) else -1)

    def _row(self, told: Tokens) -> None:
        place = int(told.places[0])
        if not len(told.ids):
            self._note("empty", place)
            return
        self._openings(told, place)
        learned = np.flatnonzero(told.supervised)
        if not len(learned[learned > 0]):
            self._note("masked", place)
        else:
            self._endings(told, learned, place)
        self._remember(_digest(told.ids), place)

    def _openings(self, told: Tokens, place: int) -> None:
        if self._bos is None:
            return
        first = told.ids[:2].tolist()
        if first == [self._bos, self._bos]:
            self._note("bos-doubled", place)
        elif self._wants_bos and first[:1] != [self._bos]:
            self._note("bos-missing", place)

    def _endings(self, told: Tokens, learned: Any, place: int) -> None:
        last = int(told.ids[learned[-1]])
        if told.added_eos or last not in self._stops:
            self._note("eos-missing", place)
            self._turn_ends |= set() if told.added_eos else {last}
        if learned[-1] and last == self._eos == int(told.ids[learned[-1] - 1]):
            self._note("eos-doubled", place)

    def _remember(self, digest: bytes, place: int) -> None:
        self._digests.append(int.from_bytes(digest, "little"))
        self._places.append(place)

    def _duplicates(self) -> Fault:
        """Rows whose tokens a row before them has already."""
        digests = np.frombuffer(self._digests, dtype=np.uint64) if self._digests else np.zeros(0)
        order = np.argsort(digests, kind="stable")
        again = digests[order][1:] == digests[order][:-1]
        rows = order[1:][again]
        if not len(rows):
            return Fault()
        return Fault(len(rows), int(self._places[int(rows.min())]))


def _digest(ids: Any) -> bytes:
    return hashlib.blake2b(ids.tobytes(), digest_size=8).digest()


def _around_learned(source: TokenizerFolder, told: Tokens) -> list[tuple[str, bool]]:
    """A row's beginning, or where a long prompt ends and what is learned begins."""
    first = int(np.argmax(told.supervised))
    start = max(0, first - SAMPLE_TOKENS // 2) if first >= SAMPLE_TOKENS else 0
    kept = replace(told, ids=told.ids[start:], supervised=told.supervised[start:])
    return [*([("…", False)] if start else []), *decoded(source, kept)]


def decoded(
    source: TokenizerFolder, told: Tokens, most: int = SAMPLE_TOKENS
) -> list[tuple[str, bool]]:
    """The beginning of a row as parts of text, each learned or not."""
    end = int(told.starts[1]) if len(told.starts) > 1 else len(told.ids)
    ids, marks = told.ids[: min(end, most)], told.supervised[: min(end, most)]
    cuts = [0, *(np.flatnonzero(np.diff(marks)) + 1).tolist(), len(ids)]
    return [
        (source.tokenizer.decode(ids[a:b].tolist(), skip_special_tokens=False), bool(marks[a]))
        for a, b in pairwise(cuts)
        if b > a
    ]


def marked_text(parts: list[tuple[str, bool]], most: int = SAMPLE_CHARACTERS) -> str:
    """Parts as one text, with brackets around what is learned."""
    text = "".join(f"{OPEN}{part}{CLOSE}" if learned else part for part, learned in parts)
    return text if len(text) <= most else text[: most - 1] + "…"
