"""Rows of training data: what a line may be, and the refusal that names a wrong line by its number.

Three kinds: text (a document), messages (a chat), prompt-completion (also written as instruction,
input, output). Reads JSONL and plain text; knows no tokenizer.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from transport.errors import SwarmError

Kind = Literal["text", "messages", "prompt-completion"]
ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_LINE = 8_000_000  # bytes; longer lines stall whoever reads them


@dataclass(frozen=True)
class Row:
    """One training example."""

    kind: Kind
    text: str = ""
    """Of a text row; the prompt of a prompt-completion row."""
    completion: str = ""
    messages: tuple[Mapping[str, str], ...] = ()


@dataclass
class FileRows:
    """What a file holds."""

    num_rows: int = 0
    kinds: dict[str, int] = field(default_factory=dict)


def check_file(path: Path, name: str) -> FileRows:
    """Read every row of a file.

    Raises:
        SwarmError: invalid-input naming the first wrong line, or that the file is empty or binary.
    """
    told = FileRows()
    for row in read_rows(path, name):
        told.num_rows += 1
        told.kinds[row.kind] = told.kinds.get(row.kind, 0) + 1
    if told.num_rows == 0:
        raise SwarmError(
            "invalid-input", f"{name} holds no rows", hint="send a file with at least one row"
        )
    return told


def read_rows(path: Path, name: str) -> Iterator[Row]:
    """The rows of a .jsonl or .txt file, in order. A text file is one document.

    Raises:
        SwarmError: invalid-input, as check_file.
    """
    if name.endswith(".txt"):
        yield from _read_text(path, name)
    elif name.endswith(".jsonl"):
        for number, line in _lines(path, name):
            if line.strip():
                yield _row(line, name, number)
    else:
        raise SwarmError(
            "invalid-input",
            f"{name} ends neither in .jsonl nor in .txt",
            hint="name the file by what it holds: one JSON object a line, or plain text",
        )


def _read_text(path: Path, name: str) -> Iterator[Row]:
    text = "".join(line for _, line in _lines(path, name))
    if text.strip():
        yield Row("text", text)


def _lines(path: Path, name: str) -> Iterator[tuple[int, str]]:
    with path.open("rb") as source:
        number = 0
        while raw := source.readline(MAX_LINE + 1):
            number += 1
            if len(raw) > MAX_LINE:
                raise _wrong(name, number, f"is longer than {MAX_LINE // 1_000_000} MB")
            if b"\0" in raw:
                raise _wrong(name, number, "is not text: it holds zero bytes")
            try:
                line = raw.decode("utf-8")
            except UnicodeDecodeError:
                raise _wrong(name, number, "is not UTF-8 text") from None
            yield number, line.removeprefix("\ufeff") if number == 1 else line


def _row(line: str, name: str, number: int) -> Row:
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        raise _wrong(name, number, "is not a JSON object") from None
    if not isinstance(told, dict):
        raise _wrong(name, number, "is not a JSON object")
    try:
        return row_of(told)
    except ValueError as error:
        raise _wrong(name, number, str(error)) from None


def row_of(told: Mapping[str, Any]) -> Row:
    """A JSON object as a row. Unknown keys are left out.

    Raises:
        ValueError: what is missing or of the wrong type, as the end of a sentence.
    """
    if "messages" in told:
        return Row("messages", messages=_messages(told["messages"]))
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
    raise ValueError("has none of text, messages, prompt and completion, instruction and output")


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


def _messages(value: Any) -> tuple[Mapping[str, str], ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("has messages that are not a list of {role, content}")
    told = []
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise ValueError("has a message without content that is text")
        if message.get("role") not in ROLES:
            raise ValueError(f"has a message whose role is none of {', '.join(ROLES)}")
        _check_unicode(message["content"], "message")
        told.append({"role": message["role"], "content": message["content"]})
    if not any(message["role"] == "assistant" for message in told):
        raise ValueError("has no message of the assistant, so nothing to learn")
    return tuple(told)


def _wrong(name: str, number: int, what: str) -> SwarmError:
    return SwarmError(
        "invalid-input",
        f"{name}: line {number} {what}",
        hint="correct this line; nothing of the file was stored",
        facts={"file": name, "line": number},
    )
