"""How a fellow's daemon names the life that it lives: one random word for each start of it."""

import re
import secrets

LIFE_HEADER = "X-Swarm-Life"
TWO_DAEMONS = "two-daemons"
"""facts["reason"] of the refusal of a copy."""
_LIFE = re.compile(r"[0-9a-f]{16}")


def new_life() -> str:
    """A life that no other daemon has."""
    return secrets.token_hex(8)


def is_life(word: str) -> bool:
    """Whether a header holds a life."""
    return _LIFE.fullmatch(word) is not None
