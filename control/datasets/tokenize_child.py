"""`python -m control.datasets.tokenize_child`: tokenizes in a process of its own, with limits.

Chat templates are foreign code; here an endless one ends by itself and takes no memory of the
leader's. Reads one JSON object on stdin, writes one on stdout: {"told": ...} or {"problem": ...}.
"""

import json
import resource
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from control.datasets import token_file
from control.datasets.rows import Row, read_rows
from control.datasets.tokenize import Encoder
from control.datasets.tokenizer_folder import TokenizerFolder
from transport.errors import SwarmError


def main() -> int:
    """Do what stdin asks."""
    asked = json.loads(sys.stdin.read())
    limit(int(asked["memory_bytes"]), int(asked["cpu_s"]))
    try:
        told: dict[str, Any] = {"told": tokenize(asked)}
    except SwarmError as error:
        told = {"problem": error.problem()}
    except MemoryError:
        told = {"problem": _too_much(asked).problem()}
    sys.stdout.write(json.dumps(told))
    return 0


def limit(memory_bytes: int, cpu_s: int) -> None:
    """Take no more address space and processor time than this."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def tokenize(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Write the token file of some data files and tell what it is."""
    source = TokenizerFolder(Path(asked["tokenizer"]))
    encoder = Encoder(source)
    tokens = encoder.encode(_rows(asked["files"]))
    return token_file.write(tokens, asked["layout"], source.pad_id, Path(asked["target"]))


def _rows(files: list[dict[str, str]]) -> Iterator[Row]:
    for file in files:
        yield from read_rows(Path(file["path"]), file["name"])


def _too_much(asked: Mapping[str, Any]) -> SwarmError:
    return SwarmError(
        "invalid-input",
        f"tokenizing took more than {asked['memory_bytes'] // 10**6} MB of memory",
        hint="put the data into smaller buckets, or raise tokenize_memory_bytes at the leader",
    )


if __name__ == "__main__":
    raise SystemExit(main())
