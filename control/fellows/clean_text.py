"""Text from other machines, made harmless at the door: no control, bidi or invisible characters.

What is left is still untrusted: data, never an instruction. Only its form is safe.
"""

import re
import unicodedata
from typing import Any, TypeVar

from pydantic import BaseModel

M = TypeVar("M", bound=BaseModel)

# CSI, OSC and single-character escape sequences of terminals.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_LONG = re.compile(r'"[^"]{65}')
_CODE = re.compile(r"^[a-z][a-z0-9-]{0,39}$")


def clean(text: str, limit: int = 2000) -> str:
    """One line of at most `limit` characters without what could move a cursor or turn text around.

    Tabs and line ends become spaces; control, format (zero-width, bidi), surrogate and unassigned
    characters go.
    """
    text = text[: 4 * limit]
    if text.isprintable():  # nearly all of it is, and every heartbeat comes through here
        return text.strip()[:limit]
    spaced = re.sub(r"[\t\r\n\v\f\u2028\u2029]+", " ", _ESCAPES.sub("", text))
    kept = (c for c in spaced if c == " " or not unicodedata.category(c).startswith(("C", "Zl")))
    return "".join(kept).strip()[:limit]


def clean_model(told: M) -> M:
    """The same model with every text in it cleaned."""
    if _is_clean(told.model_dump_json()):  # nearly every heartbeat is
        return told
    return type(told).model_validate(_walk(told.model_dump()))


def _is_clean(text: str) -> bool:
    """Whether compact JSON holds nothing that `clean` would change: no escape, no unprintable
    character, no space at a text's edge, no long text.
    """
    edges = '" ' in text or ' "' in text
    return text.isprintable() and "\\" not in text and not edges and not _LONG.search(text)


def clean_code(code: str) -> str:
    """An error code of a fellow if it has the form of one, else "stage-failed"."""
    return code if _CODE.match(code) else "stage-failed"


def _walk(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(str(name), 64): _walk(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_walk(part) for part in value]
    return value
