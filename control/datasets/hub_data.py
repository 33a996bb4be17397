"""Data sets of the hub: an id becomes a commit and a list of files; these are fetched once.

Parquet first, else JSONL, CSV, text. The commit is pinned in the plan. A child process downloads,
so that a leader that stops waits for no network; sizes are known and bounded before it starts.
"""

import asyncio
import contextlib
import json
import re
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from control.clock import Clock
from control.datasets.child import Limits, run_child
from control.datasets.hub_refusals import Unreachable, hub_refusals
from control.datasets.rows import layout_of
from control.store.files import disk_refusal, write_whole
from transport.api.job_config import DataConfig
from transport.errors import SwarmError
from transport.units import human_bytes

DEFAULT = "Salesforce/wikitext"
"""What a job trains on that names no data."""
FRESH_S = 300.0  # how long a branch is believed to point where it did
FETCH_CPU_S = 7200.0
REMEMBERED = 64
KEPT_FREE_BYTES = 1_000_000_000
PREFERRED = (".parquet", ".jsonl", ".csv", ".txt")
COMMIT = re.compile(r"^[0-9a-f]{40}$")
NOTE = "swarm.json"
"""What is known of a data set that is whole on this disk."""
AGAIN_S = 60.0  # after a download that failed


@dataclass(frozen=True)
class Known:
    """What must be known of a data set that does not say it itself."""

    subset: str
    joined: str
    """How its rows become documents; see readers.Source."""


KNOWN = {DEFAULT: Known("wikitext-2-raw-v1", "wikitext")}


@dataclass(frozen=True)
class Wanted:
    """A data set as a job names it."""

    repository: str
    revision: str | None
    subset: str | None
    split: str

    @property
    def shown(self) -> str:
        """Its name for people."""
        return self.repository + (f"@{self.revision}" if self.revision else "")

    @property
    def subset_or_known(self) -> str | None:
        """The subset; of a known data set its usual one."""
        known = KNOWN.get(self.repository)
        return self.subset or (known.subset if known else None)


def wanted_of(data: DataConfig) -> Wanted:
    """The data set that a job names; WikiText when it names no data at all."""
    repository, _, revision = (data.dataset or DEFAULT).partition("@")
    return Wanted(repository, revision or None, data.subset, data.split)


@dataclass(frozen=True)
class HubFile:
    """One file of a data set at a commit."""

    path: str
    """In the repository."""
    size_bytes: int | None
    name: str
    """A plain name for words and rows."""


@dataclass(frozen=True)
class HubData:
    """A data set at a commit."""

    wanted: Wanted
    commit: str
    files: tuple[HubFile, ...]

    @property
    def size_bytes(self) -> int:
        """Of all files, as far as the hub says."""
        return sum(file.size_bytes or 0 for file in self.files)

    @property
    def folder_name(self) -> str:
        """Where it lies on this disk."""
        wanted = self.wanted
        repository = wanted.repository.replace("/", "--")
        return f"{repository}--{wanted.subset_or_known or 'all'}--{wanted.split}--{self.commit}"

    @property
    def pinned(self) -> str:
        """Its name with the commit."""
        return f"{self.wanted.repository}@{self.commit}"

    def told(self) -> dict[str, Any]:
        """What its note says of it."""
        wanted = self.wanted
        return {
            "repository": wanted.repository,
            "revision": wanted.revision,
            "subset": wanted.subset_or_known,
            "split": wanted.split,
            "commit": self.commit,
        }

    @property
    def joined(self) -> str:
        """How its rows become documents."""
        known = KNOWN.get(self.wanted.repository)
        return known.joined if known else ""


@dataclass(frozen=True)
class Fetched:
    """A data set on this leader's disk."""

    data: HubData
    folder: Path
    files: tuple[Mapping[str, Any], ...]
    """{path, name, sha256, size_bytes, num_rows, kinds} of each."""


@dataclass
class Fetching:
    """A download on its way."""

    task: "asyncio.Task[Fetched]"
    done_bytes: int = 0


@dataclass(frozen=True)
class FetchTerms:
    """What a download may take."""

    limit_bytes: int
    memory_bytes: int
    """Of the child that fetches and reads it."""


