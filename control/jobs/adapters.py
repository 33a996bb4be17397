"""Joins the stages' trained tensors into one folder that plain peft loads: bytes are copied.

Knows the safetensors layout (8 bytes of length, a JSON header, then data); no torch, no numpy.
"""

import itertools
import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from control.jobs.model_card import CardFacts, base_name, result_card
from control.store.files import sha256_of, sync_folder, write_whole
from control.store.safetensors_file import Tensor, broken_file, read_header
from transport.orders import StageOrder

COPY = 1 << 22
CONV1D = frozenset({"c_attn", "c_proj", "c_fc"})


def join_tensors(parts: Sequence[Path], target: Path) -> int:
    """Write one safetensors file with all tensors of all parts, sorted by name. Its size in bytes.

    Raises:
        SwarmError: invalid-input when a part is broken or two parts hold the same tensor.
    """
    placed = sorted(
        ((tensor, part) for part in parts for tensor in read_header(part)),
        key=lambda pair: pair[0].name,
    )
    names = [tensor.name for tensor, _ in placed]
    double = next((a for a, b in itertools.pairwise(names) if a == b), None)
    if double is not None:
        raise broken_file(target, f"two stages sent {double[:80]!r}")
    header = _header([tensor for tensor, _ in placed])
    beside = target.with_name(f"{target.name}.part")
    target.parent.mkdir(parents=True, exist_ok=True)
    with beside.open("wb") as out:
        out.write(struct.pack("<Q", len(header)) + header)
        for tensor, part in placed:
            _copy(part, tensor, out)
        out.flush()
        os.fsync(out.fileno())
        size = out.tell()
    beside.replace(target)
    sync_folder(target.parent)
    return size


def _header(tensors: Sequence[Tensor]) -> bytes:
    told: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    place = 0
    for tensor in tensors:
        end = place + tensor.end - tensor.start
        told[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [place, end],
        }
        place = end
    raw = json.dumps(told, separators=(",", ":")).encode()
    return raw + b" " * (-len(raw) % 8)


def _copy(part: Path, tensor: Tensor, out: Any) -> None:
    with part.open("rb") as source:
        source.seek(tensor.start)
        left = tensor.end - tensor.start
        while left:
            piece = source.read(min(COPY, left))
            assert piece, "a checked part grew shorter"
            out.write(piece)
            left -= len(piece)


def write_folder(
    order: StageOrder, parts: Sequence[Path], target: Path, facts: CardFacts
) -> dict[str, Any]:
    """The result of a job as a folder: {file: {sha256, size_bytes}}.

    A LoRA run gives a peft adapter folder; a full run gives the trained tensors under the names
    that the checkpoint has, to be laid over the pinned revision's files.
    """
    lora = order.settings.lora
    name = "adapter_model.safetensors" if lora else "model.safetensors"
    join_tensors(parts, target / name)
    if lora:
        config = json.dumps(adapter_config(order), indent=2) + "\n"
        write_whole(target / "adapter_config.json", config.encode())
    write_whole(target / "README.md", result_card(order, facts).encode())
    return {
        path.name: {"sha256": sha256_of(path), "size_bytes": path.stat().st_size}
        for path in sorted(target.iterdir())
    }


def adapter_config(order: StageOrder) -> dict[str, Any]:
    """peft's adapter_config.json of a job."""
    lora = order.settings.lora
    assert lora is not None
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name(order),
        "revision": None if order.model.from_leader else order.model.revision,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": sorted(lora.target_modules),
        "bias": "none",
        # GPT-2's projections are stored transposed (Conv1D); no other family has these names.
        "fan_in_fan_out": any(t.rpartition(".")[2] in CONV1D for t in lora.target_modules),
        "inference_mode": True,
        "init_lora_weights": True,
        "modules_to_save": None,
        "use_rslora": False,
        "use_dora": False,
    }
