"""Which sequences a step reads: a pure function of (seed, step), and the token file behind it.

Text never reaches this side: the file holds token ids and a supervision mask.
"""

# B = sequences, T = tokens

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from stage_runtime.documents import Documents
from stage_runtime.loss import IGNORED
from transport.errors import SwarmError
from transport.orders import StageOrder, TokenFile


def epoch_order(seed: int, epoch: int, num_sequences: int) -> np.ndarray[Any, Any]:
    """The order of an epoch: a permutation drawn from (seed, epoch), the same on every machine.

    Sorts raw random words, whose stream numpy promises never to change.
    """
    words = np.random.PCG64(np.random.SeedSequence((seed, epoch))).random_raw(num_sequences)
    return np.argsort(words, kind="stable")


def indices_of_step(seed: int, step: int, batch_size: int, num_sequences: int) -> list[int]:
    """The training sequences of a step (from 1): the next batch_size of the endless epochs."""
    first = (step - 1) * batch_size
    places = range(first, first + batch_size)
    epochs = {place // num_sequences for place in places}
    orders = {epoch: epoch_order(seed, epoch, num_sequences) for epoch in epochs}
    return [int(orders[place // num_sequences][place % num_sequences]) for place in places]


@dataclass(frozen=True)
class Batch:
    """Token ids and targets of some sequences, both (B, T) int64 on the CPU."""

    tokens: Tensor
    targets: Tensor
    """The next token where it is supervised, else IGNORED. The last column always is IGNORED."""
    positions: Tensor | None = None
    """(B, T) int64 where documents that share a sequence do not see each other."""

    @property
    def num_targets(self) -> int:
        """Supervised targets in the batch."""
        return int((self.targets != IGNORED).sum())


def documents_of(batch: Batch) -> list[Batch]:
    """Each document of a batch as a batch of its own, as if nothing stood beside it."""
    assert batch.positions is not None
    found = []
    for row, positions in enumerate(batch.positions):
        begins = torch.nonzero(positions == 0).flatten().tolist()
        for first, until in zip(begins, [*begins[1:], len(positions)], strict=True):
            span = (slice(row, row + 1), slice(first, until))
            found.append(Batch(batch.tokens[span], batch.targets[span]))
    return found


class Sequences:
    """The sequences of a token file at a sequence length, training ones first."""

    def __init__(
        self,
        file: TokenFile,
        tokens: Any,
        supervised: Any,
        row_starts: Any,
        documents: Documents | None = None,
    ) -> None:
        self.file = file
        self.documents = documents
        self._tokens = tokens
        self._supervised = supervised
        self._row_starts = row_starts

    def batch(self, indices: list[int], seq_len: int) -> Batch:
        """The named sequences, padded right; an index of -1 is an empty row."""
        tokens = np.full((len(indices), seq_len), self.file.pad_token_id, dtype=np.int64)
        targets = np.full((len(indices), seq_len), IGNORED, dtype=np.int64)
        for row, index in enumerate(indices):
            start, end = self._span(index, seq_len)
            length = end - start
            tokens[row, :length] = self._tokens[start:end]
            if length > 1:
                counted = self._supervised[start + 1 : end] != 0
                targets[row, : length - 1][counted] = self._tokens[start + 1 : end][counted]
        told = self.documents
        positions = None if told is None else told.positions(indices, seq_len)
        return Batch(torch.from_numpy(tokens), torch.from_numpy(targets), positions)

    def held_out(self, count: int) -> list[int]:
        """The first `count` of the held-out sequences, which lie at the file's end."""
        return held_out_of(self.file, count)

    def _span(self, index: int, seq_len: int) -> tuple[int, int]:
        if index < 0:
            return 0, 0
        if self.file.layout == "packed":
            return index * seq_len, (index + 1) * seq_len
        start, end = int(self._row_starts[index]), int(self._row_starts[index + 1])
        return start, min(end, start + seq_len)


@dataclass(frozen=True)
class Seams:
    """What a stage without tokens reads of the sequences: where documents begin."""

    documents: Documents

    def batch(self, indices: list[int], seq_len: int) -> Batch:
        """Positions only."""
        none = torch.empty(0, dtype=torch.int64)
        return Batch(none, none, self.documents.positions(indices, seq_len))

    def held_out(self, count: int) -> list[int]:
        """The first `count` of the held-out sequences."""
        return held_out_of(self.documents.file, count)


def held_out_of(file: TokenFile, count: int) -> list[int]:
    """The first `count` of a file's held-out sequences."""
    total = file.train_sequences + file.held_out_sequences
    return list(range(file.train_sequences, total))[:count]


def open_data(order: StageOrder, path: Path, vocab: int) -> Sequences | Seams:
    """What a stage reads of the token file at its place in the pipeline.

    Raises:
        SwarmError: invalid-input, as open_sequences.
    """
    settings = order.settings
    if order.is_first or order.is_last:
        masks = settings.document_mask
        return open_sequences(path, order.tokens, settings.seq_len, vocab, masks=masks)
    try:
        with safe_open(str(path), framework="np") as opened:
            return Seams(Documents(order.tokens, opened.get_tensor("row_starts")))
    except (SafetensorError, OSError, ValueError) as error:
        raise _broken(f"the list of documents cannot be read: {str(error)[:200]}") from error


def open_sequences(
    path: Path, file: TokenFile, seq_len: int, vocab: int, *, masks: bool = False
) -> Sequences:
    """Read a token file.

    masks: batches tell where documents begin.

    Raises:
        SwarmError: invalid-input; the file is not what the order says, holds fewer sequences than
            the order counts, or a token that the model's vocabulary does not have.
    """
    try:
        with safe_open(str(path), framework="np") as opened:
            tokens = opened.get_tensor("tokens")
            supervised = opened.get_tensor("supervised")
            row_starts = opened.get_tensor("row_starts")
    except (SafetensorError, OSError, ValueError) as error:
        raise _broken(f"the token file cannot be read: {str(error)[:200]}") from error
    if len(tokens) != file.num_tokens or len(supervised) != len(tokens):
        raise _broken(
            f"the token file holds {len(tokens)} tokens, the order says {file.num_tokens}"
        )
    has = len(tokens) // seq_len if file.layout == "packed" else len(row_starts) - 1
    wants = file.train_sequences + file.held_out_sequences
    if has < wants:
        raise _broken(f"the token file holds {has} sequences of {seq_len}, the order says {wants}")
    highest = int(tokens.max(initial=0))
    if highest >= vocab or int(tokens.min(initial=0)) < 0:
        raise SwarmError(
            "invalid-input",
            f"the data holds token {highest}, but the model's vocabulary has {vocab} entries",
            hint="tokenize the data with this model's own tokenizer",
        )
    documents = Documents(file, row_starts) if masks else None
    return Sequences(file, tokens, supervised, row_starts, documents)


def _broken(message: str) -> SwarmError:
    return SwarmError("invalid-input", message, hint="submit the job again to tokenize anew")
