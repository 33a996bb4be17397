"""Where documents begin in a sequence, and the list of them without their tokens."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from stage_runtime.batches import Seams, open_data
from stage_runtime.documents import Documents, fetch_document_starts
from stage_runtime.leader_files import LeaderAccess
from tests.oracle.leader_twin import TOKEN, LeaderTwin
from tests.oracle.settings import some_settings
from tests.oracle.stages import Case
from tests.oracle.tokens import packed_documents
from transport.errors import SwarmError
from transport.orders import StageOrder, TokenFile

FILE = TokenFile(
    digest="0" * 64, size_bytes=1, layout="packed", num_tokens=1, num_rows=1,
    train_sequences=1, held_out_sequences=0, pad_token_id=0,
)  # fmt: skip


def go_on() -> None:
    """Nobody asks to stop."""


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    seq_len=st.integers(1, 7),
    seed=st.integers(0, 9),
)
def test_positions_count_from_the_documents_beginning_or_from_the_sequences(
    lengths: list[int], seq_len: int, seed: int
) -> None:
    starts = np.cumsum([0, *lengths])
    count = int(starts[-1]) // seq_len
    chosen = np.random.default_rng(seed).permutation(count).tolist()
    found = Documents(FILE, starts).positions(chosen, seq_len)
    inside = [at for length in lengths for at in range(length)]
    for row, index in zip(found.tolist(), chosen, strict=True):
        own = inside[index * seq_len : (index + 1) * seq_len]
        seam = next((at for at, position in enumerate(own) if position == 0), seq_len)
        assert row == [*range(seam), *own[seam:]]


def test_rows_have_one_document_each_and_an_empty_row_none() -> None:
    rows = FILE.model_copy(update={"layout": "rows"})
    starts = np.array([0, 3, 9])
    assert torch.equal(Documents(rows, starts).positions([1], 4)[0], torch.arange(4))
    assert torch.equal(Documents(FILE, starts).positions([-1], 4)[0], torch.arange(4))


@pytest.fixture
def file(tmp_path: Path) -> TokenFile:
    return packed_documents(tmp_path / "served", seq_len=8, sequences=40)


@pytest.fixture
def leader(tmp_path: Path, file: TokenFile) -> Iterator[LeaderTwin]:
    twin = LeaderTwin(models={}, tokens=tmp_path / "served" / "tokens").start()
    yield twin
    twin.stop()


def a_middle_stage(cache: Path, file: TokenFile) -> StageOrder:
    settings = some_settings(document_mask=True, seq_len=8)
    return Case(cache, "any", 6, settings, file).orders([(0, 1), (2, 3), (4, 5)])[1]


def test_a_stage_between_fetches_the_list_of_documents_once_and_no_token(
    leader: LeaderTwin, tmp_path: Path, file: TokenFile
) -> None:
    access, order = LeaderAccess(leader.url, TOKEN, None), a_middle_stage(tmp_path, file)
    path, fetched = fetch_document_starts(access, tmp_path, file, go_on)
    again = fetch_document_starts(access, tmp_path, file, go_on)
    assert again == (path, 0)
    assert 8 * (file.num_rows + 1) < fetched < 8 * (file.num_rows + 1) + 1000 < file.size_bytes
    assert set(load_file(path)) == {"row_starts"}
    whole = open_data(
        order.model_copy(update={"stage": 0}),
        tmp_path / "served" / "tokens" / f"{file.digest}.safetensors", 260,
    )  # fmt: skip
    between = open_data(order, path, 260)
    assert isinstance(between, Seams)
    wanted, found = (one.batch([*range(20)], 8).positions for one in (whole, between))
    assert wanted is not None
    assert found is not None
    assert torch.equal(wanted, found)
    assert (wanted == 0).sum() > 20  # seams inside sequences too
    assert between.held_out(2) == whole.held_out(2)


def test_another_files_list_is_refused(leader: LeaderTwin, tmp_path: Path, file: TokenFile) -> None:
    other = file.model_copy(update={"num_rows": file.num_rows + 1})
    access = LeaderAccess(leader.url, TOKEN, None)
    with pytest.raises(SwarmError, match="cannot be used: it lists") as refusal:
        fetch_document_starts(access, tmp_path, other, go_on)
    assert refusal.value.code == "unavailable"
    assert not list((tmp_path / "tokens").glob("*"))
