"""`python -m control.datasets.tokenize_child`: reads data files in a process with limits.

Chat templates and table formats are foreign; here an endless template ends by itself, a swollen
file takes no memory of the leader's, and a reader that crashes takes nothing with it. Reads one
JSON object on stdin; writes JSON lines: {"share": read} on the way, then {"told": ...} or
{"problem": ...}. The end of stdin means that the leader is gone: it removes its work and exits.
"""

import json
import resource
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from control.datasets import held_out, token_file
from control.datasets.child import too_much
from control.datasets.child_side import end_with_the_leader, say
from control.datasets.lint import Lint
from control.datasets.preview import preview
from control.datasets.readers import Source, check_file, read_rows
from control.datasets.rows import Row
from control.datasets.tokenize import Encoder, Tokens
from control.datasets.tokenizer_folder import TokenizerFolder
from transport.api.job_config import HeldOutConfig
from transport.errors import SwarmError

ROW_CPU_S = 10.0  # one chat's rendering
COUNTED = (".jsonl", ".csv", ".parquet", ".txt")
"""Files whose rows are known from when they were sent."""


def main() -> int:
    """Do what stdin asks."""
    asked = json.loads(sys.stdin.buffer.readline())
    threading.stack_size(256 * 1024)  # counted by the limit on memory
    work = asked.get("work")
    end_with_the_leader(None if work is None else Path(work))
    limit(int(asked["memory_bytes"]), int(asked["cpu_s"]))
    try:
        told: dict[str, Any] = {"told": TASKS[asked["task"]](asked)}
    except SwarmError as error:
        told = {"problem": error.problem()}
    except MemoryError:
        told = {"problem": too_much(asked).problem()}
    say(told)
    return 0


def limit(memory_bytes: int, cpu_s: int) -> None:
    """Take no more address space and processor time than this."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


@contextmanager
def row_limit() -> Iterator[None]:
    """Refuse a chat whose rendering does not come to an end."""

    def stop(_: int, __: FrameType | None) -> None:
        raise SwarmError(
            "invalid-input",
            f"this model's chat template takes more than {ROW_CPU_S:.0f} s of processor time",
            hint="its chat template is endless: take another model, or prompt and completion",
        )

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, ROW_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _check(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Every row of one file."""
    told = check_file(Path(asked["path"]), asked["name"])
    return {"num_rows": told.num_rows, "kinds": told.kinds}


def _tokenize(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Write the token file of some data files and tell what it is."""
    folder = TokenizerFolder(Path(asked["tokenizer"]))
    held = HeldOutConfig.model_validate(asked["held_out"])
    sources = sources_of(asked["files"], held.column)
    encoder = Encoder(folder, [source.name for source in sources], row_limit)
    lint = Lint(folder)
    shape = token_file.Shape(
        asked["layout"], folder.pad_id, _decide(held, asked, sources), asked["align"]
    )
    tokens = _watched(encoder.encode(_counted(_rows(sources), asked["files"])), lint)
    try:
        made = token_file.write(tokens, shape, Path(asked["target"]), Path(asked["work"]))
    except SwarmError as error:
        raise lint.useless(error, [source.name for source in sources]) from error
    return {**made, "lint": lint.told()}


def sources_of(files: list[dict[str, str]], group: str | None = None) -> list[Source]:
    """Files as the leader names them."""
    return [
        Source(Path(file["path"]), file["name"], number, group, file.get("joined", ""))
        for number, file in enumerate(files)
    ]


def _decide(
    held: HeldOutConfig, asked: Mapping[str, Any], sources: list[Source]
) -> held_out.Decide | None:
    if not held_out.is_decided_by_rows(held):
        return None
    if held.by == "group":
        return held_out.decide(held, held_out.counted(row.group for row in _rows(sources)))
    if all(file["name"].endswith(COUNTED) and not file["joined"] for file in asked["files"]):
        total = sum(int(file["rows"]) for file in asked["files"])
    else:  # documents of ready ids, and of joined rows, are known only when they are read
        encoder = Encoder(TokenizerFolder(Path(asked["tokenizer"])))
        total = sum(len(told.places) for told in encoder.encode(_rows(sources)))
    return held_out.decide(held, held_out.Rows(total))


def _rows(sources: list[Source]) -> Iterator[Row]:
    for source in sources:
        yield from read_rows(source)


def _counted(rows: Iterable[Row], files: list[dict[str, Any]]) -> Iterator[Row]:
    """Rows, and word of how much of all has been read: of a text that is its characters."""
    total = sum(_weight(file) for file in files)
    done = told = 0
    for row in rows:
        yield row
        is_text = not (row.begins and row.ends)
        done += (len(row.text) or len(row.ids if row.ids is not None else ())) if is_text else 1
        percent = min(99, 100 * done // max(1, total))
        if percent > told:
            told = percent
            say({"share": percent / 100})


def _weight(file: Mapping[str, Any]) -> int:
    """What _counted counts of a file: rows, or the pieces' size where a file is one document."""
    size = Path(file["path"]).stat().st_size
    if file["name"].endswith(".npy"):
        return size // 4
    return size if file["name"].endswith(".txt") else int(file["rows"])


def _watched(tokens: Iterable[Tokens], lint: Lint) -> Iterator[Tokens]:
    for told in tokens:
        lint.look(told)
        yield told


def _preview(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The first rows as they are learned."""
    folder = TokenizerFolder(Path(asked["tokenizer"])) if asked["tokenizer"] else None
    return preview(_rows(sources_of(asked["files"])), asked, folder, row_limit)


TASKS = {"check": _check, "tokenize": _tokenize, "preview": _preview}

if __name__ == "__main__":
    raise SystemExit(main())
