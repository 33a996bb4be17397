"""Token files: what transport.orders.TokenFile describes, written once and then measured.

A safetensors file: tokens int32 [N], supervised uint8 [N], row_starts int64 [R + 1]. Its name is
the SHA-256 of its bytes. Blocking; called in threads and in the tokenizing child.
"""

import errno
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from control.datasets.tokenize import Tokens
from control.store.files import disk_refusal, settle, sha256_of
from control.store.safetensors_file import read_header
from transport.errors import SwarmError
from transport.orders import TokenFile

HELD_OUT_SHARE = 0.05
HELD_OUT_MOST = 64
PIECE_TOKENS = 1_000_000
"""Counted at once; a longer row is counted whole."""

Layout = Literal["packed", "rows"]


@dataclass(frozen=True)
class Measured:
    """A token file at one sequence length."""

    file: TokenFile
    supervised_share: float
    """Of the training targets."""
    truncated_rows: int
    """Rows layout: longer than seq_len, cut."""


def held_out(sequences: int) -> int:
    """How many of the last sequences are kept for evaluation: 5 %, at least 1 of 2, at most 64."""
    if sequences < 2:
        return 0
    return min(HELD_OUT_MOST, max(1, math.floor(sequences * HELD_OUT_SHARE)))


def write(rows: Iterable[Tokens], layout: Layout, pad_id: int, folder: Path) -> dict[str, Any]:
    """Write a token file into a folder and tell what it is, as measure() reads it.

    Raises:
        SwarmError: invalid-input when there is nothing to learn from.
    """
    parts = [row for row in rows if len(row.ids)]
    supervised = sum(int(row.supervised[1:].sum()) for row in parts)
    if not supervised:
        raise SwarmError(
            "invalid-input",
            f"the data has {len(parts)} rows and no token to learn from: all are empty or masked",
            hint="add rows with text, completions or messages of the assistant",
        )
    starts = np.zeros(len(parts) + 1, dtype=np.int64)
    starts[1:] = np.cumsum([len(row.ids) for row in parts])
    tensors = {
        "tokens": np.concatenate([row.ids for row in parts]),
        "supervised": np.concatenate([row.supervised for row in parts]),
        "row_starts": starts,
    }
    beside = folder / "new.safetensors.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, str(beside))
    except (OSError, SafetensorError) as error:
        beside.unlink(missing_ok=True)
        raise _unwritten(error) from error
    digest = sha256_of(beside)
    told = {
        "digest": digest,
        "size_bytes": beside.stat().st_size,
        "layout": layout,
        "num_tokens": int(starts[-1]),
        "num_rows": len(parts),
        "pad_token_id": pad_id,
    }
    settle(beside, folder / f"{digest}.safetensors")
    return told


def _unwritten(error: Exception) -> SwarmError:
    """safetensors tells the number of a disk's refusal in its words only."""
    number = errno.ENOSPC if f"os error {errno.ENOSPC}" in str(error) else None
    return disk_refusal(OSError(getattr(error, "errno", number), str(error)), "the token file")


def measure(path: Path, told: Mapping[str, Any], seq_len: int) -> Measured:
    """Cut a token file at a sequence length.

    Raises:
        SwarmError: invalid-input, with numbers, when no sequence fits or all targets are masked.
    """
    marks, starts = _mapped(path, "supervised", np.uint8), _mapped(path, "row_starts", np.int64)
    if told["layout"] == "packed":
        total, truncated = int(starts[-1]) // seq_len, 0
        if not total:
            raise SwarmError(
                "invalid-input",
                f"the data has {int(starts[-1])} tokens, less than one sequence of {seq_len}",
                hint="add data to the bucket, or set a smaller train.seq_len",
            )
    else:
        total, truncated = len(starts) - 1, int((np.diff(starts) > seq_len).sum())
    held = held_out(total)
    train = total - held
    learned, targets = _targets(marks, starts, told["layout"], seq_len, train)
    if not learned:
        raise SwarmError(
            "invalid-input",
            f"all targets of the {train} training sequences are masked at {seq_len} tokens",
            hint="set a longer train.seq_len: the prompts alone fill the sequences",
        )
    file = TokenFile(**told, train_sequences=train, held_out_sequences=held)
    return Measured(file, learned / targets, truncated)


def _mapped(path: Path, name: str, dtype: Any) -> Any:
    """One tensor of a file, read as it is used.

    safetensors' own reader copies it while it holds the interpreter's lock: 200 MB of text kept
    the leader's event loop waiting for 0.2 s.
    """
    tensor = next(one for one in read_header(path) if one.name == name)
    if tensor.start == tensor.end:
        return np.zeros(tensor.shape, dtype)
    return np.memmap(path, dtype, mode="r", offset=tensor.start, shape=tensor.shape)


def _targets(marks: Any, starts: Any, layout: Layout, seq_len: int, train: int) -> tuple[int, int]:
    """(supervised, all) targets of the training sequences: every token but a sequence's first."""
    if layout == "packed":
        used = marks[: train * seq_len].reshape(train, seq_len)[:, 1:]
        return int(used.sum()), int(used.size)
    learned = targets = at = 0
    while at < train:
        # In pieces: a sum over all of it would hold the interpreter's lock (0.8 s at 200 MB).
        until = int(np.searchsorted(starts, starts[at] + PIECE_TOKENS, "right")) - 1
        until = min(train, max(at + 1, until))
        begin, end = starts[at:until], starts[at + 1 : until + 1]
        running = np.cumsum(marks[begin[0] : end[-1]], dtype=np.int64)
        running = np.concatenate([[0], running])
        first, last = np.minimum(begin + 1, end), np.minimum(begin + seq_len, end)
        learned += int((running[last - begin[0]] - running[first - begin[0]]).sum())
        targets += int((last - first).sum())
        at = until
    return learned, max(1, targets)
