"""Data: wrong lines are named, tokens and marks are exact, the held-out part is the tail."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from control.datasets.chat import ChatTemplate
from control.datasets.held_out import wanted
from control.datasets.readers import Source, check_file, read_rows
from control.datasets.rows import Row
from control.datasets.token_file import TAIL, Shape, measure, write
from control.datasets.tokenize import Encoder, Tokens
from control.datasets.tokenizer_folder import TokenizerFolder
from tests.leader_twins import (
    CHATML,
    POOL,
    TEXT,
    Pool,
    job_config,
    open_pool,
    write_model,
    write_tokenizer,
)
from transport.errors import SwarmError

ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TokenizerFolder:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return TokenizerFolder(folder)


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    async with open_pool(tmp_path) as made:
        await made.add_model(write_model(tmp_path / "model"))
        yield made


def lines(*rows: Any) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.mark.parametrize(
    "data, name, told",
    [
        (b'{"text": "a"}\n{"text": 1}\n', "a.jsonl", "line 2 has a text that is not text"),
        (b'{"text": "a"}\nnot json\n', "a.jsonl", "line 2 is not a JSON object"),
        (b"[1]\n", "a.jsonl", "line 1 is not a JSON object"),
        (b'{"words": "a"}\n', "a.jsonl", "line 1 has none of text, messages"),
        (b'{"prompt": "a"}\n', "a.jsonl", "line 1 has no completion"),
        (lines({"messages": [{"role": "user", "content": "a"}]}), "a.jsonl", "nothing to learn"),
        (lines({"messages": [{"role": "boss", "content": "a"}]}), "a.jsonl", "whose role"),
        (b'{"text": "\\ud800"}\n', "a.jsonl", "half a surrogate pair"),
        (b"ab\0c", "a.txt", "line 1 is not text"),
        (b"\xff\xfe", "a.txt", "line 1 is not UTF-8"),
        (b"\n \n", "a.txt", "holds no rows"),
        (b"", "a.jsonl", "holds no rows"),
        (b"PAR1", "a.parquet", "cannot be read as parquet"),
        (b"PAR1", "a.jsonl", "looks like .parquet"),
        (b"x,y\n1,2\n", "a.csv", "its columns are x, y"),
        (b"data", "a.bin", "ends neither"),
        (b"[" * 200_000, "a.jsonl", "line 1 is not a JSON object"),
    ],
)
def test_a_wrong_file_is_refused_with_the_number_of_its_line(
    tmp_path: Path, data: bytes, name: str, told: str
) -> None:
    path = tmp_path / "data"
    path.write_bytes(data)
    with pytest.raises(SwarmError) as refusal:
        check_file(path, name)
    assert refusal.value.code == "invalid-input"
    assert told in refusal.value.message


def test_all_ways_to_write_a_row_are_read(tmp_path: Path) -> None:
    path = tmp_path / "data"
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    path.write_bytes(
        lines(
            {"text": "t", "more": 1},
            {"prompt": "p", "completion": "c"},
            {"instruction": "i", "input": "x", "output": "o"},
            {"messages": chat},
        )
    )
    found = list(read_rows(Source(path, "a.jsonl")))
    assert [(r.kind, r.text, r.completion) for r in found] == [
        ("text", "t", ""),
        ("prompt-completion", "p", "c"),
        ("prompt-completion", "i\n\nx", "o"),
        ("messages", "", ""),
    ]


def decode(tokenizer: TokenizerFolder, told: Tokens) -> tuple[str, str]:
    """(the whole text, what of it is learned)."""
    learned = [int(i) for i, mark in zip(told.ids, told.supervised) if mark]
    whole = tokenizer.tokenizer.decode([int(i) for i in told.ids], skip_special_tokens=False)
    return whole, tokenizer.tokenizer.decode(learned, skip_special_tokens=False)


def test_of_a_pair_the_completion_and_its_end_are_learned(tokenizer: TokenizerFolder) -> None:
    (told,) = Encoder(tokenizer).encode([Row("prompt-completion", "Say a: ", "a word")])
    assert decode(tokenizer, told) == ("Say a: a word<|endoftext|>", "a word<|endoftext|>")


def test_of_a_chat_the_assistants_turns_and_their_ends_are_learned(
    tokenizer: TokenizerFolder,
) -> None:
    chat = [
        ("system", "be"),
        ("user", "hi"),
        ("assistant", "yes"),
        ("user", "go"),
        ("assistant", "no"),
    ]
    messages = tuple({"role": role, "content": content} for role, content in chat)
    (told,) = Encoder(tokenizer).encode([Row("messages", messages=messages)])
    whole, learned = decode(tokenizer, told)
    assert whole.count("<|im_start|>") == 5
    assert learned == "yes<|im_end|>no<|im_end|>"


def test_a_template_that_rewrites_earlier_turns_still_shows_which_text_is_the_assistants() -> None:
    # As thinking models do: only the last answer opens with a note.
    source = (
        "{% for m in messages %}[{{ m.role }}]"
        "{% if loop.last and m.role == 'assistant' %}(thought){% endif %}{{ m.content }}\n"
        "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    chat = [("user", "a"), ("assistant", "one"), ("user", "b"), ("assistant", "two")]
    told = ChatTemplate(source, {}).chat([{"role": r, "content": c} for r, c in chat])
    assert [told.text[start:end] for start, end in told.spans] == ["one", "(thought)two"]


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% set x = messages.append({'role': 'x'}) %}",
        "{{ raise_exception('no system role') }}",
        "{% for",
        "{{ 1 // 0 }}",
    ],
)
def test_a_hostile_or_broken_template_is_refused(source: str) -> None:
    with pytest.raises(SwarmError) as refusal:
        ChatTemplate(source, {}).chat([{"role": "assistant", "content": "a"}])
    assert refusal.value.code == "invalid-input"


def test_a_long_text_in_pieces_gives_the_tokens_of_the_whole(tokenizer: TokenizerFolder) -> None:
    text = TEXT * 1000
    pieces = list(Encoder(tokenizer).encode([Row("text", text)]))
    assert len(pieces) > 1
    whole = tokenizer.tokenizer.encode(text).ids
    assert [one for piece in pieces for one in piece.ids] == [*whole, tokenizer.eos_id]
    learned = [one for piece in pieces for one in piece.supervised]
    assert learned == [0] + [1] * len(whole)


def test_a_text_is_packed_with_its_tail_held_out(
    tokenizer: TokenizerFolder, tmp_path: Path
) -> None:
    documents = [Row("text", TEXT * 5)] * 8
    rows = Encoder(tokenizer).encode(documents)
    told = write(rows, Shape("packed", tokenizer.pad_id), tmp_path, tmp_path / "work")
    path = tmp_path / f"{told['file']['digest']}.safetensors"
    tensors = load_file(str(path))
    assert {name: str(t.dtype) for name, t in tensors.items()} == {
        "tokens": "int32",
        "supervised": "uint8",
        "row_starts": "int64",
        "row_places": "int64",
    }
    measured = measure(path, told, 16)
    sequences = told["file"]["num_tokens"] // 16
    assert measured.file.train_sequences + measured.file.held_out_sequences == sequences
    assert measured.file.held_out_sequences == wanted(TAIL, sequences) > 0
    assert 0.98 < measured.supervised_share < 1  # all but the first token of a document
    again = write(
        Encoder(tokenizer).encode(documents),
        Shape("packed", tokenizer.pad_id),
        tmp_path / "again",
        tmp_path / "work",
    )
    assert again["file"]["digest"] == told["file"]["digest"]


def test_rows_that_are_all_masked_at_this_length_are_refused_with_numbers(
    tokenizer: TokenizerFolder, tmp_path: Path
) -> None:
    rows = [Row("prompt-completion", "word " * 50, "yes")] * 4
    told = write(Encoder(tokenizer).encode(rows), Shape("rows", 0), tmp_path, tmp_path / "work")
    path = tmp_path / f"{told['file']['digest']}.safetensors"
    with pytest.raises(SwarmError) as refusal:
        measure(path, told, 8)
    assert refusal.value.code == "invalid-input"
    measured = measure(path, told, 400)
    assert measured.truncated_rows == 0
    assert 0 < measured.supervised_share < 0.2


@pytest.mark.parametrize(
    "sequences, held", [(0, 0), (1, 0), (2, 1), (20, 1), (100, 5), (1280, 64), (10**6, 64)]
)
def test_five_percent_are_held_out_at_least_one_and_at_most_sixty_four(
    sequences: int, held: int
) -> None:
    assert wanted(TAIL, sequences) == held


async def test_a_wrong_file_leaves_the_bucket_as_it_was(pool: Pool) -> None:
    await pool.ask("buckets_create", pool=POOL, bucket="b")
    with pytest.raises(SwarmError):
        await pool.send("buckets_add", b"{}\n", pool=POOL, bucket="b", name="a.jsonl")
    (row,) = (await pool.ask("buckets_list", pool=POOL)).buckets
    assert (row.files, row.rows) == (0, 0)
    assert list((pool.settings.data / "buckets").iterdir()) == []


async def test_a_file_past_the_limit_is_refused_while_it_streams(tmp_path: Path) -> None:
    async with open_pool(tmp_path, max_upload_bytes=1000) as pool:
        await pool.ask("buckets_create", pool=POOL, bucket="b")
        with pytest.raises(SwarmError) as refusal:
            await pool.send("buckets_add", b"x" * 1001, pool=POOL, bucket="b", name="a.txt")
        assert refusal.value.code == "too-large"


async def test_data_is_tokenized_once_for_a_model_and_found_again_after_a_restart(
    pool: Pool,
) -> None:
    await pool.add_text()
    await pool.add_fellow()
    for _ in range(2):
        plan = await pool.ask("jobs_plan", pool=POOL, config=job_config())
        assert plan.data.sequences > 4
        (file,) = (pool.settings.data / "tokens").iterdir()
        made_at = file.stat().st_mtime_ns
        await pool.reopen()
    assert file.stat().st_mtime_ns == made_at
    found = pool.leader.token_file(file.stem)
    assert found is not None
    assert found.size_bytes == file.stat().st_size


async def test_text_and_other_rows_do_not_mix(pool: Pool) -> None:
    await pool.ask("buckets_create", pool=POOL, bucket="text")
    mixed = lines({"text": "a"}, {"prompt": "a", "completion": "b"}).decode()
    with pytest.raises(SwarmError) as refusal:
        await pool.ask("buckets_add", pool=POOL, bucket="text", content=mixed)
    assert "line 2 is prompt-completion" in refusal.value.message
    await pool.ask("buckets_add", pool=POOL, bucket="text", content='{"text": "a"}')
    pair = '{"prompt": "a", "completion": "b"}'
    with pytest.raises(SwarmError) as refusal:
        await pool.ask("buckets_add", pool=POOL, bucket="text", name="b.jsonl", content=pair)
    assert refusal.value.code == "conflict"
    assert "holds text; the rows of b.jsonl are prompt-completion" in refusal.value.message


async def test_an_endless_template_ends_by_itself_and_the_leader_goes_on(tmp_path: Path) -> None:
    async with open_pool(tmp_path, tokenize_seconds=1) as pool:
        folder = write_model(tmp_path / "model")
        write_tokenizer(folder, ENDLESS)
        await pool.add_model(folder)
        await pool.ask("buckets_create", pool=POOL, bucket="text")
        chat = lines({"messages": [{"role": "assistant", "content": "a"}]}).decode()
        await pool.ask("buckets_add", pool=POOL, bucket="text", content=chat)
        with pytest.raises(SwarmError) as refusal:
            await pool.ask("jobs_plan", pool=POOL, config=job_config())
        assert refusal.value.code == "invalid-input"
        assert "template" in refusal.value.hint


def test_the_template_is_the_one_that_a_model_names(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, CHATML)
    assert TokenizerFolder(tmp_path).template == CHATML
    (tmp_path / "chat_template.jinja").write_text("other")
    assert TokenizerFolder(tmp_path).template == "other"
