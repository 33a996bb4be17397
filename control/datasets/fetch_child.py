"""`python -m control.datasets.fetch_child`: downloads files of a hub data set and reads their rows.

Reads one JSON object on stdin; writes JSON lines: {"done": bytes} on the way, then {"told": ...} or
{"problem": ...}. The end of stdin means that the leader is gone: what was fetched is removed.
"""

import contextlib
import json
import os
import resource
import shutil
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from control.datasets.child import too_much
from control.datasets.child_side import end_with_the_leader, say
from control.datasets.hub_refusals import Unreachable, hub_refusals
from control.datasets.readers import check_file
from control.store.files import disk_refusal, sha256_of
from transport.errors import SwarmError
from transport.units import human_bytes

LOOK_EVERY_S = 0.5


def main() -> int:
    """Do what stdin asks."""
    asked = json.loads(sys.stdin.buffer.readline())
    into = Path(asked["into"])
    limit = int(asked["limit_bytes"])
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit + 1, limit + 1))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    end_with_the_leader(into)
    threading.Thread(target=_watch, args=(into, limit), daemon=True).start()
    try:
        files = _fetch(asked, into)
        memory = int(asked["memory_bytes"])
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        told: dict[str, Any] = {"told": {"files": [_checked(into, file) for file in files]}}
    except SwarmError as error:
        told = {"problem": error.problem()}
    except MemoryError:
        told = {"problem": too_much(asked).problem()}
    say(told)
    return 0


def _watch(into: Path, limit: int) -> None:
    """Tell how many bytes are here; end when there are more than were promised."""
    pause = threading.Event()
    while not pause.wait(LOOK_EVERY_S):
        size = _size(into)
        if size > limit:
            say({"problem": _too_large(limit).problem()})
            os._exit(0)
        say({"done": size})


def _size(into: Path) -> int:
    total = 0
    for path in into.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def _too_large(limit: int) -> SwarmError:
    return SwarmError(
        "too-large",
        f"the data set is larger than {human_bytes(limit)}, the most that this leader fetches",
        hint="name a smaller subset or split, or raise max_dataset_bytes at the leader",
        facts={"limit_bytes": limit},
    )


def _fetch(asked: Mapping[str, Any], into: Path) -> list[dict[str, Any]]:
    import huggingface_hub as hub  # noqa: PLC0415

    repository, shown = asked["repository"], asked["shown"]
    told = []
    for file in asked["files"]:
        name = file["path"]
        try:
            with hub_refusals("data set", shown):
                hub.hf_hub_download(
                    repository, name, repo_type="dataset", revision=asked["revision"],
                    local_dir=into,
                )  # fmt: skip
        except hub.errors.RemoteEntryNotFoundError:
            what = "a file that the hub lists is missing"
            raise SwarmError(
                "unavailable", f"{shown}: {what}", hint="try again in a few minutes"
            ) from None
        except Unreachable as error:
            raise _unreachable(error, into, asked) from None
        path = into / name
        size = path.stat().st_size
        told.append({**file, "sha256": sha256_of(path), "size_bytes": size})
    shutil.rmtree(into / ".cache", ignore_errors=True)
    return told


def _checked(into: Path, file: Mapping[str, Any]) -> dict[str, Any]:
    """A file with how many rows of which kinds it holds."""
    rows = check_file(into / file["path"], file["name"])
    return {**file, "num_rows": rows.num_rows, "kinds": rows.kinds}


def _unreachable(error: Unreachable, into: Path, asked: Mapping[str, Any]) -> SwarmError:
    cause, shown = error.__cause__, str(asked["shown"])
    if _size(into) >= int(asked["limit_bytes"]):
        return _too_large(int(asked["limit_bytes"]))
    if isinstance(cause, OSError) and cause.errno in (28, 122):
        return disk_refusal(cause, shown)
    return SwarmError(
        "unavailable",
        f"the model hub {error.why} while {shown} was being fetched",
        hint="try again later",
    )


if __name__ == "__main__":
    raise SystemExit(main())
