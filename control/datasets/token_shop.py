"""Makes token files of data, once each: in a child process, found again by what went into them.

Asked twice for the same data, tokenizer and settings it works once. Does not know jobs.
"""

import asyncio
import hashlib
import json
import shutil
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.clock import Clock
from control.datasets import held_out, token_file
from control.datasets.child import Limits, run_child
from control.datasets.rows import Layout, layout_of, place_words
from control.datasets.token_file import Measured
from control.datasets.tokenizer_folder import TokenizerFolder
from control.store import buckets
from control.store.database import Database
from control.store.files import StoredFile
from transport.api.job_config import HeldOutConfig
from transport.errors import SwarmError

VERSION = 3  # of the tokens made from the same text; raise it when they change
CHILDREN = 1  # at once: tokenizers uses all cores itself
REMEMBERED = 256
AGAIN_S = 60.0  # after a child that died for no reason of the data


@dataclass(frozen=True)
class DataFile:
    """A data file on the leader's disk."""

    path: Path
    name: str
    sha256: str
    size_bytes: int
    num_rows: int
    kinds: Mapping[str, int]
    joined: str = ""
    """How rows of text become documents; see readers.Source."""


@dataclass(frozen=True)
class Wish:
    """Some data, to be tokenized for some model."""

    files: tuple[DataFile, ...]
    tokenizer: TokenizerFolder
    seq_len: int
    held_out: HeldOutConfig = token_file.TAIL

    @property
    def num_rows(self) -> int:
        """Of the data."""
        return sum(file.num_rows for file in self.files)

    @property
    def align(self) -> int | None:
        """The sequence length that the file is made for, where it matters."""
        by_rows = held_out.is_decided_by_rows(self.held_out)
        return self.seq_len if by_rows and self.layout() == "packed" else None

    def layout(self) -> Layout:
        """packed for text and ready tokens, rows for everything else.

        Raises:
            SwarmError: invalid-input for an empty bucket or a mixture, with numbers.
        """
        counts: dict[str, int] = {}
        for file in self.files:
            for kind, count in file.kinds.items():
                counts[kind] = counts.get(kind, 0) + count
        if not counts:
            raise SwarmError(
                "invalid-input", "the bucket is empty", hint="add rows with buckets_add"
            )
        layouts = {layout_of(kind) for kind in counts}
        if len(layouts) > 1:
            told = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
            raise SwarmError(
                "invalid-input",
                f"the bucket mixes plain text with other rows ({told})",
                hint="put plain text into a bucket of its own",
            )
        return layouts.pop()

    def neutral_names(self) -> list[str]:
        """What files are called while tokens are made: who else has the same bytes shares them."""
        return [f"⟪{at}⟫.{file.name.rpartition('.')[2]}" for at, file in enumerate(self.files)]

    def named(self, error: SwarmError) -> SwarmError:
        """A refusal with the files' own names."""
        message = error.message
        for neutral, file in zip(self.neutral_names(), self.files):
            message = message.replace(neutral, file.name)
        return SwarmError(error.code, message, hint=error.hint, facts=error.facts)

    def key(self) -> str:
        """SHA-256 over all that decides the tokens."""
        by_rows = held_out.is_decided_by_rows(self.held_out)
        split = self.held_out.model_dump(mode="json") if by_rows else None
        told = [VERSION, self.layout(), self.tokenizer.digest, split, self.align]
        content = [[f.sha256, f.name.rpartition(".")[2], f.joined] for f in self.files]
        return hashlib.sha256(json.dumps([told, content]).encode()).hexdigest()


@dataclass
class Making:
    """A token file that is being made."""

    task: "asyncio.Task[dict[str, Any]]"
    share: float = 0.0
    """Of the rows that have been read."""
    is_begun: bool = False
    """False: other data is before it."""


@dataclass(frozen=True)
class Made:
    """A token file at a sequence length, and what its making told."""

    measured: Measured
    told: Mapping[str, Any]


