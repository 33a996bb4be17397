"""Models of the hub: an id and a branch become a commit, a configuration and file sizes.

Only config and tokenizer files are fetched here; fellows fetch weights themselves. HF_ENDPOINT and
the hub client's own cache are honoured. Blocking calls run in threads.
"""

import asyncio
import json
import re
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.clock import Clock
from control.datasets.hub_refusals import Unreachable, hub_refusals
from control.datasets.model_store import read_json
from control.datasets.tokenizer_folder import FILES
from stage_runtime.checkpoint_share import (
    Tensors,
    refuse_missing_layers,
    refuse_other_tables,
    refuse_without_safetensors,
)
from stage_runtime.model_facts import ModelFacts, facts_from_config
from transport.errors import SwarmError
from transport.orders import ModelSource

CONFIG = "config.json"
FRESH_S = 300.0  # how long a branch is believed to point where it did
REMEMBERED = 64


@dataclass(frozen=True)
class HubModel:
    """One commit of a repository."""

    source: ModelSource
    facts: ModelFacts
    tensors: dict[str, Tensors] | None
    """Weight file -> tensor -> bytes; None when only the cache could be asked."""
    folder: Path
    """With config.json and the tokenizer's files."""


class Hub:
    """Looks models up."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: OrderedDict[str, tuple[float, HubModel]] = OrderedDict()

    async def resolve(self, repository: str, revision: str | None) -> HubModel:
        """A repository at a branch, tag or commit.

        Raises:
            SwarmError: not-found, forbidden for a gated one, unavailable when the hub cannot be
                reached and the cache does not hold it, invalid-input for what cannot be trained.
        """
        key = f"{repository}@{revision}"
        known = self._known.get(key)
        if known is not None and self._clock.monotonic() - known[0] < FRESH_S:
            return known[1]
        try:
            model = await asyncio.to_thread(_resolve, repository, revision)
        except SwarmError as error:
            # A waiting job must not lose its model, or wait for a timeout each time, while the
            # hub is away: what was true five minutes ago is believed.
            if known is None or error.code != "unavailable":
                raise
            model = known[1]
        self._known[key] = (self._clock.monotonic(), model)
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return model


def _resolve(repository: str, revision: str | None) -> HubModel:
    # Imported here: it costs a third of a second that a leader with local models never needs.
    import huggingface_hub as hub  # noqa: PLC0415
    from huggingface_hub import errors  # noqa: PLC0415

    shown = repository + (f"@{revision}" if revision else "")
    try:
        with hub_refusals("model", shown):
            return _ask_hub(hub, repository, revision)
    except errors.RemoteEntryNotFoundError as error:
        raise _broken(shown, f"{_file_of(str(error.response.url))} is missing") from None
    except (errors.NotASafetensorsRepoError, errors.SafetensorsParsingError) as error:
        what = f"the header of {_file_of(str(error))} cannot be read"
        raise _broken(shown, what) from None
    except Unreachable as error:
        if error.status == 416:
            raise _broken(shown, "a weight file is empty") from None
        return _ask_cache(hub, repository, revision, error.why)


def _broken(shown: str, what: str) -> SwarmError:
    return SwarmError(
        "invalid-input",
        f"{shown} cannot be used: {what}",
        hint="take another revision or another repository",
    )


def _file_of(text: str) -> str:
    """The weight file that a message or an address names."""
    found = re.search(r"[\w.-]+\.safetensors(\.index\.json)?", text)
    return found[0] if found else text.rpartition("/")[2][:80]


def _ask_hub(hub: Any, repository: str, revision: str | None) -> HubModel:
    info = hub.HfApi().model_info(repository, revision=revision, timeout=20)
    names = [file.rfilename for file in info.siblings or []]
    refuse_without_safetensors(names)
    if CONFIG not in names:
        raise _broken(repository, f"{CONFIG} is missing")
    commit = str(info.sha)
    for name in FILES:
        if name in names:
            path = Path(hub.hf_hub_download(repository, name, revision=commit))
    facts_from_config(read_json(path.parent / CONFIG))  # before anything else is fetched
    tensors, shapes = _tensors(hub, repository, commit)
    model = _model(repository, commit, path.parent, tensors)
    refuse_other_tables(model.facts, shapes)
    return model


def _tensors(
    hub: Any, repository: str, commit: str
) -> tuple[dict[str, Tensors], dict[str, list[int]]]:
    """(weight file -> tensor -> bytes, tensor -> shape), from the headers of the files."""
    try:
        metadata = hub.HfApi().get_safetensors_metadata(repository, revision=commit, timeout=20)
        files = metadata.files_metadata
        sizes: dict[str, Tensors] = {
            file: {
                name: int(t.data_offsets[1] - t.data_offsets[0]) for name, t in told.tensors.items()
            }
            for file, told in files.items()
        }
        shapes = {n: list(t.shape) for told in files.values() for n, t in told.tensors.items()}
        lost = [(n, file) for n, file in metadata.weight_map.items() if n not in sizes[file]]
    except (json.JSONDecodeError, AttributeError, KeyError, TypeError):
        raise _broken(repository, "the index of its weight files cannot be read") from None
    if lost:
        name, file = min(lost)
        raise _broken(repository, f"{file[:80]} lacks the tensor {name[:80]} of its index")
    return sizes, shapes


def _ask_cache(hub: Any, repository: str, revision: str | None, why: str) -> HubModel:
    """What an earlier visit left in the cache, when the hub gives nothing."""
    try:
        config = Path(
            hub.hf_hub_download(repository, CONFIG, revision=revision, local_files_only=True)
        )
    except OSError:
        raise SwarmError(
            "unavailable",
            f"the model hub {why}, and {repository} is not in the cache",
            hint="try again later, or put the model into the leader's store: "
            "`swarm models add FOLDER`",
        ) from None
    return _model(repository, config.parent.name, config.parent, None)


def _model(
    repository: str, commit: str, folder: Path, tensors: dict[str, Tensors] | None
) -> HubModel:
    facts = facts_from_config(read_json(folder / CONFIG))
    if tensors is not None:
        refuse_missing_layers(facts, tensors)
    source = ModelSource(
        model_id=repository, repository=repository, revision=commit, from_leader=False
    )
    return HubModel(source, facts, tensors, folder)
