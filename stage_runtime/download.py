"""Brings a stage's checkpoint files to this machine: only those that hold its layers.

One way for hub and leader: the leader serves its model store in the hub's own URL shape.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx2
import huggingface_hub
from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from stage_runtime.checkpoint import INDEX, SINGLE, Checkpoint, open_checkpoint, weight_files
from stage_runtime.checkpoint_share import StageSpan, share_of
from stage_runtime.leader_files import LeaderAccess, refuse_full_disk
from transport.errors import SwarmError
from transport.orders import ModelSource

MODELS_FOLDER = "hub"
"""Below the cache folder, in the hub's own layout."""


@dataclass(frozen=True)
class Downloader:
    """Fetches files of one model at one commit."""

    source: ModelSource
    leader: LeaderAccess
    cache: Path
    check: Callable[[], None]
    """Raises when the stage must stop; asked before every file."""

    @property
    def offline(self) -> bool:
        """Nothing may be fetched: the files lie in the cache or the stage fails."""
        return not self.leader.url

    @property
    def _endpoint(self) -> str | None:
        return f"{self.leader.url}/fellow/v1/hub" if self.source.from_leader else None

    @property
    def _token(self) -> str | bool | None:
        """The fellow's credential for the leader; never sent to the hub."""
        return self.leader.token if self.source.from_leader else None

    def cached(self, name: str) -> Path | None:
        """The file, when it is in the cache already."""
        found = huggingface_hub.try_to_load_from_cache(
            self.source.repository, name, cache_dir=self.cache, revision=self.source.revision
        )
        return Path(found) if isinstance(found, str) else None

    def fetch(self, name: str) -> Path:
        """The file, from the cache or over the network.

        Raises:
            SwarmError: not-found, forbidden or unreachable; names the file.
        """
        self.check()
        try:
            return Path(
                hf_hub_download(
                    self.source.repository,
                    name,
                    revision=self.source.revision,
                    cache_dir=self.cache,
                    endpoint=self._endpoint,
                    token=self._token,
                    local_files_only=self.offline,
                )
            )
        except LocalEntryNotFoundError as error:
            raise self._unreachable(name) from error
        except GatedRepoError as error:
            raise SwarmError(
                "forbidden",
                f"the model {self.source.model_id} is gated and this fellow has no access to it",
                hint="take a model that is open, or add it to the leader's model store",
            ) from error
        except (RepositoryNotFoundError, RevisionNotFoundError, EntryNotFoundError) as error:
            raise SwarmError(
                "not-found",
                f"{self.source.model_id} has no {name} at revision {self.source.revision[:12]}",
                hint="check the model's name; plan again if it has changed",
            ) from error
        except (HfHubHTTPError, httpx2.TransportError) as error:
            raise self._unreachable(name) from error

    def has(self, name: str) -> bool:
        """Whether the model has that file."""
        try:
            self.fetch(name)
        except SwarmError as error:
            if error.code != "not-found" and not self.offline:
                raise
            return False
        return True

    def missing_bytes(self, names: list[str]) -> int:
        """Bytes of the files that are not in the cache yet."""
        if self.offline:
            return 0
        return sum(self._size(name) for name in names if self.cached(name) is None)

    def _size(self, name: str) -> int:
        url = hf_hub_url(
            self.source.repository,
            name,
            revision=self.source.revision,
            endpoint=self._endpoint,
        )
        try:
            return get_hf_file_metadata(url, token=self._token).size or 0
        except (HfHubHTTPError, httpx2.TransportError) as error:
            raise self._unreachable(name) from error

    def _unreachable(self, name: str) -> SwarmError:
        model = self.source.model_id
        if self.offline:
            return SwarmError(
                "not-found",
                f"the file {name} of {model} is not in the cache, and nothing may be fetched",
                hint="put the model into the cache folder",
            )
        return SwarmError(
            "unreachable",
            f"the file {name} of {model} cannot be fetched now",
            hint="check this fellow's connection to "
            + ("the leader" if self.source.from_leader else "the model hub"),
        )


def fetch_stage(
    source: ModelSource,
    span: StageSpan,
    leader: LeaderAccess,
    cache: Path,
    check: Callable[[], None],
) -> tuple[Checkpoint, int]:
    """Fetch config, index and the stage's weight files: (opened checkpoint, bytes downloaded).

    Raises:
        SwarmError: not-enough-disk before anything large is fetched; whatever `fetch` and
            `open_checkpoint` raise.
    """
    if source.from_leader and leader.url:
        allow_leader(leader)
    downloader = Downloader(source, leader, cache / MODELS_FOLDER, check)
    folder = downloader.fetch("config.json").parent
    first = 0
    if not downloader.has(INDEX):
        first = downloader.missing_bytes([SINGLE])
        refuse_full_disk(cache, first, "the model")
        downloader.fetch(SINGLE)
    weight_files(folder)
    checkpoint = open_checkpoint(folder)
    names = list(share_of(checkpoint.facts, checkpoint.files, span))
    missing = downloader.missing_bytes(names)
    refuse_full_disk(cache, missing, "this stage's share of the model")
    for name in names:
        downloader.fetch(name)
    return checkpoint, first + missing


def allow_leader(leader: LeaderAccess) -> None:
    """Let the hub library talk to the leader: its switch to stay offline means the hub."""
    constants.HF_HUB_OFFLINE = False
    if leader.pin is not None:
        trust = leader.trust()
        huggingface_hub.set_client_factory(lambda: httpx2.Client(verify=trust, timeout=None))
