"""A folder of checkpoint files: which tensors each holds, and reading some of them safely.

Reads config.json, the index and safetensors files; anything else in the folder is never opened,
pickled weights least of all. Does not know stages or training.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from stage_runtime.checkpoint_share import (
    Tensors,
    refuse_missing_layers,
    refuse_without_safetensors,
)
from stage_runtime.model_facts import ModelFacts, facts_from_config
from transport.errors import SwarmError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_JSON_BYTES = 64_000_000
PLAIN = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""Formats in which weights are read."""
PIECE = 1 << 20
"""Numbers of a tensor that are read, looked at and copied at once."""
_FILE_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}\.safetensors$")


@dataclass(frozen=True)
class Checkpoint:
    """An opened folder. `files` maps each weight file to its tensors (size 0 when unknown)."""

    folder: Path
    facts: ModelFacts
    files: dict[str, Tensors]

    def read(self, file: str, names: list[str], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Yield the named tensors of one file in the asked format, each in memory of its own.

        The file is mapped, and what was read of it is the system's to take back: beside the
        tensor itself nothing is held.

        Raises:
            SwarmError: invalid-input; the file is missing, cut short, or lacks a tensor; a tensor
                is no plain floating point one, or holds a value that is not finite.
        """
        try:
            with safe_open(str(self.folder / file), framework="pt") as opened:
                for name in names:
                    with _disable_current_modes():  # a mapping is not held: no counter sees it
                        mapped = opened.get_tensor(name)
                    yield name, _copied(mapped, dtype, f"{name} in {file}")
        except FileNotFoundError:
            raise _broken(f"the model's file {file} is missing") from None
        except (SafetensorError, OSError, ValueError) as error:
            raise _broken(f"the model's file {file} cannot be read: {str(error)[:200]}") from error


def _copied(mapped: Tensor, dtype: torch.dtype, what: str) -> Tensor:
    """A tensor of a file in memory, piece by piece, each looked at on its way."""
    if mapped.dtype not in PLAIN:
        raise SwarmError(
            "invalid-input",
            f"the tensor {what} is stored as {str(mapped.dtype).removeprefix('torch.')}, which "
            "is not read here",
            hint="name the repository that holds the 16-bit or 32-bit weights",
        )
    copy = torch.empty(mapped.shape, dtype=dtype)
    flat = copy.view(-1)
    with _disable_current_modes():
        numbers = mapped.contiguous().view(-1)
        for start in range(0, numbers.numel(), PIECE):
            piece = numbers[start : start + PIECE]
            _refuse_not_finite(piece, dtype, what)
            flat[start : start + PIECE] = piece
    return copy


def _refuse_not_finite(piece: Tensor, dtype: torch.dtype, what: str) -> None:
    low, high = (float(end) for end in torch.aminmax(piece))
    if not (math.isfinite(low) and math.isfinite(high)):
        kind = "NaN" if math.isnan(low) else "infinite values"
        raise _broken(f"the tensor {what} holds {kind}", "take another revision of the model")
    limit = torch.finfo(dtype).max
    if max(-low, high) > limit:
        raise SwarmError(
            "invalid-input",
            f"the tensor {what} holds {max(-low, high):.3g}, beyond the {limit:.3g} that "
            f"{str(dtype).removeprefix('torch.')} reaches",
            hint="set model.dtype to bfloat16 or float32",
        )


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read config.json and the list of tensors; no weight yet.

    Raises:
        SwarmError: invalid-input; a family that is not offered, the repository's own code, no
            safetensors, an unreadable file, or an index that names no layer.
    """
    facts = facts_from_config(_json(folder / "config.json"))
    files = weight_files(folder)
    refuse_missing_layers(facts, files)
    return Checkpoint(folder, facts, files)


def weight_files(folder: Path) -> dict[str, Tensors]:
    """Weight file -> its tensors, from the index, or from the only file's own header."""
    index = folder / INDEX
    if index.exists():
        return files_of_index(_json(index))
    if not (folder / SINGLE).exists():
        refuse_without_safetensors([])
    try:
        with safe_open(str(folder / SINGLE), framework="pt") as opened:
            return {SINGLE: dict.fromkeys(opened.keys(), 0)}
    except (SafetensorError, OSError, ValueError) as error:
        raise _broken(f"the model's file {SINGLE} cannot be read: {str(error)[:200]}") from error


def files_of_index(index: dict[str, Any]) -> dict[str, Tensors]:
    """Weight file -> its tensors, as model.safetensors.index.json says."""
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise _broken(f"the model's {INDEX} has no weight_map")
    files: dict[str, dict[str, int]] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or not _FILE_NAME.match(file):
            raise _broken(f"the model's {INDEX} names the file {str(file)[:80]!r}, no weight file")
        files.setdefault(file, {})[str(name)] = 0
    return dict(files)


def _json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise _broken(f"the model's {path.name} is larger than {MAX_JSON_BYTES} bytes")
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise _broken(f"the model's {path.name} is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise _broken(f"the model's {path.name} cannot be read: {str(error)[:200]}") from error
    if not isinstance(value, dict):
        raise _broken(f"the model's {path.name} is no JSON object")
    return value


def _broken(message: str, hint: str = "fetch the whole repository again") -> SwarmError:
    return SwarmError("invalid-input", message, hint=hint)
