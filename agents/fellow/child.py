"""A process of the fellow's that does one thing: it reads a line, works, prints a line, and ends.

Does not know what the line asks for. A child that is no longer wanted is killed with its task.
"""

import asyncio
import contextlib
import json
from dataclasses import dataclass

from agents.fellow.launcher import child_environment
from agents.log_lines import clean, redact

_MAX_SAID = 64_000


@dataclass(frozen=True)
class Said:
    """How a child ended, and its last words."""

    code: int | None
    """Its exit code; None when it could not be started."""
    told: dict[str, object]
    """The last JSON object that it printed."""
    complained: str

    def failure(self, what: str) -> tuple[str, str, str]:
        """(code, message, hint) of an error, fit to be told."""
        lines = self.complained.strip().splitlines()
        words = f"{what} ended with exit code {self.code}" + (f": {lines[-1]}" if lines else "")
        return (
            clean(str(self.told.get("code", "internal")), 64),
            clean(redact(str(self.told.get("message", words))), 2000),
            clean(redact(str(self.told.get("hint", ""))), 500),
        )


async def run_child(command: tuple[str, ...], line: str) -> Said:
    """Start it, give it its line, and wait for its end."""
    try:
        child = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=child_environment(),
        )
    except OSError as error:
        return Said(None, {}, str(error))
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        with contextlib.suppress(ConnectionError):
            child.stdin.write(line.encode() + b"\n")
            await child.stdin.drain()
        # stdin stays open: its end tells the child that the daemon is gone.
        said, complained = await asyncio.gather(_tail(child.stdout), _tail(child.stderr))
        await child.wait()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
        child.stdin.close()
    return Said(child.returncode, _last_object(said), complained)


async def _tail(stream: asyncio.StreamReader) -> str:
    """The end of what a child says, however much it says."""
    kept = b""
    while piece := await stream.read(65536):
        kept = (kept + piece)[-_MAX_SAID:]
    return kept.decode(errors="replace")


def _last_object(said: str) -> dict[str, object]:
    for line in reversed(said.splitlines()):
        with contextlib.suppress(ValueError):
            told = json.loads(line)
            if isinstance(told, dict):
                return told
    return {}