class HubDataSets:
    """All hub data sets of a leader."""

    def __init__(self, folder: Path, terms: FetchTerms, clock: Clock) -> None:
        self._folder = folder
        self._terms = terms
        self._clock = clock
        self._known: OrderedDict[Wanted, tuple[float, HubData]] = OrderedDict()
        self._fetching: dict[str, Fetching] = {}
        self._failed: OrderedDict[str, tuple[float, SwarmError]] = OrderedDict()
        self.on_moved: Callable[[], None] = lambda: None
        """Called when a data set is here, or cannot be had, or has come a percent further."""

    async def resolve(self, wanted: Wanted) -> HubData:
        """A data set at the commit that its revision is now.

        Raises:
            SwarmError: not-found, forbidden for a gated one, unavailable when the hub cannot be
                reached and no copy is here, invalid-input when it has no files that are read.
        """
        known = self._known.get(wanted)
        if known is not None and self._clock.monotonic() - known[0] < FRESH_S:
            return known[1]
        try:
            found = await asyncio.to_thread(_ask_hub, wanted)
        except Unreachable as error:
            # A waiting job must not lose its data, or wait for a timeout each time, while the hub
            # is away: what was true five minutes ago, or is on this disk, is believed.
            kept = known[1] if known else await asyncio.to_thread(self._kept, wanted)
            if kept is None:
                raise _away(wanted, error) from None
            found = kept
        self._known[wanted] = (self._clock.monotonic(), found)
        _shorten(self._known)
        return found

    async def get(self, data: HubData, wait_s: float = 0.0) -> Fetched | None:
        """The files of a data set; None while they are being fetched.

        Raises:
            SwarmError: too-large, storage-full, unavailable, invalid-input for wrong rows.
        """
        folder = self._folder / data.folder_name
        note = await asyncio.to_thread(_read_note, folder)
        if note is not None:
            return Fetched(data, folder, tuple(note["files"]))
        key = data.folder_name
        failed = self._failed.get(key)
        if failed is not None and self._clock.monotonic() - failed[0] < AGAIN_S:
            raise failed[1]
        known = self._fetching.get(key)
        if known is None:
            task = asyncio.create_task(self._fetch(data, folder), name="fetch data set")
            known = self._fetching[key] = Fetching(task)
            task.add_done_callback(lambda done: self._fetched(key, done))
        await asyncio.wait({known.task}, timeout=wait_s)
        return known.task.result() if known.task.done() else None

    def share(self, data: HubData) -> float:
        """How much of it is here while it is being fetched."""
        known = self._fetching.get(data.folder_name)
        size = data.size_bytes
        return 0.0 if known is None or not size else min(1.0, known.done_bytes / size)

    async def close(self) -> None:
        """Stop what is being fetched."""
        tasks = [one.task for one in self._fetching.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def sweep(self) -> None:
        """Remove what an earlier life left half fetched."""
        for path in self._folder.glob("*.part"):
            shutil.rmtree(path, ignore_errors=True)

    def _fetched(self, key: str, task: "asyncio.Task[Fetched]") -> None:
        self._fetching.pop(key, None)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, SwarmError):
            self._failed[key] = (self._clock.monotonic(), error)
            _shorten(self._failed)
        self.on_moved()

    async def _fetch(self, data: HubData, folder: Path) -> Fetched:
        into = folder.with_name(f"{folder.name}.part")
        try:
            await asyncio.to_thread(self._make_room, data, into)
            asked = {
                "task": "fetch",
                "into": str(into),
                "repository": data.wanted.repository,
                "shown": data.wanted.shown,
                "revision": data.commit,
                "files": [{"path": file.path, "name": file.name} for file in data.files],
                "limit_bytes": self._terms.limit_bytes,
            }
            limits = Limits(self._terms.memory_bytes, FETCH_CPU_S)
            told = await run_child(asked, limits, lambda one: self._progress(data, one))
            files = list(told["files"])
            _refuse_mixture(data, files)
            note = {**data.told(), "files": files}
            await asyncio.to_thread(write_whole, into / NOTE, json.dumps(note).encode())
            await asyncio.to_thread(into.rename, folder)
        finally:
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, into, ignore_errors=True))
        return Fetched(data, folder, tuple(files))

    def _make_room(self, data: HubData, into: Path) -> None:
        size, most = data.size_bytes, self._terms.limit_bytes
        if size > most:
            raise SwarmError(
                "too-large",
                f"{data.wanted.shown} has {human_bytes(size)} of {data.wanted.split} data, more "
                f"than the {human_bytes(most)} that this leader fetches",
                hint="name a smaller subset or split, or raise max_dataset_bytes at the leader",
                facts={"size_bytes": size, "limit_bytes": most},
            )
        try:
            into.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(into).free
        except OSError as error:
            raise disk_refusal(error, data.wanted.shown) from error
        if free < size + KEPT_FREE_BYTES:
            raise SwarmError(
                "storage-full",
                f"{data.wanted.shown} has {human_bytes(size)} and the leader's disk "
                f"{human_bytes(free)} free",
                hint="free space in the leader's data folder",
            )

    def _progress(self, data: HubData, told: Mapping[str, Any]) -> None:
        known = self._fetching.get(data.folder_name)
        if known is None or "done" not in told:
            return
        before, known.done_bytes = known.done_bytes, int(told["done"])
        size = max(1, data.size_bytes)
        if 100 * before // size != 100 * known.done_bytes // size:
            self.on_moved()

    def _kept(self, wanted: Wanted) -> HubData | None:
        """The newest copy on this disk that the wish fits."""
        found = []
        for path in self._folder.glob(f"*/{NOTE}"):
            note = _read_note(path.parent)
            if note is not None and _fits(note, wanted):
                found.append((path.stat().st_mtime, note))
        if not found:
            return None
        note = max(found, key=lambda one: one[0])[1]
        files = tuple(HubFile(f["path"], f["size_bytes"], f["name"]) for f in note["files"])
        return HubData(wanted, str(note["commit"]), files)


