"""A folder of checkpoint files: which tensors each holds, and reading some of them safely.

Reads config.json, the index and safetensors files; anything else in the folder is never opened,
pickled weights least of all. Does not know stages or training.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

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
_FILE_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}\.safetensors$")


@dataclass(frozen=True)
class Checkpoint:
    """An opened folder. `files` maps each weight file to its tensors (size 0 when unknown)."""

    folder: Path
    facts: ModelFacts
    files: dict[str, Tensors]

    def read(self, file: str, names: list[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield the named tensors of one file.

        Raises:
            SwarmError: invalid-input; the file is missing, cut short, or lacks a tensor.
        """
        try:
            with safe_open(str(self.folder / file), framework="pt") as opened:
                for name in names:
                    yield name, opened.get_tensor(name)
        except FileNotFoundError:
            raise _broken(f"the model's file {file} is missing") from None
        except (SafetensorError, OSError, ValueError) as error:
            raise _broken(f"the model's file {file} cannot be read: {str(error)[:200]}") from error


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


def _broken(message: str) -> SwarmError:
    return SwarmError("invalid-input", message, hint="fetch the whole repository again")
