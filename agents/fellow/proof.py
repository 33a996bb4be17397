"""Which number formats a machine's cards compute rightly, as a self-test found.

Until one has run, a card tells only what its driver's generation is known to compute, and no
format that stores weights in 4 or 8 bits. Reads what the probe printed; does not test.
"""

import logging
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from agents.log_lines import clean, redact
from transport.cards import NumberFormat

log = logging.getLogger("swarm.fellow")

STORED = ("int8", "nf4")
"""Formats that only store weights; they are never taken for granted."""
_FORMATS: TypeAdapter[list[NumberFormat]] = TypeAdapter(list[NumberFormat])


class Proofs:
    """What was found, by device: "cpu", or a card's UUID."""

    def __init__(self) -> None:
        self._formats: dict[str, list[NumberFormat]] = {}

    def take(self, told: Any) -> None:
        """Read a probe's {device: {"formats": [...], "failed": ""}}; log what failed, by name."""
        if not isinstance(told, dict):
            return
        for device, proof in told.items():
            try:
                found = _FORMATS.validate_python(proof["formats"])
                failed = clean(redact(str(proof["failed"])), 500)
            except (ValidationError, KeyError, TypeError):
                continue
            self._formats[str(device)] = found
            if failed:
                log.warning(
                    "a number format failed its self-test",
                    extra={"device": clean(str(device), 64), "why": failed},
                )

    def formats(self, device: str, assumed: Sequence[NumberFormat]) -> list[NumberFormat]:
        """Formats of a device; before its self-test those of its generation that compute."""
        found = self._formats.get(device)
        return [one for one in assumed if one not in STORED] if found is None else list(found)
