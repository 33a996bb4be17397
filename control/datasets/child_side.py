"""What the leader's child processes share: how they answer, and that they end with the leader."""

import json
import os
import shutil
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def say(told: Mapping[str, Any]) -> None:
    """One JSON line to the leader."""
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def end_with_the_leader(work: Path | None) -> None:
    """A leader that is killed cannot stop its children: its end of the pipe is closed for it."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)
        os._exit(4)

    threading.Thread(target=watch, daemon=True).start()
