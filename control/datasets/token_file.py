"""Token files: what transport.orders.TokenFile describes, written once and then measured.

A safetensors file: tokens int32 [N], supervised uint8 [N], row_starts int64 [R + 1], and for the
leader row_places int64 [R]. Its name is the SHA-256 of its bytes. Written as tokens come, so that
memory grows with rows and not with tokens. Blocking; called in threads and in the child.
"""

import contextlib
import hashlib
import json
import os
import struct
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from control.datasets.held_out import Decide, wanted
from control.datasets.rows import Layout
from control.datasets.tokenize import Tokens
from control.store.files import disk_refusal, settle
from control.store.safetensors_file import read_header
from transport.api.job_config import HeldOutConfig
from transport.errors import SwarmError
from transport.orders import TokenFile

PIECE_TOKENS = 1_000_000
"""Counted at once; a longer row is counted whole."""
COPIED = 1 << 20
TAIL = HeldOutConfig()


@dataclass(frozen=True)
class Shape:
    """How tokens become a file."""

    layout: Layout
    pad_id: int
    decide: Decide | None = None
    """Which rows are held out; None leaves that to measure()."""
    align: int | None = None
    """Packed and decided by rows: the training stream is cut to whole sequences of this length, so
    that no sequence holds rows of both sides.
    """


@dataclass(frozen=True)
class Faulty:
    """Rows that a sequence length spoils."""

    count: int
    place: int
    """Of the first; -1 when there is none."""


@dataclass(frozen=True)
class Measured:
    """A token file at one sequence length."""

    file: TokenFile
    supervised_share: float
    """Of the training targets."""
    truncated: Faulty
    """Rows layout: longer than seq_len, cut."""
    long_prompts: Faulty
    """Rows layout: rows that have something to learn, all of it behind the cut."""

    @property
    def truncated_rows(self) -> int:
        """How many rows are cut."""
        return self.truncated.count


class _Part:
    """A growing part of a token file: its tokens and marks on disk, its rows in memory."""

    def __init__(self, folder: Path, name: str) -> None:
        self.tokens_path = folder / f"{name}.tokens"
        self.marks_path = folder / f"{name}.marks"
        self._tokens = self.tokens_path.open("wb")
        self._marks = self.marks_path.open("wb")
        self.starts = array("q")
        self.places = array("q")
        self.size = 0
        self.learned = 0

    def add(self, told: Tokens) -> None:
        """Append; rows without a token are left out."""
        ends = [*told.starts[1:].tolist(), len(told.ids)]
        for start, end, place in zip(told.starts.tolist(), ends, told.places.tolist()):
            if end > start:
                self.starts.append(self.size + start)
                self.places.append(place)
        self._tokens.write(told.ids.tobytes())
        self._marks.write(told.supervised.tobytes())
        marks = told.supervised
        # A row's first token is never a target: nothing of the row stands before it.
        first = told.starts[told.starts < len(marks)]
        self.learned += int(marks.sum()) - int(marks[first].sum())
        self.size += len(told.ids)

    def cut(self, size: int) -> None:
        """Forget all tokens from `size` on."""
        self.close()
        os.truncate(self.tokens_path, size * 4)
        os.truncate(self.marks_path, size)
        while self.starts and self.starts[-1] >= size:
            self.starts.pop()
            self.places.pop()
        self.size = size

    def close(self) -> None:
        """Flush to disk."""
        self._tokens.close()
        self._marks.close()


