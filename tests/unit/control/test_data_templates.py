"""Chat templates like those of real models: rendered as transformers does, the answers learned."""

import json
from pathlib import Path
from typing import Any

import pytest

from control.datasets.chat import ChatTemplate
from control.datasets.rows import row_of
from control.datasets.tokenize import Encoder
from tests.unit.control.data_files import chat, tokenizer_folder
from transport.errors import SwarmError

CHATML = (
    "{%- if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "<|im_end|>\n{% endif -%}\n"
    "{% for message in messages %}<|im_start|>{{ message['role'] + '\\n' + message['content'] }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    "{{ bos_token }}{% for m in messages %}{{ '<|head|>' + m['role'] + '<|endhead|>\\n\\n' + "
    "m['content'] | trim + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|head|>assistant<|endhead|>\\n\\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    "{{ '<start>' + role + '\\n' + m['content'] | trim + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start>model\\n' }}{% endif %}"
)
MARKED = (
    "{%- for m in messages -%}\n<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' -%}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{%- else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and not loop.last"
    " %}{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEMPLATES = {"chatml": CHATML, "llama": LLAMA, "gemma": GEMMA, "marked": MARKED}
LONG = [
    ("user", "the word"),
    ("assistant", "was with"),
    ("user", "and"),
    ("assistant", "the swarm"),
]


def learned(folder: Path, template: str, row: dict[str, Any]) -> str:
    """What of a row is learned, in brackets."""
    source = tokenizer_folder(folder, template, eos="<|im_end|>", bos="bos_token" in template)
    (told,) = Encoder(source, ["a.jsonl"]).encode([row_of(row)])
    ids = [int(i) for i, mark in zip(told.ids, told.supervised) if mark]
    text: str = source.tokenizer.decode(ids, skip_special_tokens=False)
    return text


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_chat_is_rendered_and_marked_as_transformers_does(name: str, tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    source = tokenizer_folder(tmp_path, TEMPLATES[name], eos="<|im_end|>")
    theirs = PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), bos_token="<s>", eos_token="<|im_end|>"
    )
    theirs.chat_template = TEMPLATES[name]
    row = row_of(chat(*LONG))
    ours = ChatTemplate(TEMPLATES[name], source.special)
    for ask in (False, True):
        expected = theirs.apply_chat_template(
            [dict(m) for m in row.messages], tokenize=False, add_generation_prompt=ask
        )
        assert ours.render(row.messages, ask=ask) == expected
    told = ours.chat(row.messages)
    assert told.text == ours.render(row.messages)
    if name == "marked":
        both = theirs.apply_chat_template(
            [dict(m) for m in row.messages], return_assistant_tokens_mask=True, return_dict=True
        )
        (mine,) = Encoder(source).encode([row])
        assert mine.ids.tolist() == both["input_ids"]
        assert mine.supervised.tolist() == both["assistant_masks"]


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_assistants_turns_and_their_ends_are_learned_and_nothing_else(
    name: str, tmp_path: Path
) -> None:
    assert (
        learned(tmp_path, TEMPLATES[name], chat(*LONG)) == "was with<|im_end|>the swarm<|im_end|>"
    )


def test_a_chat_that_begins_with_the_assistant_is_marked_where_only_whole_chats_render(
    tmp_path: Path,
) -> None:
    picky = (
        "{% if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}"
        "{{ raise_exception('No user query found') }}{% endif %}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    )
    row = chat(("assistant", "was"), ("user", "was"), ("assistant", "with"))
    assert learned(tmp_path, picky, row) == "was<|im_end|>with<|im_end|>"


def test_marks_decide_where_a_template_has_them(tmp_path: Path) -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'user' %}{% generation %}{{ m.content }}<|im_end|>"
        "{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
    )
    row = chat(("assistant", "was"), ("user", "the word"), ("assistant", "with"))
    assert learned(tmp_path, source, row) == "the word<|im_end|>"


def test_of_a_turn_that_a_template_shortens_once_others_follow_the_rest_is_learned(
    tmp_path: Path,
) -> None:
    row = chat(
        ("user", "was"), ("assistant", "<think>with</think>was"), ("user", "and"),
        ("assistant", "<think>the</think>word"),
    )  # fmt: skip
    assert learned(tmp_path, THINKING, row) == "was<|im_end|><think>the</think>word<|im_end|>"


@pytest.mark.parametrize(
    "template, turns, said",
    [
        (GEMMA, [("system", "be"), *LONG], "System role not supported"),
        (GEMMA, [LONG[0], LONG[0], LONG[1]], "must alternate"),
        (
            "{% for m in messages if m.role != 'tool' %}[{{ m.role }}]{{ m.content }}{% endfor %}",
            [*LONG[:1], ("tool", "42 degrees"), *LONG[1:2]],
            "leaves out message 2, of the role tool",
        ),
    ],
)
def test_a_role_that_the_template_refuses_or_drops_is_told_with_its_row(
    template: str, turns: list[tuple[str, str]], said: str, tmp_path: Path
) -> None:
    with pytest.raises(SwarmError) as refusal:
        learned(tmp_path, template, chat(*turns))
    assert refusal.value.code == "invalid-input"
    assert said in refusal.value.message
    assert "a.jsonl line " in refusal.value.message


def test_tools_and_calls_are_rendered_or_refused_never_dropped(tmp_path: Path) -> None:
    call = {"type": "function", "function": {"name": "look", "arguments": {"at": "sky"}}}
    row = {
        "tools": [{"type": "function", "function": {"name": "look"}}],
        "messages": [
            {"role": "user", "content": "the sky"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "blue"},
            {"role": "assistant", "content": "It is blue."},
        ],
    }
    text = learned(tmp_path / "a", CHATML, row)
    assert json.dumps(call["function"]) in text
    assert text.endswith("It is blue.<|im_end|>")
    for template, what in ((LLAMA, "knows no tools"), (LLAMA, "knows no tool_calls")):
        with pytest.raises(SwarmError) as refusal:
            learned(tmp_path / "b", template, row)
        assert what in refusal.value.message
        row.pop("tools", None)


def test_the_mark_of_generation_cannot_be_forged_by_the_data(tmp_path: Path) -> None:
    forged = "\U000f5357<the word\U000f5357>"
    row = chat(("user", forged), ("assistant", "was"))
    assert learned(tmp_path, MARKED, row) == "was<|im_end|>"


@pytest.mark.parametrize(
    "source",
    [
        "{% set ns = namespace(_x=1) %}{{ ns._x }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ dict.mro() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ lipsum() }}",
    ],
)
def test_a_template_reaches_nothing_but_its_messages(source: str) -> None:
    with pytest.raises(SwarmError):
        ChatTemplate(source, {}).chat([{"role": "assistant", "content": "a"}])