def _shorten(remembered: "OrderedDict[Any, Any]") -> None:
    while len(remembered) > REMEMBERED:
        remembered.popitem(last=False)


def _read_note(folder: Path) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads((folder / NOTE).read_bytes()))
    return None


def _fits(note: Mapping[str, Any], wanted: Wanted) -> bool:
    named = (wanted.repository, wanted.subset_or_known, wanted.split)
    same = (note["repository"], note["subset"], note["split"]) == named
    revision = wanted.revision or ""
    by_commit = len(revision) >= 7 and str(note["commit"]).startswith(revision)
    return same and (note["revision"] == wanted.revision or by_commit)


def _refuse_mixture(data: HubData, files: Sequence[Mapping[str, Any]]) -> None:
    layouts = {layout_of(kind) for file in files for kind in file["kinds"]}
    if len(layouts) > 1:
        raise SwarmError(
            "invalid-input",
            f"{data.wanted.shown} mixes plain text with other rows in its files",
            hint="name a subset, or put the rows that you want into a bucket",
        )


def _away(wanted: Wanted, error: Unreachable) -> SwarmError:
    return SwarmError(
        "unavailable",
        f"the model hub {error.why}, and data set {wanted.shown} is not on this leader's disk",
        hint="try again later, or put the data into a bucket: `swarm buckets add`",
    )


# --- which files ---------------------------------------------------------------------------------


def _ask_hub(wanted: Wanted) -> HubData:
    import huggingface_hub as hub  # noqa: PLC0415 - see hub_refusals

    with hub_refusals("data set", wanted.shown):
        info = hub.HfApi().dataset_info(
            wanted.repository, revision=wanted.revision, files_metadata=True, timeout=20
        )
    commit = str(info.sha)
    if not COMMIT.match(commit):
        raise _refusal(wanted, "has no commit that can be pinned", "take another data set", ())
    listed = [(str(one.rfilename), one.size) for one in info.siblings or []]
    return HubData(wanted, commit, choose(listed, wanted))


def choose(listed: Sequence[tuple[str, int | None]], wanted: Wanted) -> tuple[HubFile, ...]:
    """The files of the split, of the best format that it comes in, in the order of their names.

    Raises:
        SwarmError: invalid-input when there is none, or when several subsets have it.
    """
    sound = [(path, size) for path, size in listed if _is_plain(path)]
    ofsplit = [(path, size) for path, size in sound if _is_of_split(path, wanted.split)]
    subset = wanted.subset_or_known
    if subset is not None:
        found = [(path, size) for path, size in ofsplit if subset in PurePosixPath(path).parts[:-1]]
    else:
        found = ofsplit
        subsets = {_subset_of(path, wanted.split) for path, _ in found}
        if len(subsets) > 1:
            raise _refusal(wanted, "has several subsets", "name one in data.subset", subsets)
    for ending in PREFERRED:
        files = sorted((path, size) for path, size in found if path.endswith(ending))
        if files:
            return tuple(HubFile(path, size, _plain_name(path)) for path, size in files)
    what = f"has no {wanted.split} file that is read ({', '.join(PREFERRED)})"
    what += f" in subset {subset!r}" if subset else ""
    there = {path for path, _ in sound if path.endswith(PREFERRED)}
    raise _refusal(wanted, what, "name data.subset and data.split after its files", there)


def _is_plain(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(parts) and parts[0] != "/" and not any(part.startswith(".") for part in parts)


def _is_of_split(path: str, split: str) -> bool:
    *folders, name = PurePosixPath(path).parts
    after = name[len(split) : len(split) + 1]
    return (name.startswith(split) and after in ("", "-", "_", ".")) or split in folders


def _subset_of(path: str, split: str) -> str:
    return "/".join(one for one in PurePosixPath(path).parts[:-1] if one not in (split, "data"))


def _plain_name(path: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", PurePosixPath(path).name)[-80:].lstrip(".-_") or "rows"


def _refusal(wanted: Wanted, what: str, hint: str, there: Iterable[str]) -> SwarmError:
    names = sorted(re.sub(r"[^A-Za-z0-9._/-]", "-", one)[:60] for one in there if one)
    shown = f": {', '.join(names[:6])}" + (", ..." if len(names) > 6 else "") if names else ""
    return SwarmError("invalid-input", f"{wanted.shown} {what}{shown}", hint=hint)
