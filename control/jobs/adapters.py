"""Joins the stages' trained tensors into one folder that plain peft loads: bytes are copied.

Knows the safetensors layout (8 bytes of length, a JSON header, then data); no torch, no numpy.
"""

import itertools
import json
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from control.jobs.boundary_file import FILE, is_boundary, readme_part
from control.jobs.model_card import CardFacts, base_name, result_card
from control.store.files import sha256_of, sync_folder, write_whole
from control.store.safetensors_file import Tensor, broken_file, read_header
from transport.orders import StageOrder

COPY = 1 << 22
CONV1D = frozenset({"c_attn", "c_proj", "c_fc"})


def join_tensors(
    parts: Sequence[Path], target: Path, is_wanted: Callable[[str], bool] = lambda _: True
) -> int:
    """Write one safetensors file with the wanted tensors of all parts, sorted by name. Its size in
    bytes.

    Raises:
        SwarmError: invalid-input when a part is broken or two parts hold the same tensor.
    """
    placed = sorted(
        (
            (tensor, part)
            for part in parts
            for tensor in read_header(part)
            if is_wanted(tensor.name)
        ),
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
    that the checkpoint has, to be laid over the pinned revision's files. A learned bottleneck has
    a file of its own beside either.

    facts: what its card tells beside the order.
    """
    lora = order.settings.lora
    layers = boundary_layers(parts)
    if order.settings.method != "boundary":
        name = "adapter_model.safetensors" if lora else "model.safetensors"
        join_tensors(parts, target / name, lambda tensor: not is_boundary(tensor))
    if layers:
        join_tensors(parts, target / FILE, is_boundary)
    if lora:
        config = json.dumps(adapter_config(order), indent=2) + "\n"
        write_whole(target / "adapter_config.json", config.encode())
    text = result_card(order, facts) + readme_part(order, layers, facts.evaluations)
    write_whole(target / "README.md", text.encode())
    return {
        path.name: {"sha256": sha256_of(path), "size_bytes": path.stat().st_size}
        for path in sorted(target.iterdir())
    }


def boundary_layers(parts: Sequence[Path]) -> list[int]:
    """The layers that a learned bottleneck lies before, by the tensors of some files."""
    names = (tensor.name for part in parts for tensor in read_header(part))
    return sorted({int(name.split(".")[1]) for name in names if is_boundary(name)})


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
