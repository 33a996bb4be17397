"""The layout of safetensors files, read without loading them: 8 bytes of length, JSON, then data.

A file is accepted whole or refused. Blocking; called in threads. No torch, no numpy.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transport.errors import SwarmError

MAX_HEADER = 100_000_000  # safetensors' own limit
MAX_RANK = 16
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError)
WIDTHS = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1,
    "BOOL": 1, "U16": 2, "U32": 4, "U64": 8, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """Where a tensor lies in a safetensors file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    """Absolute byte in the file."""
    end: int


def read_header(path: Path) -> list[Tensor]:
    """The tensors of a safetensors file, in order of their bytes, checked whole.

    Raises:
        SwarmError: invalid-input when it is no safetensors file, has a name twice, a size that
            does not fit its shape, a gap, an overlap, or bytes missing or left over.
    """
    size = path.stat().st_size
    with path.open("rb") as handle:
        head = handle.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else MAX_HEADER + 1
        if length > min(MAX_HEADER, size):
            raise broken_file(path, "its header is missing or too long")
        raw = handle.read(length)
    try:
        # Python would read other encodings, NaN, -0 and half a surrogate pair, which no reader of
        # these files does.
        told = json.loads(
            raw.decode(), object_pairs_hook=_members, parse_constant=_whole, parse_int=_natural
        )
        for text in told.pop("__metadata__", {}).values():
            text.encode()
        tensors = [_tensor(n, t, 8 + length) for n, t in told.items()]
    except _UNREADABLE as error:
        raise broken_file(path, f"its header cannot be read ({type(error).__name__})") from None
    tensors.sort(key=lambda tensor: (tensor.start, tensor.end))
    place = 8 + length
    for tensor in tensors:
        if tensor.start != place:
            raise broken_file(path, f"tensor {tensor.name[:80]!r} does not begin where it should")
        place = tensor.end
    if place != size:
        raise broken_file(path, f"it has {size} bytes and its header tells {place}")
    return tensors


def read_metadata(path: Path) -> dict[str, str]:
    """The texts in the header of a file that read_header has accepted; {} when it has none."""
    with path.open("rb") as handle:
        raw = handle.read(struct.unpack("<Q", handle.read(8))[0])
    told: dict[str, str] = json.loads(raw).get("__metadata__", {})
    return told


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    told = dict(pairs)
    if len(told) != len(pairs):
        raise ValueError("a name is there twice")
    "".join(told).encode()
    return told


def _natural(digits: str) -> int:
    if digits.startswith("-"):
        raise ValueError("less than nothing")
    return int(digits)


def _tensor(name: str, told: Mapping[str, Any], data: int) -> Tensor:
    if told.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError("other members than a tensor has")
    if not isinstance(told["shape"], list) or not isinstance(told["data_offsets"], list):
        raise TypeError("no list of numbers")
    shape = tuple(_whole(n) for n in told["shape"][: MAX_RANK + 1])
    if len(shape) > MAX_RANK:
        raise ValueError("too many dimensions")
    start, end = (_whole(n) for n in told["data_offsets"])
    count = 1
    for n in shape:
        count *= n
    if end - start != count * WIDTHS[told["dtype"]]:
        raise ValueError("size and shape differ")
    return Tensor(name, told["dtype"], shape, data + start, data + end)


def _whole(told: Any) -> int:
    if type(told) is not int or not 0 <= told < 1 << 63:  # a bool is no number here
        raise ValueError("not a whole number")
    return told


def broken_file(path: Path, why: str) -> SwarmError:
    """The refusal of a file that is not whole."""
    return SwarmError(
        "invalid-input",
        f"{path.name} is not a whole safetensors file: {why}",
        hint="make the file again and send it once more",
    )
