"""The leader's model store: checkpoint folders that were sent, checked, and are served to fellows.

Safetensors only; nothing in a folder is ever executed or unpickled. A finished model never changes:
its revision is the digest of its files.
"""

import asyncio
import hashlib
import json
import shutil
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.clock import Clock
from control.datasets.tokenizer_folder import NEEDED, TokenizerFolder
from control.store import buckets
from control.store.buckets import StoredModel
from control.store.database import Database, Tx
from control.store.files import StoredFile, receive, settle, sha256_of
from control.store.safetensors_file import read_header
from stage_runtime.checkpoint_share import (
    Tensors,
    refuse_missing_layers,
    refuse_other_tables,
    refuse_without_safetensors,
)
from stage_runtime.model_facts import ModelFacts, facts_from_config
from transport.errors import SwarmError, not_found
from transport.orders import ModelSource

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_JSON = 64_000_000
TAKEN = (".json", ".safetensors", ".txt", ".jinja", ".md", ".model", ".tiktoken")
PLAIN = ("LICENSE", "README", "NOTICE", "USE_POLICY")
ADDING = ".adding"


@dataclass(frozen=True)
class CheckedModel:
    """A folder of files that can be trained on."""

    facts: ModelFacts
    tensors: dict[str, Tensors]
    """Weight file -> tensor -> bytes."""
    files: dict[str, dict[str, Any]]
    """File -> {sha256, size_bytes}."""
    revision: str
    """40 hex digits over the files' names and digests."""

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(int(file["size_bytes"]) for file in self.files.values())

    def told(self) -> dict[str, Any]:
        """What a list shows."""
        return {
            "family": self.facts.model_type,
            "layers": self.facts.num_layers,
            "parameters": self.facts.total_params,
        }


class ModelStore:
    """Models that this leader keeps itself: local:NAME."""

    def __init__(self, database: Database, folder: Path, limit_bytes: int, clock: Clock) -> None:
        self._database = database
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._read: dict[str, tuple[tuple[str, int], CheckedModel]] = {}
        """Name -> (what it was read from, what it holds)."""

    def folder(self, name: str) -> Path:
        """Where a finished model lies."""
        return self._folder / name

    def adding(self, name: str) -> Path:
        """Where a model lies until it is finished."""
        return self._folder / ADDING / name

    async def receive(self, name: str, file: str, chunks: AsyncIterator[bytes]) -> StoredFile:
        """Take one file of a model that is being added.

        Raises:
            SwarmError: invalid-input for a file that no model needs, too-large, storage-full,
                conflict when the model is finished already with another such file.
        """
        refuse_name(file)
        target = self.adding(name) / file
        beside = target.with_name(f"{file}.part")
        received = await receive(chunks, beside, self._limit_bytes, name=file)
        await asyncio.to_thread(settle, received.path, target)
        return StoredFile(target, received.size_bytes, received.sha256)

    async def check(self, name: str) -> CheckedModel:
        """Read and check the folder that is being added, or the finished one again.

        Raises:
            SwarmError: not-found when no file was sent; invalid-input saying what is missing.
        """
        folder = self.adding(name)
        if not folder.is_dir() and self.folder(name).is_dir():
            folder = self.folder(name)
        if not folder.is_dir():
            raise not_found("model", f"local:{name}", hint="send its files with models_add first")
        return await asyncio.to_thread(check_folder, folder)

    async def finish(self, name: str, checked: CheckedModel) -> StoredModel:
        """Move a checked folder into its place.

        Raises:
            SwarmError: conflict when the name holds a model with other files.
        """
        known = await self._database.read(lambda tx: buckets.find_model(tx, name))
        if known is not None and known.revision != checked.revision:
            raise SwarmError(
                "conflict",
                f"local:{name} is there already, with other files",
                hint="add this one under another name",
            )
        if known is not None:
            await asyncio.to_thread(shutil.rmtree, self.adding(name), ignore_errors=True)
            return known
        if self.adding(name).is_dir():
            await asyncio.to_thread(_move, self.adding(name), self.folder(name))
        return StoredModel(
            name,
            checked.revision,
            checked.told(),
            checked.files,
            checked.size_bytes,
            self._clock.now(),
        )

    async def find(self, name: str) -> StoredModel | None:
        """A finished model."""
        return await self._database.read(lambda tx: buckets.find_model(tx, name))

    async def resolve(self, name: str, revision: str | None) -> tuple[ModelSource, CheckedModel]:
        """The exact files of local:NAME, and what they hold.

        Raises:
            SwarmError: not-found for an unknown name or revision.
        """
        model = await self.find(name)
        if model is None or (revision is not None and not model.revision.startswith(revision)):
            wanted = f"local:{name}" + (f"@{revision}" if revision else "")
            raise not_found("model", wanted, hint="list the models with models_list")
        source = ModelSource(
            model_id=f"local:{name}",
            repository=f"local/{name}",
            revision=model.revision,
            from_leader=True,
        )
        return source, await asyncio.to_thread(self._checked, model)

    def _checked(self, model: StoredModel) -> CheckedModel:
        """What a finished model holds: its files never change, so they are read once."""
        folder = self.folder(model.name)
        config = folder / "config.json"
        source = (model.revision, config.stat().st_mtime_ns if config.is_file() else 0)
        known = self._read.get(model.name)
        if known is None or known[0] != source:
            known = self._read[model.name] = (source, read_folder(folder, model.files))
        return known[1]

    def store(self, tx: Tx, model: StoredModel) -> None:
        """Remember a finished model."""
        if buckets.find_model(tx, model.name) is None:
            buckets.put_model(tx, model)

    def added(self, name: str) -> tuple[int, int]:
        """(files, bytes) of a model that is being added."""
        folder = self.adding(name)
        files = [p for p in folder.iterdir() if p.suffix != ".part"] if folder.is_dir() else []
        return len(files), sum(path.stat().st_size for path in files)


