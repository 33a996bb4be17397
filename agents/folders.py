"""Folders that travel file by file: a checkpoint to the leader, an adapter from it.

Knows which files belong to a checkpoint and compares what arrives with the digests that were told.
"""

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from agents.client import Client
from transport.api.buckets import (
    MODELS_ADD,
    MODELS_EXPORT,
    ExportedFile,
    ModelAdded,
    ModelExported,
    ModelsAdd,
    ModelsExport,
)
from transport.api.exports import MODELS_MERGE, ModelsMerge, ShownMerge
from transport.errors import SwarmError

_WANTED = re.compile(
    r"^(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab"
    r"|chat_template|preprocessor_config)\.json$"
    r"|\.safetensors$|\.safetensors\.index\.json$|^merges\.txt$|^vocab\.txt$|^chat_template\.jinja$"
    r"|^tokenizer\.model$|^README\.md$|^LICENSE(\.(txt|md))?$"
)
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}$")
_PICKLED = (".bin", ".pt", ".pth", ".pkl", ".ckpt", ".h5", ".msgpack")

Tell = Callable[[str, int], None]
"""Called with a file's name and the number of bytes just handed over."""
MergeTell = Callable[[ShownMerge], None]
POLL_S = 1.0


def checkpoint_files(folder: Path) -> list[Path]:
    """The files of a checkpoint folder that a leader takes, in order of name.

    Raises:
        SwarmError: not-found or invalid-input when it is no safetensors checkpoint.
    """
    if not folder.is_dir():
        raise SwarmError(
            "not-found", f"there is no folder {str(folder)!r}", hint="name a checkpoint's folder"
        )
    found = sorted(path for path in folder.iterdir() if path.is_file())
    wanted = [path for path in found if _WANTED.search(path.name) and _NAME.match(path.name)]
    names = {path.name for path in wanted}
    if not any(name.endswith(".safetensors") for name in names):
        pickled = [path.name for path in found if path.suffix in _PICKLED]
        raise SwarmError(
            "invalid-input",
            f"{str(folder)!r} holds no *.safetensors file"
            + (f", only {pickled[0]!r}" if pickled else ""),
            hint="save the model with safe_serialization=True; pickled weights are never read",
        )
    if "config.json" not in names:
        raise SwarmError(
            "invalid-input",
            f"{str(folder)!r} holds no config.json",
            hint="name the folder that save_pretrained wrote",
        )
    return wanted


def add_model(client: Client, folder: Path, name: str, tell: Tell | None = None) -> ModelAdded:
    """Send every file of a checkpoint to the leader's model store, and finish the model.

    Raises:
        SwarmError: what is wrong with the folder, or the leader's refusal.
    """
    for file in checkpoint_files(folder):
        _add_file(client, file, name, tell)
    return client.call(MODELS_ADD, ModelsAdd(name=name, finish=True))


def _add_file(client: Client, file: Path, name: str, tell: Tell | None) -> None:
    def progress(count: int) -> None:
        if tell is not None:
            tell(file.name, count)

    client.upload(MODELS_ADD, ModelsAdd(name=name, file=file.name), file, progress)


def export_adapter(
    client: Client, job_id: str, target: Path, tell: Tell | None = None
) -> ModelExported:
    """Write the trained adapter of a finished job to a new or empty folder.

    Raises:
        SwarmError: conflict when the folder holds something; internal when a file arrives damaged.
    """
    told = client.call(MODELS_EXPORT, ModelsExport(job_id=job_id))
    _make_empty(target)
    _fetch_all(client, told.files, target, tell)
    return told


def export_merged(
    client: Client, ask: ModelsMerge, target: Path, tell: MergeTell, fetched: Tell | None = None
) -> ModelExported:
    """Have a fellow make a whole checkpoint of a finished job, wait for it, and write it.

    tell: called with each new state of the making.

    Raises:
        SwarmError: conflict when the folder holds something; stage-failed with the fellow's words
            when it cannot be made; internal when a file arrives damaged.
    """
    _make_empty(target)
    job_id = ask.job_id
    merged = client.call(MODELS_MERGE, ask).merged
    while merged.state in ("waiting", "running"):
        tell(merged)
        time.sleep(POLL_S)
        found = client.call(MODELS_EXPORT, ModelsExport(job_id=job_id)).merged
        if found is None:
            raise SwarmError("conflict", "the checkpoint is no longer asked for", hint="ask again")
        merged = found
    if merged.state == "failed":
        raise SwarmError(
            "stage-failed",
            f"the checkpoint of {job_id} was not made: {merged.untrusted_error or merged.reason}",
            hint="run the same command again to try again",
        )
    told = client.call(MODELS_EXPORT, ModelsExport(job_id=job_id))
    _fetch_all(client, told.merged_files, target, fetched)
    return told


def _make_empty(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise SwarmError(
            "conflict", f"{str(target)!r} is not empty", hint="name a new folder with --to"
        )
    target.mkdir(parents=True, exist_ok=True)


def _fetch_all(
    client: Client, files: Sequence[ExportedFile], target: Path, tell: Tell | None
) -> None:
    for file in files:
        if not _NAME.match(file.name):
            raise SwarmError(
                "internal", f"the leader names a file {file.name!r}, which is no file name here"
            )

        def progress(count: int, name: str = file.name) -> None:
            if tell is not None:
                tell(name, count)

        digest = client.fetch(file.path, target / file.name, progress)
        if digest != file.sha256:
            (target / file.name).unlink(missing_ok=True)
            raise SwarmError(
                "internal",
                f"{file.name} arrived damaged: SHA-256 {digest[:12]}, not {file.sha256[:12]}",
                hint="fetch it again",
            )
