"""Adds trained adapters to a checkpoint's own weights, file by file, a few megabytes at a time.

Reads the base in the precision it has on disk, never quantized codes: what is added to codes is
rounded away. A weight is read in blocks of rows, the adapter's product is added in float32, and
the sum is rounded once. Does not know where files come from or go to.
"""

# R = rank, I = inputs, O = outputs of an adapted projection

import hashlib
import itertools
import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from transport.errors import SwarmError

BLOCK_BYTES = 8 << 20
MAX_HEADER_BYTES = 100_000_000
_LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d{1,5})\.(.+)$")
_FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@dataclass(frozen=True)
class Pair:
    """The adapter of one projection: what it adds is scale * up @ down (peft: B @ A)."""

    down: Tensor
    """(R, I) float32; peft's A."""
    up: Tensor
    """(O, R) float32; peft's B."""
    scale: float
    transposed: bool
    """GPT-2 keeps its projections as (inputs, outputs)."""

    @property
    def shape(self) -> tuple[int, int]:
        """Of the weight that it is added to."""
        outputs, inputs = self.up.shape[0], self.down.shape[1]
        return (inputs, outputs) if self.transposed else (outputs, inputs)

    def rows(self, first: int, last: int) -> Tensor:
        """What is added to these rows of the weight, in float32."""
        if self.transposed:
            return self.scale * (self.down[:, first:last].T @ self.up.T)
        return self.scale * (self.up[first:last] @ self.down)