def refuse_name(file: str) -> None:
    """Refuse files that a model does not need, pickled weights and code above all."""
    if file.endswith(TAKEN) or file.partition(".")[0] in PLAIN:
        return
    raise SwarmError(
        "invalid-input",
        f"{file} is not taken: a model is config.json, *.safetensors and tokenizer files",
        hint="leave it out; weights in other formats must be converted to safetensors first",
    )


def check_folder(folder: Path) -> CheckedModel:
    """Check a folder and hash its files.

    Raises:
        SwarmError: invalid-input saying what is missing or refused.
    """
    paths = sorted(path for path in folder.iterdir() if path.is_file() and path.suffix != ".part")
    for path in paths:
        refuse_name(path.name)
    files = {p.name: {"sha256": sha256_of(p), "size_bytes": p.stat().st_size} for p in paths}
    checked = read_folder(folder, files)
    TokenizerFolder(folder).tokenizer  # noqa: B018 - reads it, and refuses a broken one
    return checked


def read_folder(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> CheckedModel:
    """Read config and headers of a folder whose files are known."""
    config = read_json(folder / "config.json")
    facts = facts_from_config(config)
    if NEEDED not in files:
        raise _broken(f"{NEEDED} is missing")
    if read_json(folder / "tokenizer_config.json", {}).get("auto_map"):
        raise _broken(
            "tokenizer_config.json names code of its own (auto_map), which never runs here"
        )
    refuse_without_safetensors(list(files))
    tensors = weight_tensors(folder)
    refuse_missing_layers(facts, tensors)
    refuse_other_tables(facts, weight_shapes(folder, tensors))
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(f"{name}\0{files[name]['sha256']}\n".encode())
    told = {name: dict(file) for name, file in files.items()}
    return CheckedModel(facts, tensors, told, total.hexdigest()[:40])


def weight_tensors(folder: Path) -> dict[str, Tensors]:
    """Weight file -> tensor -> bytes, from the headers; every file of the index must be there."""
    index = folder / INDEX
    if not index.is_file():
        if not (folder / SINGLE).is_file():
            raise _broken(f"neither {SINGLE} nor {INDEX} is there")
        return {SINGLE: _sizes(folder / SINGLE)}
    wanted: dict[str, set[str]] = {}
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise _broken(f"{INDEX} has no weight_map")
    for name, file in weight_map.items():
        wanted.setdefault(str(file), set()).add(str(name))
    missing = sorted(file for file in wanted if "/" in file or not (folder / file).is_file())
    if missing:
        raise _broken(
            f"{len(missing)} of {len(wanted)} weight files are missing: {missing[0][:80]}"
        )
    found: dict[str, Tensors] = {file: _sizes(folder / file) for file in sorted(wanted)}
    for file, names in wanted.items():
        lacking = sorted(names - set(found[file]))
        if lacking:
            raise _broken(f"{file} lacks the tensor {lacking[0][:80]}")
    return found


def weight_shapes(folder: Path, files: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Tensor -> shape, from the headers of these files."""
    return {tensor.name: tensor.shape for file in files for tensor in read_header(folder / file)}


def _sizes(path: Path) -> dict[str, int]:
    return {tensor.name: tensor.end - tensor.start for tensor in read_header(path)}


def read_json(path: Path, absent: dict[str, Any] | None = None) -> dict[str, Any]:
    """A JSON object from a file of a model."""
    if absent is not None and not path.is_file():
        return absent
    try:
        if path.stat().st_size > MAX_JSON:
            raise _broken(f"{path.name} is larger than {MAX_JSON // 10**6} MB")
        told = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise _broken(f"{path.name} is missing") from None
    except (ValueError, RecursionError):
        raise _broken(f"{path.name} is not JSON") from None
    if not isinstance(told, dict):
        raise _broken(f"{path.name} is not a JSON object")
    return told


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(target, ignore_errors=True)  # of an end that was cut off before its row
    source.replace(target)


def _broken(what: str) -> SwarmError:
    return SwarmError(
        "invalid-input", f"this model cannot be used: {what}", hint="send the missing files again"
    )
