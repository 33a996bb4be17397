"""Whether a received file is the saved state that it claims to be. Nothing of it is believed.

Layout, job, attempt, step, stage and layers; every name; every digest; every number finite.
Blocking; called in threads. No torch.
"""

import json
import re
from pathlib import Path
from typing import Any

from control.snapshots.trained import FLOATS, check_name, check_values
from control.store.safetensors_file import Tensor, read_header, read_metadata
from transport.errors import SwarmError
from transport.orders import StageOrder

_KIND = re.compile(r"[a-z][a-z0-9_]{0,31}")


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
        _check_name(tensor, order)
    with path.open("rb") as handle:
        for tensor in tensors:
            if check_values(handle, tensor) != digests[tensor.name]:
                raise _refusal(
                    f"{tensor.name[:80]} is not the tensor whose digest the header holds"
                )


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


def _check_name(tensor: Tensor, order: StageOrder) -> None:
    kind, _, name = tensor.name.partition(".")
    if _KIND.fullmatch(kind) is None:
        raise _refusal(f"{tensor.name[:80]!r} is no name of a tensor")
    check_name(tensor.name, name, order)
    # The 8-bit states of an optimizer are bytes.
    if tensor.dtype not in FLOATS and tensor.dtype != "U8":
        raise _refusal(f"{tensor.name[:80]} is {tensor.dtype}, which no stage saves")


def _refusal(why: str) -> SwarmError:
    return SwarmError(
        "invalid-input",
        f"this is not the saved state that was expected: {why}",
        hint="the run goes on; the next saved step is sent anew",
    )
