"""Rows of training data: what one may be, and where it stands.

Four kinds: text (a document), messages (a chat), prompt-completion (also written as instruction,
input, output), tokens (a piece of a stream of ids). Knows no file format and no tokenizer.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from transport.errors import SwarmError

Kind = Literal["text", "messages", "prompt-completion", "tokens"]
Layout = Literal["packed", "rows"]
ROLES = ("system", "developer", "user", "assistant", "tool")
COLUMNS = ("messages", "tools", "prompt", "completion", "instruction", "input", "output", "text")
"""Columns that are read; others are left out."""
WAYS = "text, messages, prompt and completion, instruction and output"
NUMBER_BITS = 40
"""A place is a file's number and, in the lower bits, a row's number in it."""


@dataclass(frozen=True)
class Row:
    """One training example, or a piece of a long document."""

    kind: Kind
    text: str = ""
    """Of a text row; the prompt of a prompt-completion row."""
    completion: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    """Descriptions of functions that the chat may call."""
    ids: NDArray[np.int32] | None = None
    """Of a tokens row."""
    begins: bool = True
    """False: this goes on with the document of the row before."""
    ends: bool = True
    """False: the next row goes on with it."""
    place: int = 0
    """Which file and which row; see place_of."""
    group: str = ""
    """The value of the column that keeps rows together."""


def place_of(file: int, number: int) -> int:
    """A file's number (from 0) and a row's (from 1) as one."""
    return file << NUMBER_BITS | number


def place_words(place: int, names: list[str]) -> str:
    """ "rows.jsonl line 3"."""
    file, number = place >> NUMBER_BITS, number_in(place)
    name = names[file] if file < len(names) else "the data"
    return f"{name} {unit_of(name)} {number}"


def number_in(place: int) -> int:
    """A row's number in its file."""
    return place & ((1 << NUMBER_BITS) - 1)


def unit_of(name: str) -> str:
    """What rows of a file are counted in."""
    if name.endswith(".npy"):
        return "document"
    return "line" if name.endswith((".jsonl", ".txt")) else "row"


def layout_of(kind: str) -> Layout:
    """packed: one stream cut into sequences. rows: one row a sequence."""
    return "packed" if kind in ("text", "tokens") else "rows"


def wrong_row(name: str, number: int, what: str, unit: str = "") -> SwarmError:
    """The refusal of a file for one of its rows; `unit`: what it is, if not what rows are."""
    unit = unit or unit_of(name)
    return SwarmError(
        "invalid-input",
        f"{name}: {unit} {number} {what}",
        hint=f"correct this {unit}; nothing of the file was stored",
        facts={"file": name, "line": number},
    )


def row_of(told: Mapping[str, Any]) -> Row:
    """Named values as a row. Unknown names are left out.

    Raises:
        ValueError: what is missing or of the wrong type, as the end of a sentence.
    """
    if told.get("messages") is not None:
        return Row(
            "messages",
            messages=_messages(_opened(told["messages"])),
            tools=_tools(_opened(told.get("tools"))),
        )
    if "prompt" in told or "completion" in told:
        return _pair(told, "prompt", "completion")
    if "instruction" in told or "output" in told:
        pair = _pair(told, "instruction", "output")
        more = told.get("input") or ""
        if not isinstance(more, str):
            raise ValueError("has an input that is not text")
        return Row(pair.kind, f"{pair.text}\n\n{more}" if more else pair.text, pair.completion)
    if "text" in told:
        return Row("text", _text(told, "text"))
    if "messages" in told:
        raise ValueError("has messages that are not a list of {role, content}")
    raise ValueError(f"has none of {WAYS}{_shown_names(told)}")


def _shown_names(told: Mapping[str, Any]) -> str:
    names = [str(name)[:40] for name in list(told)[:6]]
    plain = [name for name in names if name.isprintable() and name.isascii()]
    return f"; it has {', '.join(plain)}" if plain else ""


def _opened(value: Any) -> Any:
    """A list that a table could hold as text only."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _pair(told: Mapping[str, Any], first: str, second: str) -> Row:
    return Row("prompt-completion", _text(told, first), _text(told, second))


def _text(told: Mapping[str, Any], key: str) -> str:
    value = told.get(key)
    if not isinstance(value, str):
        raise ValueError(f"has no {key}" if value is None else f"has a {key} that is not text")
    _check_unicode(value, key)
    return value


def _check_unicode(value: str, key: str) -> None:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"has a {key} with half a surrogate pair in it") from None


def _messages(value: Any) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("has messages that are not a list of {role, content}")
    told = tuple(_message(message) for message in value)
    if not any(message["role"] == "assistant" for message in told):
        raise ValueError("has no message of the assistant, so nothing to learn")
    return told


def _message(message: Any) -> dict[str, Any]:
    """One message: its role, its text, and what a call of a function needs."""
    if not isinstance(message, dict):
        raise ValueError("has a message without content that is text")
    calls = message.get("tool_calls") or None
    content = _joined(message.get("content"))
    if content is None and not calls:
        raise ValueError("has a message without content that is text")
    if message.get("role") not in ROLES:
        raise ValueError(f"has a message whose role is none of {', '.join(ROLES)}")
    told: dict[str, Any] = {"role": message["role"], "content": content or ""}
    _check_unicode(told["content"], "message")
    if calls is not None:
        told["tool_calls"] = _calls(calls)
    for name in ("name", "tool_call_id", "reasoning_content"):
        if isinstance(message.get(name), str):
            told[name] = message[name]
    return told


def _joined(content: Any) -> str | None:
    """Text, or parts that are all text, as one."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else None
    parts = [part.get("text") for part in content if isinstance(part, dict)]
    if len(parts) != len(content) or not all(isinstance(part, str) for part in parts):
        raise ValueError("has a message with a part that is not text")
    return "".join(str(part) for part in parts)


def _calls(calls: Any) -> list[Any]:
    if not isinstance(calls, list) or not all(_is_call(call) for call in calls):
        raise ValueError("has tool_calls that are not a list of {function: {name, arguments}}")
    return list(calls)


def _is_call(call: Any) -> bool:
    told = call.get("function", call) if isinstance(call, dict) else None
    return isinstance(told, dict) and isinstance(told.get("name"), str)


def _tools(value: Any) -> tuple[Mapping[str, Any], ...]:
    if value is None or value == []:
        return ()
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise ValueError("has tools that are not a list of descriptions")
    return tuple(value)