class TokenShop:
    """All token files of a leader."""

    def __init__(self, database: Database, folder: Path, limits: Limits, clock: Clock) -> None:
        self._database = database
        self._folder = folder
        self._limits = limits
        self._clock = clock
        self._making: dict[str, Making] = {}
        self._refused: OrderedDict[str, SwarmError] = OrderedDict()
        self._failed: OrderedDict[str, tuple[float, SwarmError]] = OrderedDict()
        self._measured: OrderedDict[tuple[str, int, str], Measured] = OrderedDict()
        self._turn = asyncio.Semaphore(CHILDREN)
        self.on_moved: Callable[[], None] = lambda: None
        """Called when a token file is made, or cannot be, or has come a percent further."""

    def path(self, digest: str) -> Path:
        """Where a token file lies."""
        return self._folder / f"{digest}.safetensors"

    def find(self, digest: str) -> StoredFile | None:
        """A token file by its digest."""
        path = self.path(digest)
        return StoredFile(path, path.stat().st_size, digest) if path.is_file() else None

    async def get(self, wish: Wish, wait_s: float = 0.0) -> Made | None:
        """The token file of some data at a sequence length; None while it is being made.

        Raises:
            SwarmError: invalid-input for data that cannot be trained on, with numbers.
        """
        key = await asyncio.to_thread(wish.key)
        try:
            self._refuse_known(key)
            told = await self._database.read(lambda tx: buckets.find_token_file(tx, key))
            if told is None or not self.path(told["file"]["digest"]).is_file():
                told = await self._make(key, wish, wait_s)
        except SwarmError as error:
            raise wish.named(error) from None
        return None if told is None else Made(await self._measure(told, wish), told)

    def _refuse_known(self, key: str) -> None:
        if key in self._refused:
            raise self._refused[key]
        failed = self._failed.get(key)
        if failed is not None and self._clock.monotonic() - failed[0] < AGAIN_S:
            raise failed[1]

    async def progress(self, wish: Wish) -> Making | None:
        """How far a token file is that is being made."""
        return self._making.get(await asyncio.to_thread(wish.key))

    def forget(self, digests: list[str]) -> None:
        """Delete token files that nobody reads."""
        for digest in digests:
            self.path(digest).unlink(missing_ok=True)

    async def close(self) -> None:
        """Stop what is being made."""
        tasks = [making.task for making in self._making.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def sweep(self, known: set[str]) -> None:
        """Remove what an earlier life left: half made files, and those made of removed data."""
        for path in self._folder.glob("*"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.suffix != ".safetensors" or path.stem not in known:
                path.unlink(missing_ok=True)

    async def _make(self, key: str, wish: Wish, wait_s: float) -> dict[str, Any] | None:
        making = self._making.get(key)
        if making is None:
            task = asyncio.create_task(self._work(key, wish), name="tokenize")
            making = self._making[key] = Making(task)
            task.add_done_callback(lambda done: self._made(key, done))
        await asyncio.wait({making.task}, timeout=wait_s)
        return making.task.result() if making.task.done() else None

    def _made(self, key: str, task: "asyncio.Task[dict[str, Any]]") -> None:
        self._making.pop(key, None)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, SwarmError) and error.code == "invalid-input":
            self._refused[key] = error
            _shorten(self._refused)
        elif isinstance(error, SwarmError):
            self._failed[key] = (self._clock.monotonic(), error)
            _shorten(self._failed)
        self.on_moved()

    async def _work(self, key: str, wish: Wish) -> dict[str, Any]:
        async with self._turn:
            if key in self._making:
                self._making[key].is_begun = True
            told = await self._child(key, wish)
        now = self._clock.now()
        await self._database.write(lambda tx: buckets.put_token_file(tx, key, told, now))
        return told

    async def _child(self, key: str, wish: Wish) -> dict[str, Any]:
        asked = {
            "task": "tokenize",
            "files": [
                {
                    "path": str(file.path),
                    "name": name,
                    "joined": file.joined,
                    "rows": file.num_rows,
                }
                for file, name in zip(wish.files, wish.neutral_names())
            ],
            "tokenizer": str(wish.tokenizer.folder),
            "layout": wish.layout(),
            "held_out": wish.held_out.model_dump(mode="json"),
            "align": wish.align,
            "target": str(self._folder),
            "work": str(self._folder / f"{key[:16]}.part"),
        }
        told = await run_child(asked, self._limits, lambda one: self._progress(key, one))
        return {**told, "data": [file.sha256 for file in wish.files]}

    def _progress(self, key: str, told: Mapping[str, Any]) -> None:
        making = self._making.get(key)
        if making is None:
            return
        before, making.share = making.share, min(1.0, float(told.get("share", 0.0)))
        if int(100 * before) != int(100 * making.share):
            self.on_moved()

    async def _measure(self, told: Mapping[str, Any], wish: Wish) -> Measured:
        digest, asked = str(told["file"]["digest"]), wish.held_out
        key = (digest, wish.seq_len, asked.model_dump_json())
        if key not in self._measured:
            path = self.path(digest)
            try:
                measured = await asyncio.to_thread(
                    token_file.measure, path, told, wish.seq_len, asked
                )
            except SwarmError as error:
                raise _with_row(error, told, wish) from None
            self._measured[key] = measured
            _shorten(self._measured)
        return self._measured[key]


def _with_row(error: SwarmError, told: Mapping[str, Any], wish: Wish) -> SwarmError:
    """The refusal of masked data with the first row, and a decoded one, where rows are known."""
    place = int(error.facts.get("place", -1))
    if place < 0:
        return error
    first = place_words(place, [file.name for file in wish.files])
    words = f"{error.message}: {error.facts['count']:,} rows, first {first}"
    facts = {"count": error.facts["count"], "untrusted_sample": str(told["lint"]["sample"])}
    return SwarmError(error.code, words, hint=error.hint, facts=facts)


def _shorten(remembered: "OrderedDict[Any, Any]") -> None:
    while len(remembered) > REMEMBERED:
        remembered.popitem(last=False)
