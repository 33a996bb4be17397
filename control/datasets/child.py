"""The leader's side of tokenize_child and fetch_child: starts one, hears its progress, ends it.

A child has limits, a session of its own and as little of the environment as it needs. It is killed
when nobody waits for it any more, and ends by itself when the leader is killed.
"""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transport.errors import SwarmError

MAX_ANSWER = 32_000_000
KEPT_ERRORS = 4000  # characters of stderr
CRASHES = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE)
Progress = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Limits:
    """What a child may take."""

    memory_bytes: int
    cpu_s: float


async def run_child(
    asked: Mapping[str, Any], limits: Limits, progress: Progress = lambda _: None
) -> dict[str, Any]:
    """Have a task done; what the child told.

    Raises:
        SwarmError: what the child refuses; invalid-input past a limit; unavailable when it died.
    """
    told = {**asked, "memory_bytes": limits.memory_bytes, "cpu_s": int(limits.cpu_s)}
    module = "control.datasets." + ("fetch_child" if asked["task"] == "fetch" else "tokenize_child")
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=_environment(network=asked["task"] == "fetch"),
        limit=MAX_ANSWER,
        start_new_session=True,
    )
    try:
        return await _heard(child, told, limits, progress)
    finally:
        if child.returncode is None:
            child.kill()
            await asyncio.shield(child.wait())
        if "work" in asked:
            await asyncio.to_thread(shutil.rmtree, Path(asked["work"]), ignore_errors=True)


async def _heard(
    child: asyncio.subprocess.Process, asked: Mapping[str, Any], limits: Limits, progress: Progress
) -> dict[str, Any]:
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    errors = asyncio.create_task(_last_of(child.stderr))
    try:
        child.stdin.write(json.dumps(asked).encode() + b"\n")
        last: dict[str, Any] = {}
        while line := await child.stdout.readline():
            last = _json(line)
            if "told" not in last and "problem" not in last:
                progress(last)
        code = await child.wait()
        return _answer(last, await errors, code, limits)
    finally:
        errors.cancel()


async def _last_of(stream: asyncio.StreamReader) -> str:
    kept = b""
    while piece := await stream.read(65_536):
        kept = (kept + piece)[-KEPT_ERRORS:]
    return kept.decode(errors="replace")


def _json(line: bytes) -> dict[str, Any]:
    try:
        told = json.loads(line)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _answer(
    last: Mapping[str, Any], errors: str, code: int | None, limits: Limits
) -> dict[str, Any]:
    if "problem" in last:
        raise SwarmError.from_problem(last["problem"])
    if "told" in last:
        return dict(last["told"])
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        raise SwarmError(
            "invalid-input",
            f"tokenizing took more than {limits.cpu_s:.0f} s of processor time",
            hint="put the data into smaller buckets; if it is small, its chat template is endless",
        )
    words = errors.strip().splitlines()[-1:] or [f"exit code {code}"]
    if any(sign in words[0] for sign in ("memory", "Memory", "alloc")):
        raise too_much({"memory_bytes": limits.memory_bytes})
    if code in CRASHES:
        how = signal.Signals(-code).name
        raise SwarmError(
            "invalid-input",
            f"reading the data crashed ({how}): it is not what its name says",
            hint="write the file again, with another program if need be",
        )
    raise SwarmError(
        "unavailable",
        f"reading the data ended without a result: {words[0][:200]}",
        hint="raise tokenize_memory_bytes at the leader if its memory was too small",
    )


def too_much(asked: Mapping[str, Any]) -> SwarmError:
    """The refusal of data that needs more memory than a child may take."""
    return SwarmError(
        "invalid-input",
        f"reading the data took more than {asked['memory_bytes'] // 10**6} MB of memory",
        hint="put the data into smaller files, or raise tokenize_memory_bytes at the leader",
    )


def _environment(*, network: bool) -> dict[str, str]:
    """As little as a child needs: no token of anyone, unless it asks the hub."""
    here = str(Path(__file__).resolve().parents[2])
    names = ["PATH", "LANG", "TMPDIR"]
    if network:
        ends = ("_PROXY", "_proxy")
        told = [
            n for n in os.environ if n.startswith(("HF_", "SSL_", "HUGGING")) or n.endswith(ends)
        ]
        names += ["HOME", "XDG_CACHE_HOME", *told]
    kept = {name: os.environ[name] for name in names if name in os.environ}
    threads = os.environ.get("OMP_NUM_THREADS")
    return {
        **kept,
        "PYTHONPATH": here,
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",  # each would reserve memory that the limit counts
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        **({"RAYON_NUM_THREADS": threads} if threads else {}),
    }
