"""Cells of a table that takes long: each is measured once and kept in a file of its own.

A run that was stopped goes on where it was. A folder holds the cells of one set of conditions.
"""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from transport.errors import SwarmError

Figures = dict[str, float]


class Cells:
    """The measured cells below a folder."""

    def __init__(
        self, folder: Path, conditions: Mapping[str, object], say: Callable[[str], None]
    ) -> None:
        """Raises SwarmError (conflict) where the folder has cells of other conditions."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._say = folder, say
        kept = folder / "conditions.json"
        text = json.dumps(conditions, indent=1, sort_keys=True)
        if kept.exists() and kept.read_text() != text:
            raise SwarmError(
                "conflict",
                f"{folder} holds cells that were measured under other conditions",
                hint="name an empty folder with --out",
            )
        kept.write_text(text)

    def of(self, name: str, measure: Callable[[], Figures]) -> Figures:
        """The cell of this name, measured if it is not there."""
        file = self._folder / f"{name.replace(' ', '_').replace('/', '-')}.json"
        if not file.exists():
            began = time.monotonic()
            draft = file.with_suffix(".draft")
            draft.write_text(json.dumps(measure()))
            draft.replace(file)
            self._say(f"{name}: {time.monotonic() - began:.0f} s")
        return dict(json.loads(file.read_text()))

    def found(self, name: str) -> Figures | None:
        """The cell of this name if it is there."""
        file = self._folder / f"{name.replace(' ', '_').replace('/', '-')}.json"
        return dict(json.loads(file.read_text())) if file.exists() else None
