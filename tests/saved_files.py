"""For tests: a stage's saved state made by hand, right in all but what a test changes."""

import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from transport.orders import StageOrder

KINDS = ("exp_avg", "exp_avg_sq", "weight")


def tensors_of(order: StageOrder) -> dict[str, bytes]:
    """Two adapter tensors a layer, and both moments of each: 16 bytes apiece."""
    names = [
        f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{part}.weight"
        for layer in range(order.first_layer, order.last_layer + 1)
        for part in "AB"
    ]
    values = np.arange(4, dtype="<f4").tobytes()
    return {f"{kind}.{name}": values for kind in KINDS for name in names}


def saved_bytes(
    order: StageOrder,
    step: int,
    tensors: Mapping[str, bytes] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """A safetensors file as a stage writes it; `metadata` replaces texts of its header."""
    values = dict(sorted((tensors_of(order) if tensors is None else tensors).items()))
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in values.items()}
    told = {
        "swarm_snapshot": "1",
        "job_id": order.job_id,
        "attempt": str(order.attempt),
        "step": str(step),
        "stage": str(order.stage),
        "num_stages": str(order.num_stages),
        "first_layer": str(order.first_layer),
        "last_layer": str(order.last_layer),
        "schedule": "{}",
        "digests": json.dumps(digests),
    }
    header: dict[str, Any] = {"__metadata__": told | dict(metadata or {})}
    place = 0
    for name, data in values.items():
        offsets = [place, place + len(data)]
        header[name] = {"dtype": "F32", "shape": [2, 2], "data_offsets": offsets}
        place += len(data)
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + b"".join(values.values())


def tensor_of(state: bytes, name: str) -> bytes:
    """Four float32 values of a tensor, finite, by the state and its name."""
    digest = hashlib.sha256(state + name.encode()).digest()
    return struct.pack("<4f", *(byte / 256 for byte in digest[:4]))


def tensors_in(data: bytes) -> dict[str, bytes]:
    """The tensors of a safetensors file, by name."""
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    body = data[8 + size :]
    return {
        name: body[slice(*told["data_offsets"])]
        for name, told in header.items()
        if name != "__metadata__"
    }
