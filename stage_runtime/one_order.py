"""The frame of a process that carries out one order: a line in on stdin, a line out on stdout.

It ends when stdin ends, for then the daemon that started it is gone.
"""

import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from huggingface_hub.utils.tqdm import disable_progress_bars

from transport.errors import SwarmError
from transport.schema import Model, parse

EXIT_DONE, EXIT_FAILED, EXIT_ORPHANED = 0, 3, 5

M = TypeVar("M", bound=Model)
log = logging.getLogger("stage_runtime")


def carry_out(kind: type[M], work: Callable[[M], dict[str, Any]]) -> NoReturn:
    """Read the order, do the work, print what it returns or why it failed, and end the process."""
    words = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # stray prints of libraries are no words of ours
    disable_progress_bars()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    code = EXIT_FAILED
    try:
        order = parse(kind, sys.stdin.readline())
        threading.Thread(target=_end_with_the_daemon, daemon=True).start()
        told = work(order)
        code = EXIT_DONE
    except SwarmError as error:
        told = {"code": error.code, "message": error.message, "hint": error.hint}
    except Exception as error:
        log.error("unexpected", exc_info=error)
        told = {"code": "internal", "message": f"{type(error).__name__}: {error}", "hint": ""}
    words.write(json.dumps(told) + "\n")
    words.flush()
    os._exit(code)


def _end_with_the_daemon() -> None:
    while sys.stdin.readline():
        pass
    os._exit(EXIT_ORPHANED)
