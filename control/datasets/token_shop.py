"""Makes token files of buckets, once each: in a child process, found again by what went into them.

Asked twice for the same data and tokenizer it works once. Does not know jobs.
"""

import asyncio
import hashlib
import json
import os
import signal
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.clock import Clock
from control.datasets import token_file
from control.datasets.token_file import Measured
from control.datasets.tokenizer_folder import TokenizerFolder
from control.store import buckets
from control.store.buckets import BucketFile
from control.store.database import Database
from control.store.files import StoredFile
from transport.errors import SwarmError

VERSION = 1  # of the tokens made from the same text; raise it when they change
CHILDREN = 1  # at once: tokenizers uses all cores itself
REMEMBERED = 256


@dataclass(frozen=True)
class Limits:
    """What the tokenizing child may take."""

    memory_bytes: int
    cpu_s: float


@dataclass(frozen=True)
class Wish:
    """Some data, to be tokenized for some model."""

    files: tuple[BucketFile, ...]
    tokenizer: TokenizerFolder

    @property
    def size_bytes(self) -> int:
        """Of the data."""
        return sum(file.size_bytes for file in self.files)

    def layout(self) -> token_file.Layout:
        """packed for text, rows for everything else.

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
        if "text" in counts and len(counts) > 1:
            told = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
            raise SwarmError(
                "invalid-input",
                f"the bucket mixes plain text with other rows ({told})",
                hint="put plain text into a bucket of its own",
            )
        return "packed" if "text" in counts else "rows"

    def key(self) -> str:
        """SHA-256 over all that decides the tokens."""
        told = [VERSION, self.layout(), self.tokenizer.digest]
        content = [[file.sha256, file.name.rpartition(".")[2]] for file in self.files]
        return hashlib.sha256(json.dumps([told, content]).encode()).hexdigest()


class TokenShop:
    """All token files of a leader."""

    def __init__(
        self, database: Database, folders: "Folders", limits: Limits, clock: Clock
    ) -> None:
        self._database = database
        self._folders = folders
        self._limits = limits
        self._clock = clock
        self._making: dict[str, asyncio.Task[dict[str, Any]]] = {}
        self._refused: OrderedDict[str, SwarmError] = OrderedDict()
        self._measured: OrderedDict[tuple[str, int], Measured] = OrderedDict()
        self._turn = asyncio.Semaphore(CHILDREN)
        self.on_ready: Callable[[], None] = lambda: None
        """Called when a token file is made, or cannot be."""

    def path(self, digest: str) -> Path:
        """Where a token file lies."""
        return self._folders.tokens / f"{digest}.safetensors"

    def find(self, digest: str) -> StoredFile | None:
        """A token file by its digest."""
        path = self.path(digest)
        return StoredFile(path, path.stat().st_size, digest) if path.is_file() else None

    async def get(self, wish: Wish, seq_len: int, wait_s: float = 0.0) -> Measured | None:
        """The token file of some data at a sequence length; None while it is being made.

        Raises:
            SwarmError: invalid-input for data that cannot be trained on, with numbers.
        """
        key = await asyncio.to_thread(wish.key)
        if key in self._refused:
            raise self._refused[key]
        told = await self._database.read(lambda tx: buckets.find_token_file(tx, key))
        if told is None or not self.path(told["digest"]).is_file():
            told = await self._make(key, wish, wait_s)
        return None if told is None else await self._measure(told, seq_len)

    async def close(self) -> None:
        """Stop what is being made."""
        for task in self._making.values():
            task.cancel()
        await asyncio.gather(*self._making.values(), return_exceptions=True)

    async def _make(self, key: str, wish: Wish, wait_s: float) -> dict[str, Any] | None:
        task = self._making.get(key)
        if task is None:
            task = asyncio.create_task(self._work(key, wish), name="tokenize")
            self._making[key] = task
            task.add_done_callback(lambda done: self._made(key, done))
        await asyncio.wait({task}, timeout=wait_s)
        return task.result() if task.done() else None

    def _made(self, key: str, task: "asyncio.Task[dict[str, Any]]") -> None:
        self._making.pop(key, None)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, SwarmError) and error.code == "invalid-input":
            self._refused[key] = error
            while len(self._refused) > REMEMBERED:
                self._refused.popitem(last=False)
        self.on_ready()

    async def _work(self, key: str, wish: Wish) -> dict[str, Any]:
        async with self._turn:
            told = await self._child(wish)
        now = self._clock.now()
        await self._database.write(lambda tx: buckets.put_token_file(tx, key, told, now))
        return told

    async def _child(self, wish: Wish) -> dict[str, Any]:
        asked = {
            "files": [
                {"path": str(self._folders.buckets / file.sha256), "name": file.name}
                for file in wish.files
            ],
            "tokenizer": str(wish.tokenizer.folder),
            "layout": wish.layout(),
            "target": str(self._folders.tokens),
            "memory_bytes": self._limits.memory_bytes,
            "cpu_s": int(self._limits.cpu_s),
        }
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "control.datasets.tokenize_child",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(),
            start_new_session=True,
        )
        try:
            out, err = await child.communicate(json.dumps(asked).encode())
        except asyncio.CancelledError:
            child.kill()
            await child.wait()
            raise
        return _read(out, err, child.returncode, self._limits)

    async def _measure(self, told: Mapping[str, Any], seq_len: int) -> Measured:
        key = (str(told["digest"]), seq_len)
        if key not in self._measured:
            path = self.path(key[0])
            self._measured[key] = await asyncio.to_thread(token_file.measure, path, told, seq_len)
            while len(self._measured) > REMEMBERED:
                self._measured.popitem(last=False)
        return self._measured[key]


@dataclass(frozen=True)
class Folders:
    """Where data and token files lie."""

    buckets: Path
    tokens: Path


def _environment() -> dict[str, str]:
    """As little as a child needs: no token of anyone."""
    here = str(Path(__file__).resolve().parents[2])
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    threads = os.environ.get("OMP_NUM_THREADS")
    return {
        **kept,
        "PYTHONPATH": here,
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",  # each would reserve memory that the limit counts
        **({"RAYON_NUM_THREADS": threads} if threads else {}),
    }


def _read(out: bytes, err: bytes, code: int | None, limits: Limits) -> dict[str, Any]:
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        raise SwarmError(
            "invalid-input",
            f"tokenizing took more than {limits.cpu_s:.0f} s of processor time",
            hint="put the data into smaller buckets; if it is small, its chat template is endless",
        )
    try:
        told = json.loads(out)
    except ValueError:
        words = err.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {code}"]
        raise SwarmError(
            "unavailable",
            f"tokenizing ended without a result: {words[0][:200]}",
            hint="raise tokenize_memory_bytes at the leader if its memory was too small",
        ) from None
    if "problem" in told:
        raise SwarmError.from_problem(told["problem"])
    return dict(told["told"])


def wish_of(files: Sequence[BucketFile], folder: Path) -> Wish:
    """Some files of a bucket with the tokenizer in a folder."""
    return Wish(tuple(files), TokenizerFolder(folder))
