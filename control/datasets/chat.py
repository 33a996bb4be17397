"""Chats as text: a model's own template, rendered in a sandbox, and which characters to learn from.

A template comes with a model and is foreign code: it runs only in jinja2's immutable sandbox, in
the child process of tokenize_child, which has limits on time and memory.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace

from transport.errors import SwarmError

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]
Span = tuple[int, int]
# Templates that ask for today get this day, so that the same data gives the same tokens.
TODAY = "26 Jul 2024"
# What foreign code raises; one that calls itself for ever is a RuntimeError. MemoryError goes on.
_FAILURES = (
    jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError,
    RuntimeError,
)  # fmt: skip
_PRIVATE = "\U000f5357"
"""A character of no script, around what {% generation %} marks; made longer where data has it."""


@dataclass(frozen=True)
class Chat:
    """A chat as text, and the spans (start, end) that the assistant wrote."""

    text: str
    spans: tuple[Span, ...]


class _Generation(Extension):
    """{% generation %} marks the assistant's text in some templates."""

    tags = {"generation"}

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self.is_used = False
        self.open = self.close = ""

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """A block whose text goes through _marked."""
        self.is_used = True
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_marked")
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _marked(self, caller: Callable[[], str]) -> str:
        return f"{self.open}{caller()}{self.close}"


class ChatTemplate:
    """A compiled template with the special tokens of its tokenizer."""

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals = {
            "range": safe_range,
            "dict": _dict,
            "namespace": _Names,
            "raise_exception": _raise,
            "strftime_now": lambda _: TODAY,
        }
        try:
            self._template = environment.from_string(source)
            names = meta.find_undeclared_variables(environment.parse(source))
        except (jinja2.TemplateError, RecursionError) as error:
            raise _refusal(error) from None
        marks = environment.extensions[_Generation.identifier]
        assert isinstance(marks, _Generation)
        self._marks = marks
        self._special = dict(special)
        self._opens: bool | None = None
        """Whether the template writes the opening of a turn that is asked for."""
        self._knows_tools = "tools" in names
        self._knows_calls = "tool_calls" in source

    def render(self, messages: Messages, tools: Tools = (), *, ask: bool = False) -> str:
        """Messages as the model reads them; `ask` adds the opening of an assistant's turn."""
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=[dict(tool) for tool in tools] or None,
                documents=None,
                add_generation_prompt=ask,
                **self._special,
            )
        except _FAILURES as error:
            raise _refusal(error) from None

    def chat(self, messages: Messages, tools: Tools = ()) -> Chat:
        """A whole chat and the assistant's spans.

        A template with generation marks says them itself. Else a span is found by rendering the
        chat up to the turn and through it: from the turn's opening to its end. Where a template
        writes earlier turns differently once others follow, it is what changes in the whole chat
        when the turn says something else.

        Raises:
            SwarmError: invalid-input; the template refuses the messages or leaves some out.
        """
        self._refuse_unknown(messages, tools)
        chat = (
            self._marked(messages, tools) if self._marks.is_used else self._found(messages, tools)
        )
        _refuse_left_out(messages, chat.text)
        return chat

    def _refuse_unknown(self, messages: Messages, tools: Tools) -> None:
        calls = any("tool_calls" in message for message in messages)
        if (tools and not self._knows_tools) or (calls and not self._knows_calls):
            what = "tools" if tools and not self._knows_tools else "tool_calls"
            raise SwarmError(
                "invalid-input",
                f"this model's chat template knows no {what}: they would be left out",
                hint="take a model that was trained to call functions, or leave out these rows",
            )

    def _marked(self, messages: Messages, tools: Tools) -> Chat:
        said = json.dumps([list(messages), list(tools)], ensure_ascii=False)
        mark = _PRIVATE
        while mark in said:
            mark += _PRIVATE
        self._marks.open, self._marks.close = f"{mark}<", f"{mark}>"
        try:
            raw = self.render(messages, tools)
        finally:
            self._marks.open = self._marks.close = ""
        text, spans, start = "", [], 0
        for number, part in enumerate(raw.split(mark)):
            if number:
                if part[:1] == "<":
                    start = len(text)
                elif len(text) > start:
                    spans.append((start, len(text)))
            text += part[1:] if number else part
        return Chat(text, tuple(spans))

    def _found(self, messages: Messages, tools: Tools) -> Chat:
        whole = self.render(messages, tools)
        spans = [
            self._span(whole, (messages, number), tools)
            for number, message in enumerate(messages)
            if message["role"] == "assistant"
        ]
        return Chat(whole, tuple(spans))

    def _span(self, whole: str, at: tuple[Messages, int], tools: Tools) -> Span:
        plain = self._plain(whole, at, tools)
        return plain or self._probed(whole, at, tools)

    def _plain(self, whole: str, at: tuple[Messages, int], tools: Tools) -> Span | None:
        """From the turn's opening to its end, where the template writes it the same in each."""
        messages, number = at
        try:
            opening = self.render(messages[:number], tools, ask=True)
            through = self.render(messages[: number + 1], tools)
            if self._opens is None:  # without an opening the turn's heading would be learned
                self._opens = opening != self.render(messages[:number], tools)
        except _TemplateRefusal:  # many templates look for a first message, or one of the user
            return None
        is_plain = whole.startswith(through) and through.startswith(opening)
        if not self._opens or not is_plain or len(opening) >= len(through):
            return None
        return len(opening), len(through.rstrip())

    def _probed(self, whole: str, at: tuple[Messages, int], tools: Tools) -> Span:
        """What changes in the whole chat when this turn says something else."""
        messages, number = at
        probe = _PRIVATE
        while probe in whole:
            probe += _PRIVATE
        said = {name: one for name, one in messages[number].items() if name != "tool_calls"}
        other = [*messages[:number], {**said, "content": probe}, *messages[number + 1 :]]
        before, found, after = self.render(other, tools).partition(probe)
        end = len(whole) - len(after)
        is_apart = whole.startswith(before) and whole.endswith(after) and len(before) <= end
        if not found or not is_apart:
            raise SwarmError(
                "invalid-input",
                "this model's chat template does not let the assistant's turns be told apart",
                hint="use rows with prompt and completion instead of messages",
            )
        return len(before), end


