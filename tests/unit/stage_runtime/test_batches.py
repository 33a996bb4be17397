"""Which sequences a step reads, and what stands in a batch."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stage_runtime.batches import epoch_order, indices_of_step, open_sequences
from stage_runtime.loss import IGNORED
from tests.oracle.tokens import write_token_file
from transport.errors import SwarmError
from transport.orders import TokenFile


@given(
    seed=st.integers(0, 2**40),
    batch_size=st.integers(1, 9),
    num_sequences=st.integers(1, 20),
    epochs=st.integers(1, 3),
)
def test_every_epoch_reads_every_sequence_once_whatever_the_batch_size(
    seed: int, batch_size: int, num_sequences: int, epochs: int
) -> None:
    steps = -(-num_sequences * epochs // batch_size)
    read = [
        index
        for step in range(1, steps + 1)
        for index in indices_of_step(seed, step, batch_size, num_sequences)
    ]
    for epoch in range(epochs):
        part = read[epoch * num_sequences : (epoch + 1) * num_sequences]
        assert Counter(part) == Counter(range(num_sequences))


def test_the_order_is_fixed_for_good() -> None:
    """A resumed job, and another version, must read the same sequences."""
    assert epoch_order(3, 0, 8).tolist() == [0, 4, 7, 1, 5, 6, 3, 2]
    assert epoch_order(3, 1, 8).tolist() != epoch_order(3, 0, 8).tolist()
    assert epoch_order(4, 0, 8).tolist() != epoch_order(3, 0, 8).tolist()


def rows_file(cache: Path) -> TokenFile:
    return write_token_file(
        cache,
        layout="rows",
        rows=[np.array([1, 2, 3]), np.array([4]), np.array([5, 6, 7, 8, 9, 10])],
        supervised=[np.array([0, 0, 1]), np.array([1]), np.array([1, 1, 0, 1, 1, 1])],
        seq_len=4,
        held_out=1,
        pad=99,
    )


def path_of(cache: Path, file: TokenFile) -> Path:
    return cache / "tokens" / f"{file.digest}.safetensors"


def test_rows_are_cut_at_seq_len_padded_right_and_counted_by_their_target(tmp_path: Path) -> None:
    file = rows_file(tmp_path)
    sequences = open_sequences(path_of(tmp_path, file), file, 4, 100)
    batch = sequences.batch([0, 1, 2, -1], 4)
    assert batch.tokens.tolist() == [[1, 2, 3, 99], [4, 99, 99, 99], [5, 6, 7, 8], [99] * 4]
    off = IGNORED
    assert batch.targets.tolist() == [[off, 3, off, off], [off] * 4, [6, off, 8, off], [off] * 4]
    assert batch.num_targets == 3
    assert sequences.held_out(5) == [2]


def test_packed_sequences_do_not_overlap_and_the_rest_is_left_out(tmp_path: Path) -> None:
    ids = np.arange(11)
    file = write_token_file(
        tmp_path,
        layout="packed",
        rows=[ids],
        supervised=[np.ones_like(ids)],
        seq_len=4,
        held_out=1,
        pad=99,
    )
    sequences = open_sequences(path_of(tmp_path, file), file, 4, 100)
    batch = sequences.batch([0, 1], 4)
    assert batch.tokens.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert batch.targets.tolist() == [[1, 2, 3, IGNORED], [5, 6, 7, IGNORED]]
    assert (file.train_sequences, sequences.held_out(9)) == (1, [1])


@pytest.mark.parametrize(
    ("changes", "vocab", "names"),
    [
        ({}, 10, "token 10"),
        ({"num_tokens": 11}, 100, "holds 10 tokens"),
        ({"train_sequences": 3}, 100, "holds 3 sequences"),
    ],
)
def test_a_file_that_is_not_what_the_order_says_is_refused(
    tmp_path: Path, changes: dict[str, object], vocab: int, names: str
) -> None:
    file = rows_file(tmp_path)
    with pytest.raises(SwarmError, match=names) as refusal:
        open_sequences(path_of(tmp_path, file), file.model_copy(update=changes), 4, vocab)
    assert refusal.value.code == "invalid-input"


def test_a_file_that_is_no_token_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"not safetensors")
    with pytest.raises(SwarmError) as refusal:
        open_sequences(path, rows_file(tmp_path), 4, 100)
    assert refusal.value.code == "invalid-input"
