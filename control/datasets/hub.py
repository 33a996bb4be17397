"""Models of the hub: an id and a branch become a commit, a configuration and file sizes.

Only config and tokenizer files are fetched here; fellows fetch weights themselves. HF_ENDPOINT and
the hub client's own cache are honoured. Blocking calls run in threads.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.clock import Clock
from control.datasets.model_store import read_json
from control.datasets.tokenizer_folder import FILES
from stage_runtime.checkpoint_share import (
    Tensors,
    refuse_missing_layers,
    refuse_without_safetensors,
)
from stage_runtime.model_facts import ModelFacts, facts_from_config
from transport.errors import SwarmError, not_found
from transport.orders import ModelSource

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
        return _ask_hub(hub, repository, revision)
    except errors.GatedRepoError:
        raise SwarmError(
            "forbidden",
            f"{shown} is gated: its owner must admit you",
            hint="accept its terms on the hub, then set HF_TOKEN at the leader and the fellows",
        ) from None
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
        hint = "check its name; for a private one set HF_TOKEN at the leader"
        raise not_found("model", shown, hint=hint) from None
    except errors.HFValidationError:
        raise SwarmError(
            "invalid-input", f"{shown!r} is no model id", hint="write org/name or local:NAME"
        ) from None
    except (errors.NotASafetensorsRepoError, errors.SafetensorsParsingError):
        refuse_without_safetensors([])
        raise
    except (errors.HfHubHTTPError, ConnectionError, TimeoutError, OSError) as error:
        return _ask_cache(hub, repository, revision, error)


def _ask_hub(hub: Any, repository: str, revision: str | None) -> HubModel:
    info = hub.HfApi().model_info(repository, revision=revision, timeout=20)
    names = [file.rfilename for file in info.siblings or []]
    refuse_without_safetensors(names)
    commit = str(info.sha)
    metadata = hub.HfApi().get_safetensors_metadata(repository, revision=commit, timeout=20)
    tensors: dict[str, Tensors] = {
        file: {name: int(t.data_offsets[1] - t.data_offsets[0]) for name, t in told.tensors.items()}
        for file, told in metadata.files_metadata.items()
    }
    for name in FILES:
        if name in names:
            path = Path(hub.hf_hub_download(repository, name, revision=commit))
    return _model(repository, commit, path.parent, tensors)


def _ask_cache(hub: Any, repository: str, revision: str | None, why: Exception) -> HubModel:
    """What an earlier visit left in the cache, when the hub cannot be reached."""
    try:
        config = Path(
            hub.hf_hub_download(repository, "config.json", revision=revision, local_files_only=True)
        )
    except OSError:
        raise SwarmError(
            "unavailable",
            f"the model hub cannot be reached, and {repository} is not in the cache"
            f" ({type(why).__name__})",
            hint="go online, or put the model into the leader's store: `swarm models add FOLDER`",
        ) from None
    return _model(repository, config.parent.name, config.parent, None)


def _model(
    repository: str, commit: str, folder: Path, tensors: dict[str, Tensors] | None
) -> HubModel:
    facts = facts_from_config(read_json(folder / "config.json"))
    if tensors is not None:
        refuse_missing_layers(facts, tensors)
    source = ModelSource(
        model_id=repository, repository=repository, revision=commit, from_leader=False
    )
    return HubModel(source, facts, tensors, folder)
