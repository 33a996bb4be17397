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

from control.jobs.adapters import join_tensors
from control.store.safetensors_file import read_header
from transport.errors import SwarmError


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