def write(rows: Iterable[Tokens], shape: Shape, folder: Path, work: Path) -> dict[str, Any]:
    """Write a token file into a folder and tell what it is, as measure() reads it.

    Args:
        work: a folder for what is not done yet; made here and removed.

    Raises:
        SwarmError: invalid-input when there is nothing to learn from; storage-full.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        work.mkdir(parents=True, exist_ok=True)
        train, held = _Part(work, "train"), _Part(work, "held")
        try:
            rows_seen = _sort(rows, shape.decide, train, held)
        finally:
            train.close()
            held.close()
        _refuse_useless(train, held, rows_seen, shape)
        return _joined(train, held, shape, folder)
    except OSError as error:
        raise disk_refusal(error, "the token file") from error
    finally:
        _remove(work)


def _remove(work: Path) -> None:
    with contextlib.suppress(OSError):
        for path in work.iterdir():
            path.unlink(missing_ok=True)
        work.rmdir()


def _sort(rows: Iterable[Tokens], decide: Decide | None, train: _Part, held: _Part) -> int:
    """Give each row its side; how many rows there were."""
    number, part = -1, train
    for told in rows:
        if len(told.places) <= 1 or decide is None:
            number += len(told.places)
            if len(told.places) and decide is not None:
                part = held if decide(number, told.group) else train
            part.add(told)
            continue
        for piece in _apart(told):
            number += len(piece.places)
            if len(piece.places):
                part = held if decide(number, told.group) else train
            part.add(piece)
    return number + 1


def _apart(told: Tokens) -> Iterable[Tokens]:
    """Several documents, one by one; what goes on with the one before comes first."""
    cuts = [0, *told.starts.tolist(), len(told.ids)]
    for at, (start, end) in enumerate(pairwise(cuts)):
        if end > start:
            rows = told.places[at - 1 : at] if at else told.places[:0]
            starts = np.zeros(len(rows), dtype=np.int64)
            yield Tokens(told.ids[start:end], told.supervised[start:end], starts, rows, told.kind)


def _refuse_useless(train: _Part, held: _Part, rows: int, shape: Shape) -> None:
    if not train.learned:
        raise SwarmError(
            "invalid-input",
            f"the data has {rows} rows and no token to learn from: all are empty or masked",
            hint="add rows with text, completions or messages of the assistant",
        )
    if shape.decide is None:
        return
    if shape.align is not None and (train.size < shape.align or held.size < shape.align):
        short = train.size < shape.align
        side, size = ("train on", train.size) if short else ("hold out", held.size)
        raise SwarmError(
            "invalid-input",
            f"held out by rows, {size} tokens are left to {side}: less than one sequence of "
            f"{shape.align}",
            hint="add data, hold out another share, or set a smaller train.seq_len",
        )
    if not held.size:
        raise SwarmError(
            "invalid-input",
            "the rows to hold out have no tokens: all are empty",
            hint="hold out another share or by another seed",
        )


def _joined(train: _Part, held: _Part, shape: Shape, folder: Path) -> dict[str, Any]:
    """One file of both parts, the held-out one last."""
    if shape.align is not None and shape.decide is not None:
        train.cut(train.size // shape.align * shape.align)
        held.cut(held.size // shape.align * shape.align)
    starts = np.concatenate([train.starts, np.array(held.starts, np.int64) + train.size])
    starts = np.concatenate([starts, [train.size + held.size]]).astype(np.int64)
    places = np.concatenate([train.places, held.places]).astype(np.int64)
    beside = train.tokens_path.with_name("joined")
    size = int(starts[-1])
    with beside.open("wb") as out:
        digest = hashlib.sha256()
        told = {"row_starts": starts, "row_places": places}
        _put(out, digest, _header(told, size))
        for array_ in told.values():
            _put(out, digest, array_.tobytes())
        for path in (train.tokens_path, held.tokens_path, train.marks_path, held.marks_path):
            _copy(path, out, digest)
        out.flush()
        os.fsync(out.fileno())
    made = {
        "digest": digest.hexdigest(),
        "size_bytes": beside.stat().st_size,
        "layout": shape.layout,
        "num_tokens": size,
        "num_rows": len(places),
        "pad_token_id": shape.pad_id,
    }
    settle(beside, folder / f"{made['digest']}.safetensors")
    decided = {"rows": len(held.places), "tokens": held.size} if shape.decide is not None else None
    return {"file": made, "held": decided}


def _header(told: Mapping[str, Any], size: int) -> bytes:
    entries: dict[str, Any] = {}
    place = 0
    sizes = [(name, "I64", [len(values)], 8 * len(values)) for name, values in told.items()]
    sizes += [("tokens", "I32", [size], 4 * size), ("supervised", "U8", [size], size)]
    for name, dtype, shape, length in sizes:
        offsets = [place, place + length]
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        place += length
    raw = json.dumps(entries, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw


def _put(out: BinaryIO, digest: Any, data: bytes) -> None:
    out.write(data)
    digest.update(data)


def _copy(path: Path, out: BinaryIO, digest: Any) -> None:
    with path.open("rb") as handle:
        while piece := handle.read(COPIED):
            _put(out, digest, piece)


# --- measured ------------------------------------------------------------------------------------


def measure(
    path: Path, told: Mapping[str, Any], seq_len: int, asked: HeldOutConfig = TAIL
) -> Measured:
    """Cut a token file at a sequence length.

    Raises:
        SwarmError: invalid-input, with numbers, when no sequence fits or all targets are masked.
    """
    marks, starts = _mapped(path, "supervised", np.uint8), _mapped(path, "row_starts", np.int64)
    file = told["file"]
    total = _sequences(file, starts, seq_len)
    held = _held(told, total, seq_len, asked)
    train = total - held
    if file["layout"] == "packed":
        used = _packed_targets(marks, seq_len, train)
        truncated = long_prompts = Faulty(0, -1)
    else:
        places = _mapped(path, "row_places", np.int64)
        used, spoiled = _row_targets(marks, starts, seq_len, train)
        lengths = np.diff(starts)
        cut = np.flatnonzero(lengths > seq_len)
        truncated = _faulty(cut, places)
        long_prompts = _faulty(spoiled, places)
    learned, targets = used
    if not learned:
        raise SwarmError(
            "invalid-input",
            f"all targets of the {train} training sequences are masked at {seq_len} tokens",
            hint="set a longer train.seq_len: the prompts alone fill the sequences",
            facts={"count": long_prompts.count, "place": long_prompts.place},
        )
    made = TokenFile(**file, train_sequences=train, held_out_sequences=held)
    return Measured(made, learned / max(1, targets), truncated, long_prompts)


def _faulty(rows: Any, places: Any) -> Faulty:
    return Faulty(len(rows), int(places[int(rows[0])]) if len(rows) else -1)


def _sequences(file: Mapping[str, Any], starts: Any, seq_len: int) -> int:
    if file["layout"] == "rows":
        return len(starts) - 1
    total = int(starts[-1]) // seq_len
    if not total:
        raise SwarmError(
            "invalid-input",
            f"the data has {int(starts[-1])} tokens, less than one sequence of {seq_len}",
            hint="add data to the bucket, or set a smaller train.seq_len",
        )
    return total


def _held(told: Mapping[str, Any], total: int, seq_len: int, asked: HeldOutConfig) -> int:
    decided = told.get("held")
    if decided is None:
        return wanted(asked, total)
    if told["file"]["layout"] == "packed":
        return int(decided["tokens"]) // seq_len
    return int(decided["rows"])


def _mapped(path: Path, name: str, dtype: Any) -> Any:
    """One tensor of a file, read as it is used.

    safetensors' own reader copies it while it holds the interpreter's lock: 200 MB of text kept
    the leader's event loop waiting for 0.2 s.
    """
    tensor = next(one for one in read_header(path) if one.name == name)
    if tensor.start == tensor.end:
        return np.zeros(tensor.shape, dtype)
    return np.memmap(path, dtype, mode="r", offset=tensor.start, shape=tensor.shape)


def _packed_targets(marks: Any, seq_len: int, train: int) -> tuple[int, int]:
    """(supervised, all) targets of the training sequences: every token but a sequence's first."""
    learned = targets = 0
    step = max(1, PIECE_TOKENS // seq_len)
    for at in range(0, train, step):
        until = min(train, at + step)
        used = marks[at * seq_len : until * seq_len].reshape(until - at, seq_len)[:, 1:]
        learned += int(used.sum())
        targets += int(used.size)
    return learned, targets


def _row_targets(
    marks: Any, starts: Any, seq_len: int, train: int
) -> tuple[tuple[int, int], list[int]]:
    """((supervised, all) targets, training rows of which the cut leaves nothing to learn)."""
    learned = targets = at = 0
    spoiled: list[int] = []
    while at < train:
        # In pieces: a sum over all of it would hold the interpreter's lock (0.8 s at 200 MB).
        until = int(np.searchsorted(starts, starts[at] + PIECE_TOKENS, "right")) - 1
        until = min(train, max(at + 1, until))
        begin, end = starts[at:until], starts[at + 1 : until + 1]
        running = np.cumsum(marks[begin[0] : end[-1]], dtype=np.int64)
        running = np.concatenate([[0], running])
        first, last = np.minimum(begin + 1, end), np.minimum(begin + seq_len, end)
        kept = running[last - begin[0]] - running[first - begin[0]]
        whole = running[end - begin[0]] - running[first - begin[0]]
        spoiled += (np.flatnonzero((kept == 0) & (whole > 0)) + at).tolist()
        learned += int(kept.sum())
        targets += int((last - first).sum())
        at = until
    return (learned, targets), spoiled
