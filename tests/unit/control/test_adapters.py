"""Joined adapters: every tensor once, bytes unchanged, broken parts refused."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save

from control.jobs.adapters import join_tensors, write_folder
from control.jobs.model_card import CardFacts
from control.store.safetensors_file import read_header
from tests.oracle.settings import some_settings
from transport.api.jobs import Evaluation
from transport.errors import SwarmError
from transport.orders import (
    CardShare,
    CompressionSettings,
    ModelSource,
    StageOrder,
    TokenFile,
)


def by_hand(header: Mapping[str, Any] | bytes, data: bytes) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
BROKEN = {
    "empty": b"",
    "short": b"\1\2",
    "header past the end": struct.pack("<Q", 10**9) + b"{}",
    "no json": by_hand(b"{nonsense", b""),
    "deep json": by_hand(b"[" * 100_000, b""),
    "a list": by_hand(b"[]", b""),
    "bytes missing": by_hand({"a": ONE}, b"\0\0"),
    "bytes left over": by_hand({"a": ONE}, b"\0" * 5),
    "overlap": by_hand({"a": ONE, "b": ONE}, b"\0" * 4),
    "gap": by_hand({"a": {**ONE, "data_offsets": [4, 8]}}, b"\0" * 8),
    "size and shape differ": by_hand({"a": {**ONE, "shape": [2]}}, b"\0" * 4),
    "negative": by_hand({"a": {**ONE, "shape": [-1]}}, b"\0" * 4),
    "unknown type": by_hand({"a": {**ONE, "dtype": "X9"}}, b"\0" * 4),
    "less than nothing": by_hand(
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [-0, 4]}}', b"\0" * 4
    ),
    "half a surrogate pair in a name": by_hand({"\ud800": ONE}, b"\0" * 4),
    "half a surrogate pair in a text": by_hand(
        {"__metadata__": {"made": "by \udc00"}, "a": ONE}, b"\0" * 4
    ),
    "a text that is none": by_hand({"__metadata__": {"made": 1}, "a": ONE}, b"\0" * 4),
    "texts that are none": by_hand({"__metadata__": ["made"], "a": ONE}, b"\0" * 4),
    "a shape that is a text": by_hand({"a": {**ONE, "shape": ""}}, b"\0" * 4),
    "offsets that are no list": by_hand(
        {"a": {**ONE, "data_offsets": {"0": 0, "4": 4}}}, b"\0" * 4
    ),
    "a member that a tensor has not": by_hand({"a": {**ONE, "of": 1}}, b"\0" * 4),
    "another encoding": by_hand(json.dumps({"a": ONE}).encode("utf-16"), b"\0" * 4),
    "twice": by_hand(
        b'{"a": ' + json.dumps(ONE).encode() + b', "a": ' + json.dumps(ONE).encode() + b"}",
        b"\0" * 4,
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_safetensors_file_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(BROKEN[name])
    with pytest.raises(SwarmError) as refusal:
        read_header(path)
    assert refusal.value.code == "invalid-input"


def test_two_parts_with_the_same_tensor_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(by_hand({"x": ONE}, b"\0" * 4))
    with pytest.raises(SwarmError) as refusal:
        join_tensors([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert "'x'" in refusal.value.message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.text("abc._0é", min_size=1, max_size=8),
        st.tuples(st.sampled_from(["float32", "float16", "int8"]), st.integers(0, 9)),
        max_size=8,
    ),
    st.integers(1, 3),
)
def test_joining_keeps_every_tensor_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, shapes: dict[str, tuple[str, int]], parts: int
) -> None:
    folder = tmp_path_factory.mktemp("join")
    tensors = {
        name: np.arange(size, dtype=kind) + number
        for number, (name, (kind, size)) in enumerate(shapes.items())
    }
    paths = []
    for part in range(parts):
        mine = {name: t for n, (name, t) in enumerate(tensors.items()) if n % parts == part}
        paths.append(folder / f"{part}.safetensors")
        paths[-1].write_bytes(save(mine))
    join_tensors(paths, folder / "out.safetensors")
    joined = load_file(str(folder / "out.safetensors"))
    assert set(joined) == set(tensors)
    for name, tensor in tensors.items():
        assert joined[name].dtype == tensor.dtype
        assert joined[name].tobytes() == tensor.tobytes()


def test_a_learned_bottleneck_goes_into_a_file_of_its_own_and_the_readme_says_what_it_is_worth(
    tmp_path: Path,
) -> None:
    settings = some_settings(compression=CompressionSettings(kind="learned", bits=8, dim=3))
    order = StageOrder(
        job_id="j-abcdefgh", attempt=1, stage=0, num_stages=2, first_layer=0, last_layer=1,
        num_layers=4, settings=settings, threads=1, evaluate_base=True, plan_id="0" * 16,
        model=ModelSource(
            model_id="local:demo", repository="local/demo", revision="a" * 40, from_leader=True
        ),
        tokens=TokenFile(
            digest="0" * 64, size_bytes=1, layout="packed", num_tokens=1, num_rows=1,
            train_sequences=1, held_out_sequences=1, pad_token_id=0,
        ),
        cards=[CardShare(
            index=0, uuid="u", first_layer=0, last_layer=1, planned_bytes=1, budget_bytes=1
        )],
    )  # fmt: skip
    values = np.zeros((3, 4), np.float32)
    parts = {
        "a": {"base_model.model.x.lora_A.weight": values, "boundary.2.encoder.weight": values},
        "b": {"boundary.2.decoder.weight": values.T.copy()},
    }
    for name, tensors in parts.items():
        (tmp_path / name).write_bytes(save(tensors))
    told = [
        Evaluation(
            moment=moment, step=4, loss=loss, accuracy=share, tokens=9, sequences=1  # type: ignore[arg-type]
        )
        for moment, loss, share in (("trained", 3.25, 0.4), ("bypassed", 3.125, 0.41))
    ]  # fmt: skip
    files_of = [tmp_path / "a", tmp_path / "b"]
    files = write_folder(order, files_of, tmp_path / "out", CardFacts("rows", told))
    assert set(load_file(tmp_path / "out" / "adapter_model.safetensors")) == {
        "base_model.model.x.lora_A.weight"
    }
    boundary = load_file(tmp_path / "out" / "boundary.safetensors")
    assert set(boundary) == {"boundary.2.encoder.weight", "boundary.2.decoder.weight"}
    assert "boundary.safetensors" in files
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "before layer 2" in readme
    assert "Held-out loss with it 3.2500 (accuracy 40.0%), without it 3.1250 (41.0%)" in readme
