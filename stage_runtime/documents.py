"""Where documents begin inside a sequence: positions that start anew there.

transformers reads them: where positions do not go on, attention does not either, in full and in
sliding windows alike. A stage between the first and the last has no tokens; it reads the places
where documents begin, and nothing else, from the leader's token file.
"""

import json
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import torch
from safetensors.numpy import save_file
from torch import Tensor

from stage_runtime.leader_files import MAX_TRIES, LeaderAccess
from transport.errors import SwarmError
from transport.orders import TokenFile

MOST_HEADER_BYTES = 1_000_000


@dataclass(frozen=True)
class Documents:
    """The documents of a packed token file; the rows of another are one each."""

    file: TokenFile
    starts: Any
    """int64 [R + 1], rising: where each begins, and the end of the last."""

    def positions(self, indices: list[int], seq_len: int) -> Tensor:
        """(B, T) int64: how far each token stands from its document's beginning, or from the
        sequence's where the document began before it. Padding goes on counting.
        """
        rows = np.tile(np.arange(seq_len, dtype=np.int64), (len(indices), 1))
        if self.file.layout == "packed":
            for row, index in enumerate(indices):
                if index >= 0:
                    first = index * seq_len
                    own = self.starts[np.searchsorted(self.starts, first + rows[row], "right") - 1]
                    rows[row] -= np.maximum(own - first, 0)
        return torch.from_numpy(rows)


def fetch_document_starts(
    leader: LeaderAccess, cache: Path, file: TokenFile, check: Callable[[], None]
) -> tuple[Path, int]:
    """A file that holds row_starts: the whole token file if the cache has it, else one of its own,
    made of those bytes alone: (path, bytes downloaded).

    Raises:
        SwarmError: not-found offline; what the leader refused with; unreachable; unavailable when
            what arrived is no list of documents of that file.
    """
    folder = cache / "tokens"
    whole, own = folder / f"{file.digest}.safetensors", folder / f"{file.digest}.starts.safetensors"
    for path in (whole, own):
        if path.exists():
            return path, 0
    if not leader.url:
        raise SwarmError(
            "not-found",
            f"the token file {file.digest[:12]}… is not in the cache and there is no leader to ask",
            hint="put it there, or run the stage under a leader",
        )
    folder.mkdir(parents=True, exist_ok=True)
    with leader.client() as client:
        starts, fetched = _read_starts(client, f"/fellow/v1/tokens/{file.digest}", check)
    _refuse_foreign(starts, file)
    draft = own.with_name(f"{file.digest}.starts.{os.getpid()}.part")
    save_file({"row_starts": starts}, str(draft))
    draft.replace(own)
    return own, fetched


def _read_starts(
    client: httpx2.Client, url: str, check: Callable[[], None]
) -> tuple[np.ndarray[Any, Any], int]:
    (size,) = struct.unpack("<Q", _span(client, url, (0, 8), check))
    if not 0 < size <= MOST_HEADER_BYTES:
        raise _no_list(f"its header says {size} bytes")
    try:
        entry = json.loads(_span(client, url, (8, 8 + size), check))["row_starts"]
        begin, end = (int(place) for place in entry["data_offsets"])
    except (ValueError, KeyError, TypeError) as error:
        raise _no_list("its header names none") from error
    if entry.get("dtype") != "I64" or begin < 0 or end < begin or (end - begin) % 8:
        raise _no_list("its header describes another kind")
    raw = _span(client, url, (8 + size + begin, 8 + size + end), check)
    return np.frombuffer(raw, dtype=np.int64).copy(), 8 + size + len(raw)


def _refuse_foreign(starts: np.ndarray[Any, Any], file: TokenFile) -> None:
    rises = len(starts) == file.num_rows + 1 and bool((np.diff(starts) >= 0).all())
    if not rises or int(starts[0]) != 0 or int(starts[-1]) != file.num_tokens:
        raise _no_list(f"it lists {len(starts)} places, not those of {file.num_rows} documents")


def _span(
    client: httpx2.Client, url: str, span: tuple[int, int], check: Callable[[], None]
) -> bytes:
    """Bytes from .. until of a file."""
    first, until = span
    failure: Exception | None = None
    for _ in range(MAX_TRIES):
        check()
        try:
            answer = client.get(url, headers={"Range": f"bytes={first}-{until - 1}"})
        except httpx2.TransportError as error:
            failure = error
            continue
        if not answer.is_success:
            raise LeaderAccess.refusal(answer)
        if answer.status_code != 206 or len(answer.content) != until - first:
            raise _no_list(f"{len(answer.content)} bytes came, not {until - first}")
        return answer.content
    raise SwarmError(
        "unreachable",
        f"the list of documents broke off {MAX_TRIES} times: {type(failure).__name__}",
        hint="check the connection between this fellow and the leader",
    ) from failure


def _no_list(what: str) -> SwarmError:
    return SwarmError(
        "unavailable",
        f"the token file's list of documents cannot be used: {what}",
        hint="start the job again; if it happens twice, tokenize the data anew",
    )
