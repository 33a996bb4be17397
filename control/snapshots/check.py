"""Whether a received file is the saved state that it claims to be. Nothing of it is believed.

Layout, job, attempt, step, stage and layers; every name; every digest; every number finite.
Blocking; called in threads. No torch.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from control.store.safetensors_file import Tensor, read_header, read_metadata
from transport.errors import SwarmError
from transport.orders import StageOrder

PIECE = 1 << 22
_NAME = re.compile(r"^(?P<kind>[a-z][a-z0-9_]{0,31})\.(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]{0,300})$")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|boundary)\.(\d{1,5})(?:\.|$)")
_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


def check_saved(path: Path, order: StageOrder, step: int) -> None:
    """Accept a whole saved state of this very stage and step, or refuse it.

    Raises:
        SwarmError: invalid-input, with what is wrong.
    """
    tensors = read_header(path)
    told = read_metadata(path)
    _check_owner(told, order, step)
    digests = _digests(told)
    if set(digests) != {tensor.name for tensor in tensors}:
        raise _refusal("its digests are not those of its tensors")
    for tensor in tensors:
        _check_name(tensor.name, order)
    with path.open("rb") as handle:
        for tensor in tensors:
            _check_values(handle, tensor, digests[tensor.name])


def _check_owner(told: dict[str, str], order: StageOrder, step: int) -> None:
    wanted = {
        "swarm_snapshot": "1",
        "job_id": order.job_id,
        "attempt": str(order.attempt),
        "step": str(step),
        "stage": str(order.stage),
        "num_stages": str(order.num_stages),
        "first_layer": str(order.first_layer),
        "last_layer": str(order.last_layer),
    }
    for key, value in wanted.items():
        if told.get(key) != value:
            shown = str(told.get(key))[:40]
            raise _refusal(f"its header says {key} {shown!r}, this is {value!r}")


def _digests(told: dict[str, str]) -> dict[str, str]:
    try:
        found: Any = json.loads(told.get("digests", ""))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _refusal("its header has no digests")
    return {str(name): str(digest) for name, digest in found.items()}


def _check_name(name: str, order: StageOrder) -> None:
    found = _NAME.match(name)
    if found is None or ".." in name:
        raise _refusal(f"{name[:80]!r} is no name of a tensor")
    layer = _LAYER.search(found["name"])
    if layer is None:
        # Embeddings, final norm and head belong to the ends of the pipeline.
        fits = order.is_first or order.is_last
    else:
        # A boundary's own tensors may carry the layer on its other side.
        more = int("boundary." in found["name"])
        number = int(layer[1])
        fits = order.first_layer - more <= number <= order.last_layer + more
    if not fits:
        span = f"{order.first_layer}-{order.last_layer}"
        raise _refusal(f"{name[:80]!r} is not of layers {span}, which this stage trains")


def _check_values(handle: BinaryIO, tensor: Tensor, digest: str) -> None:
    whole = hashlib.sha256()
    handle.seek(tensor.start)
    for piece in _pieces(handle, tensor.end - tensor.start):
        whole.update(piece)
        if not _is_finite(piece, tensor.dtype):
            raise _refusal(f"{tensor.name[:80]} holds a value that is not a finite number")
    if whole.hexdigest() != digest:
        raise _refusal(f"{tensor.name[:80]} is not the tensor whose digest the header holds")


def _pieces(handle: BinaryIO, size: int) -> Iterable[bytes]:
    while size:
        piece = handle.read(min(PIECE, size))
        if not piece:
            raise _refusal("it is cut short")
        size -= len(piece)
        yield piece


def _is_finite(piece: bytes, dtype: str) -> bool:
    if dtype in _FLOATS:
        return bool(np.isfinite(np.frombuffer(piece, _FLOATS[dtype])).all())
    if dtype == "BF16":
        exponent = np.frombuffer(piece, "<u2") & 0x7F80
        return bool((exponent != 0x7F80).all())
    return True


def _refusal(why: str) -> SwarmError:
    return SwarmError(
        "invalid-input",
        f"this is not the saved state that was expected: {why}",
        hint="the run goes on; the next saved step is sent anew",
    )