def _refuse_left_out(messages: Messages, text: str) -> None:
    """Refuse a chat of which the template has silently dropped a message."""
    for number, message in enumerate(messages, 1):
        content = message["content"].strip()
        # An assistant's earlier thoughts are left out on purpose by templates of thinking models.
        if message["role"] == "assistant" or content in text:
            continue
        if json.dumps(content, ensure_ascii=False)[1:-1] not in text:
            raise SwarmError(
                "invalid-input",
                f"this model's chat template leaves out message {number}, of the role "
                f"{message['role']}",
                hint="leave this message out, or move its words into a user's message",
            )


def _dict(*pairs: Any, **named: Any) -> dict[Any, Any]:
    """A dictionary, without what else Python's type offers."""
    return dict(*pairs, **named)


class _Names(Namespace):
    """A template's namespace, without names that could reach into Python."""

    def __init__(*told: Any, **named: Any) -> None:
        for name in named:
            _Names._check(name)
        Namespace.__init__(*told, **named)

    def __setitem__(self, name: str, value: Any) -> None:
        _Names._check(name)
        Namespace.__setitem__(self, name, value)

    @staticmethod
    def _check(name: str) -> None:
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace may not hold {name[:40]!r}")


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)


def _raise(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))


class _TemplateRefusal(SwarmError):
    """What the template itself does not take."""


def _refusal(error: Exception) -> _TemplateRefusal:
    said = " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
    return _TemplateRefusal(
        "invalid-input",
        f"this model's chat template refuses the messages: {said}",
        hint="check the order of the roles, or use rows with prompt and completion",
    )