class Adapters:
    """The adapters of a run, found by the layer and the module that they belong to."""

    def __init__(self, file: Path, scale: float, *, transposed: bool) -> None:
        self._pairs: dict[tuple[int, str], Pair] = {}
        self._used: set[tuple[int, str]] = set()
        halves: dict[tuple[int, str], dict[str, Tensor]] = {}
        with safe_open(str(file), framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                module, _, half = name.removesuffix(".weight").rpartition(".")
                key = _place(module)
                if key is not None and half in ("lora_A", "lora_B"):
                    halves.setdefault(key, {})[half] = opened.get_tensor(name).float()
        for key, both in halves.items():
            if len(both) != 2:
                raise _broken(f"the adapter of layer {key[0]}, {key[1]}, is not whole")
            self._pairs[key] = Pair(both["lora_A"], both["lora_B"], scale, transposed)

    def of(self, name: str) -> Pair | None:
        """The adapter of a checkpoint's tensor, by the tensor's name."""
        key = _place(name.removesuffix(".weight")) if name.endswith(".weight") else None
        if key is None or key not in self._pairs:
            return None
        self._used.add(key)
        return self._pairs[key]

    def refuse_unused(self) -> None:
        """Refuse when the checkpoint lacked a weight that was trained.

        Raises:
            SwarmError: invalid-input.
        """
        left = sorted(self._pairs.keys() - self._used)
        if left:
            layer, module = left[0]
            raise _broken(
                f"{len(left)} trained adapters have no weight in the base's files, first {module} "
                f"of layer {layer}"
            )


def _place(module: str) -> tuple[int, str] | None:
    """(layer, module inside it): the same whatever a file calls what stands before the layers."""
    found = _LAYER.search(module)
    return (int(found.group(1)), found.group(2)) if found else None


@dataclass(frozen=True)
class _Entry:
    name: str
    kind: str
    """safetensors' name of the number format in the source."""
    shape: tuple[int, ...]
    start: int
    """Of its bytes in the source file."""
    size: int


@dataclass(frozen=True)
class Written:
    """A file on disk and what it is known by."""

    path: Path
    sha256: str
    size_bytes: int
    tensor_bytes: int


def merge_file(
    source: Path,
    target: Path,
    adapters: Adapters | None,
    dtype: str | None,
    drop: frozenset[str] = frozenset(),
) -> Written:
    """Write one weight file anew: adapters added, floats in another format when one is named.

    Holds a few blocks of BLOCK_BYTES beside the adapters, however large the file is. Tensors
    without an adapter and in the wanted format are copied byte for byte.

    Args:
        dtype: float32, bfloat16 or float16; None keeps each tensor's own.
        drop: tensors that are left out.

    Raises:
        SwarmError: invalid-input; a broken file, an adapter of another shape, or a sum that the
            format cannot hold.
    """
    entries, metadata = _entries(source)
    entries = [entry for entry in entries if entry.name not in drop]
    kinds = [_target_kind(entry.kind, dtype) for entry in entries]
    header, tensor_bytes = _header(entries, kinds, metadata)
    digest = hashlib.sha256()
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as raw, target.open("wb") as out:
        for piece in itertools.chain((header,), _pieces(raw, entries, kinds, adapters)):
            out.write(piece)
            digest.update(piece)
    return Written(target, digest.hexdigest(), target.stat().st_size, tensor_bytes)


def _pieces(
    raw: BufferedReader, entries: list[_Entry], kinds: list[str], adapters: Adapters | None
) -> Iterator[bytes]:
    for entry, kind in zip(entries, kinds, strict=True):
        pair = adapters.of(entry.name) if adapters is not None else None
        if pair is None and kind == entry.kind:
            yield from _copied(raw, entry)
        else:
            yield from _changed(raw, entry, kind, pair)


def _copied(raw: BufferedReader, entry: _Entry) -> Iterator[bytes]:
    raw.seek(entry.start)
    left = entry.size
    while left:
        piece = raw.read(min(left, BLOCK_BYTES))
        if not piece:
            raise _broken(f"the file ends inside {entry.name}")
        left -= len(piece)
        yield piece


def _changed(raw: BufferedReader, entry: _Entry, kind: str, pair: Pair | None) -> Iterator[bytes]:
    """The tensor's rows in the wanted format, the adapter's part added."""
    if pair is not None and pair.shape != entry.shape:
        raise _broken(
            f"the adapter of {entry.name} is for {pair.shape}, the base has {entry.shape}"
        )
    rows = entry.shape[0] if entry.shape else 1
    row_bytes = entry.size // rows if rows else 0
    step = max(1, BLOCK_BYTES // max(1, row_bytes))
    raw.seek(entry.start)
    room = bytearray(min(step, rows) * row_bytes)
    for first in range(0, rows if row_bytes else 0, step):
        last = min(rows, first + step)
        data = memoryview(room)[: (last - first) * row_bytes]
        if raw.readinto(data) != len(data):
            raise _broken(f"the file ends inside {entry.name}")
        block = torch.frombuffer(data, dtype=_FLOATS[entry.kind])
        if pair is not None:
            block = block.float().view(last - first, -1) + pair.rows(first, last)
        changed = block.to(_FLOATS[kind])
        if not torch.isfinite(changed).all():
            raise _broken(f"{entry.name} holds values that {kind} cannot", "export in bfloat16")
        yield changed.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def _target_kind(kind: str, dtype: str | None) -> str:
    return _NAMES[dtype] if dtype is not None and kind in _FLOATS else kind


def _entries(path: Path) -> tuple[list[_Entry], dict[str, str]]:
    """Every tensor of a file, by its place in it, and the file's metadata."""
    try:
        with safe_open(str(path), framework="pt"):
            pass  # the library checks offsets, overlaps and length
        with path.open("rb") as raw:
            (length,) = struct.unpack("<Q", raw.read(8))
            told: dict[str, Any] = json.loads(raw.read(length))
    except (SafetensorError, OSError, ValueError, struct.error) as error:
        raise _broken(f"the file {path.name} cannot be read: {str(error)[:200]}") from error
    metadata = {str(k): str(v) for k, v in told.pop("__metadata__", {}).items()}
    entries = [
        _Entry(
            name,
            str(one["dtype"]),
            tuple(one["shape"]),
            8 + length + one["data_offsets"][0],
            one["data_offsets"][1] - one["data_offsets"][0],
        )
        for name, one in told.items()
    ]
    return sorted(entries, key=lambda entry: entry.start), metadata


def _header(entries: list[_Entry], kinds: list[str], metadata: dict[str, str]) -> tuple[bytes, int]:
    told: dict[str, Any] = {"__metadata__": {**metadata, "format": "pt"}}
    place = 0
    for entry, kind in zip(entries, kinds, strict=True):
        size = entry.size
        if kind != entry.kind:
            size = size // _FLOATS[entry.kind].itemsize * _FLOATS[kind].itemsize
        told[entry.name] = {
            "dtype": kind,
            "shape": list(entry.shape),
            "data_offsets": [place, place + size],
        }
        place += size
    raw = json.dumps(told, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw, place


def _broken(message: str, hint: str = "fetch the base model again, and export again") -> SwarmError:
    return SwarmError("invalid-input", message, hint=hint)
