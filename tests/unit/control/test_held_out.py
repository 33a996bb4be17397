"""What is held out: the tail, drawn rows or whole groups; never all, and the same again."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from control.datasets.held_out import Rows, counted, decide
from control.datasets.readers import Source, read_rows
from control.datasets.rows import number_in
from control.datasets.token_file import Shape
from control.datasets.tokenizer_folder import TokenizerFolder
from tests.unit.control.data_files import made_of, tokenizer_folder, write_jsonl
from transport.api.job_config import HeldOutConfig
from transport.errors import SwarmError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> TokenizerFolder:
    return tokenizer_folder(tmp_path_factory.mktemp("tokenizer"))


@given(
    total=st.integers(2, 3000),
    share=st.one_of(st.none(), st.floats(0.001, 0.5)),
    seed=st.integers(0, 99),
)
def test_a_drawn_part_is_neither_empty_nor_all_and_is_the_same_again(
    total: int, share: float | None, seed: int
) -> None:
    asked = HeldOutConfig(by="random", share=share, seed=seed)
    first, again = decide(asked, Rows(total)), decide(asked, Rows(total))
    held = [n for n in range(total) if first(n, "")]
    assert 1 <= len(held) <= max(1, total // 2)
    assert held == [n for n in range(total) if again(n, "")]


@given(
    groups=st.lists(st.sampled_from("abcdefgh"), min_size=2, max_size=200), seed=st.integers(0, 9)
)
def test_no_group_is_on_both_sides_and_both_sides_have_one(groups: list[str], seed: int) -> None:
    asked = HeldOutConfig(by="group", column="who", share=0.2, seed=seed)
    if len(set(groups)) < 2:
        with pytest.raises(SwarmError):
            decide(asked, counted(groups))
        return
    choose = decide(asked, counted(groups))
    held = {group for n, group in enumerate(groups) if choose(n, group)}
    assert held
    assert held != set(groups)


def places(folder: Path, made: Any) -> list[int]:
    """Row numbers in the order of the token file."""
    tensors = load_file(str(folder / "tokens" / f"{made.measured.file.digest}.safetensors"))
    return [number_in(int(place)) for place in tensors["row_places"]]


def test_held_out_rows_lie_at_the_end_of_the_token_file(
    folder: TokenizerFolder, tmp_path: Path
) -> None:
    rows = [{"prompt": f"p {n}", "completion": f"c {n}", "who": f"w{n % 5}"} for n in range(40)]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    for asked in (
        HeldOutConfig(by="random", rows=6, seed=3),
        HeldOutConfig(by="group", column="who", share=0.2),
        HeldOutConfig(by="tail", rows=6),
    ):
        source = Source(path, "a.jsonl", group=asked.column)
        choose = decide(asked, counted(row.group for row in read_rows(source)))
        made = made_of(path, folder, 64, asked, Shape("rows", 0, choose))
        file, order = made.measured.file, places(tmp_path, made)
        held = order[file.train_sequences :]
        assert file.train_sequences + file.held_out_sequences == 40
        assert sorted(order) == list(range(1, 41))
        assert held == [n + 1 for n in range(40) if choose(n, f"w{n % 5}")]
        if asked.by == "group":
            assert len(held) == 8
            assert len({n % 5 for n in held}) == 1


def test_of_packed_text_no_sequence_holds_documents_of_both_sides(
    folder: TokenizerFolder, tmp_path: Path
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": f"{n} " * 9} for n in range(60)])
    choose = decide(HeldOutConfig(by="random", share=0.2), Rows(60))
    asked = HeldOutConfig(by="random", share=0.2)
    made = made_of(path, folder, 16, asked, Shape("packed", 0, choose, align=16))
    file = made.measured.file
    tensors = load_file(str(tmp_path / "tokens" / f"{file.digest}.safetensors"))
    edge = file.train_sequences * 16
    assert len(tensors["tokens"]) == edge + file.held_out_sequences * 16
    starts = tensors["row_starts"][:-1]
    sides = [choose(number_in(int(place)) - 1, "") for place in tensors["row_places"]]
    assert [bool(start >= edge) for start in starts] == sides
    assert int(tensors["row_starts"][-1]) == len(tensors["tokens"])
    assert np.all(np.diff(tensors["row_starts"]) > 0)


@pytest.mark.parametrize(
    "asked, said",
    [
        (HeldOutConfig(by="tail", rows=5), "rows is 5 and the data has 5: nothing is left"),
        (HeldOutConfig(by="random", rows=9), "rows is 9 and the data has 5: nothing is left"),
    ],
)
def test_a_split_that_leaves_nothing_is_refused_with_numbers(
    asked: HeldOutConfig, said: str
) -> None:
    with pytest.raises(SwarmError) as refusal:
        decide(asked, Rows(5))
    assert said in refusal.value.message


def test_one_document_cannot_be_drawn_from(folder: TokenizerFolder) -> None:
    with pytest.raises(SwarmError) as refusal:
        decide(HeldOutConfig(by="random"), Rows(1))
    assert "hold out by tail" in refusal.value.hint


def test_a_file_without_the_column_is_refused(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "a", "who": "x"}, {"text": "b"}])
    with pytest.raises(SwarmError) as refusal:
        list(read_rows(Source(path, "a.jsonl", group="who")))
    assert "line 2 has no 'who' to hold out by" in refusal.value.message
    (tmp_path / "a.txt").write_text("words")
    with pytest.raises(SwarmError) as refusal:
        list(read_rows(Source(tmp_path / "a.txt", "a.txt", group="who")))
    assert "has no columns" in refusal.value.message


@pytest.mark.parametrize(
    "told", [{"by": "group"}, {"column": "x"}, {"share": 0.1, "rows": 3}, {"share": 0.6}]
)
def test_settings_that_contradict_each_other_are_refused(told: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="HeldOutConfig"):
        HeldOutConfig.model_validate(told)
