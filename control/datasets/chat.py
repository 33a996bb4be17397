"""Chats as text: a model's own template, rendered in a sandbox, and which characters to learn from.

A template comes with a model and is foreign code: it runs only in jinja2's immutable sandbox, in
the child process of tokenize_child, which has limits on time and memory.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from transport.errors import SwarmError

Messages = Sequence[Mapping[str, str]]
# Templates that ask for today get this day, so that the same data gives the same tokens.
TODAY = "26 Jul 2024"
# What foreign code raises; one that calls itself for ever is a RuntimeError. MemoryError goes on.
_FAILURES = (
    jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError,
    RuntimeError,
)  # fmt: skip


@dataclass(frozen=True)
class Chat:
    """A chat as text, and the spans (start, end) that the assistant wrote."""

    text: str
    spans: tuple[tuple[int, int], ...]


class _Generation(Extension):
    """{% generation %} marks the assistant's text in some templates; here it changes nothing."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled template with the special tokens of its tokenizer."""

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda _: TODAY
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise _refusal(error) from None
        self._special = dict(special)

    def render(self, messages: Messages, *, ask: bool = False) -> str:
        """Messages as the model reads them; `ask` adds the opening of an assistant's turn."""
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=ask,
                **self._special,
            )
        except _FAILURES as error:
            raise _refusal(error) from None

    def chat(self, messages: Messages) -> Chat:
        """A whole chat and the assistant's spans, each from its turn's opening to its end.

        A span is found by rendering the chat up to the turn and through it. Where a template
        writes earlier turns differently once others follow, the content itself is looked up.
        """
        whole = self.render(messages)
        spans: list[tuple[int, int]] = []
        place = 0
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            span = self._span(whole, messages[:number], message, place)
            spans.append(span)
            place = span[1]
        return Chat(whole, tuple(spans))

    def _span(
        self, whole: str, before: Messages, message: Mapping[str, str], place: int
    ) -> tuple[int, int]:
        opening = self.render(before, ask=True) if before else ""
        through = self.render([*before, message])
        is_plain = whole.startswith(through) and through.startswith(opening)
        if is_plain and opening != through:
            return len(opening), len(through.rstrip())
        content = message["content"].strip()
        start = whole.find(content, place)
        if not content or start < 0:
            raise SwarmError(
                "invalid-input",
                "this model's chat template does not let the assistant's turns be told apart",
                hint="use rows with prompt and completion instead of messages",
            )
        return start, start + len(content)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)


def _raise(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _refusal(error: Exception) -> SwarmError:
    said = " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
    return SwarmError(
        "invalid-input",
        f"this model's chat template refuses the messages: {said}",
        hint="check the order of the roles, or use rows with prompt and completion",
    )
