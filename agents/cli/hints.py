"""What to do next, as people at a shell do it: operations by their commands.

A hint is the same on every face and names operations, as agents call them.
"""

import re

from transport.api.catalog import OPERATIONS

_NAMES = re.compile(rf"\b(?:{'|'.join(OPERATIONS)})\b")


def in_commands(hint: str) -> str:
    """The hint with `swarm jobs show` where it says jobs_get."""
    return _NAMES.sub(lambda found: f"`swarm {' '.join(OPERATIONS[found[0]].words)}`", hint)
