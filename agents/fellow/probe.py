"""Has a card's speed measured by a child process, so that the daemon itself never loads torch.

Knows how the child is asked and what it prints; does not measure.
"""

import asyncio
import json
import logging
import sys
import time
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from agents.fellow.launcher import child_environment
from agents.log_lines import clean, redact
from transport.cards import CardReport, Speed
from transport.reports import Measured

PROBE = (sys.executable, "-m", "stage_runtime.probe")
# Importing torch on a cold disk takes most of it; a figure takes one to two seconds a format, or a
# few passes of the work on a card that is held far down.
_LIMIT_S = 120.0

_SPEEDS: TypeAdapter[list[Speed]] = TypeAdapter(list[Speed])

log = logging.getLogger("swarm.fellow")


async def measure(card: CardReport, token: str, command: Sequence[str] = PROBE) -> Measured:
    """Measure one card in each of its number formats.

    Returns:
        The figures, or the reason why there are none in `error`.
    """
    words = ["--kind", card.kind, "--uuid", card.uuid, "--threads", str(card.threads or 1)]
    words += ["--formats", ",".join(card.number_formats)]
    code, printed, complained = await _run([*command, *words])
    speeds, error = _read(printed)
    if code != 0:
        lines = complained.strip().splitlines() or [f"the probe ended with exit code {code}"]
        error, speeds = clean(redact(lines[-1]), 500), []
    if error:
        log.warning("a card was not measured", extra={"card": card.index, "why": error})
    return Measured(
        token=token, at=time.time(), card_index=card.index, speeds=speeds[:16], error=error
    )


async def prove(command: Sequence[str] = PROBE) -> Any:
    """What the self-tests of this machine's number formats found; None when they did not end.

    Costs an import of torch: for a daemon that keeps no warm process.
    """
    code, printed, complained = await _run([*command, "--prove"])
    for line in reversed(printed.splitlines()):
        try:
            return json.loads(line)["proven"]
        except (ValueError, KeyError, TypeError):
            continue
    last = (complained.strip().splitlines() or [f"exit code {code}"])[-1]
    log.warning("number formats were not tested", extra={"why": clean(redact(last), 500)})
    return None


async def _run(command: Sequence[str]) -> tuple[int | None, str, str]:
    try:
        child = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=child_environment(),
        )
    except OSError as error:
        return None, "", str(error)
    try:
        async with asyncio.timeout(_LIMIT_S):
            printed, complained = await child.communicate()
    except TimeoutError:
        return None, "", f"the probe did not end within {_LIMIT_S:.0f} s"
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    return child.returncode, printed.decode(errors="replace"), complained.decode(errors="replace")


def _read(printed: str) -> tuple[list[Speed], str]:
    """The last line that is a JSON object: {"speeds": [...], "error": ""}."""
    for line in reversed(printed.splitlines()):
        try:
            told = json.loads(line)
            speeds = _SPEEDS.validate_python(told["speeds"])
        except (ValueError, KeyError, TypeError, ValidationError):
            continue
        return speeds, clean(redact(str(told.get("error", ""))), 500)
    return [], "the probe printed no figures"
