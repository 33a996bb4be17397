"""Whether what a stage sends are tensors that it trains: their names, their types, finite numbers.

Blocking; called in threads. No torch.
"""

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np

from control.store.safetensors_file import Tensor, read_header
from transport.errors import SwarmError
from transport.orders import StageOrder

PIECE = 1 << 22
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,300}")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|boundary)\.(\d{1,5})(?:\.|$)")
_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
FLOATS = frozenset({*_FLOATS, "BF16"})


def check_trained(path: Path, order: StageOrder) -> None:
    """Accept a file of the tensors that this very stage has trained, or refuse it.

    Raises:
        SwarmError: invalid-input, with what is wrong.
    """
    tensors = read_header(path)
    for tensor in tensors:
        check_name(tensor.name, tensor.name, order)
        if tensor.dtype not in FLOATS:
            raise refusal(f"{tensor.name[:80]} is {tensor.dtype}, which no stage trains")
    with path.open("rb") as handle:
        for tensor in tensors:
            check_values(handle, tensor)


def check_name(told: str, name: str, order: StageOrder) -> None:
    """Refuse a name that no tensor of this stage has.

    told: the whole name, for the refusal; name: without what stands before it.
    """
    if _NAME.fullmatch(name) is None or ".." in name:
        raise refusal(f"{told[:80]!r} is no name of a tensor")
    layer = _LAYER.search(name)
    if layer is None:
        # Embeddings, final norm and head belong to the ends of the pipeline.
        fits = (order.is_first or order.is_last) and not name.startswith("boundary.")
    else:
        # A boundary's own tensors may carry the layer on its other side.
        more = int("boundary." in name)
        fits = order.first_layer - more <= int(layer[1]) <= order.last_layer + more
    if not fits:
        span = f"{order.first_layer}-{order.last_layer}"
        raise refusal(f"{told[:80]!r} is not of layers {span}, which this stage trains")


def check_values(handle: BinaryIO, tensor: Tensor) -> str:
    """Refuse a value that is not finite; the SHA-256 of the tensor's bytes."""
    whole = hashlib.sha256()
    handle.seek(tensor.start)
    for piece in _pieces(handle, tensor.end - tensor.start):
        whole.update(piece)
        if not _is_finite(piece, tensor.dtype):
            raise refusal(f"{tensor.name[:80]} holds a value that is not a finite number")
    return whole.hexdigest()


def _pieces(handle: BinaryIO, size: int) -> Iterable[bytes]:
    while size:
        piece = handle.read(min(PIECE, size))
        if not piece:
            raise refusal("it is cut short")
        size -= len(piece)
        yield piece


def _is_finite(piece: bytes, dtype: str) -> bool:
    if dtype in _FLOATS:
        return bool(np.isfinite(np.frombuffer(piece, _FLOATS[dtype])).all())
    if dtype == "BF16":
        exponent = np.frombuffer(piece, "<u2") & 0x7F80
        return bool((exponent != 0x7F80).all())
    return True


def refusal(why: str) -> SwarmError:
    """What a stage's file is refused with."""
    return SwarmError(
        "invalid-input",
        f"this is not the file that was expected of the stage: {why}",
        hint="read the stage's log; a saved step is sent anew with the next one",
    )
