"""The lint finds what spoils a run: counted, with the first row that has it, at this length."""

import json
from pathlib import Path

import pytest

from control.datasets.tokenizer_folder import TokenizerFolder
from tests.unit.control.data_files import (
    WORDS,
    chat,
    found_in,
    made_of,
    tokenizer_folder,
    write_jsonl,
    write_tokens,
)
from transport.errors import SwarmError

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLAIN = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
ENDED = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
UNMARKED = "{% for m in messages %}{{ m.content }}{% endfor %}{% generation %}{% endgeneration %}"
TALK = [("user", "the word"), ("assistant", "was with")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> TokenizerFolder:
    return tokenizer_folder(tmp_path_factory.mktemp("tokenizer"), ENDED)


def pairs(count: int) -> list[dict[str, str]]:
    """Sound rows, no two alike."""
    return [{"prompt": f"the word {n} ", "completion": f"was {n}"} for n in range(count)]


def test_sound_data_has_no_finding(folder: TokenizerFolder, tmp_path: Path) -> None:
    assert found_in(write_jsonl(tmp_path / "a.jsonl", pairs(30)), folder) == {}


def test_rows_of_which_nothing_is_learned_are_refused_with_their_number(
    tmp_path: Path,
) -> None:
    masked = tokenizer_folder(tmp_path / "tokenizer", UNMARKED)
    path = write_jsonl(tmp_path / "a.jsonl", [chat(*TALK)] * 7)
    with pytest.raises(SwarmError) as refusal:
        made_of(path, masked, 64)
    assert "the data has 7 rows and no token to learn from" in refusal.value.message
    assert "7 have all their tokens masked, first a.jsonl line 1" in refusal.value.message
    assert "the word" in refusal.value.facts["untrusted_sample"]


def test_single_rows_without_anything_to_learn_are_counted(
    folder: TokenizerFolder, tmp_path: Path
) -> None:
    source = (
        "{% for m in messages %}{% if m.content == 'was with' %}{% generation %}{{ m.content }}"
        "{{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    some = tokenizer_folder(tmp_path / "tokenizer", source, bos=False)
    rows = [chat(*TALK), chat(("user", "a"), ("assistant", "b")), chat(*TALK)]
    found = found_in(write_jsonl(tmp_path / "a.jsonl", rows), some)
    assert (found["masked"].count, found["masked"].of) == (1, 3)
    assert found["masked"].first == "a.jsonl line 2"


def test_a_template_without_an_end_is_found_and_the_last_turn_gets_one(tmp_path: Path) -> None:
    endless = tokenizer_folder(tmp_path / "tokenizer", PLAIN)
    path = write_jsonl(tmp_path / "a.jsonl", [chat(*TALK), chat(("user", "x"), ("assistant", "y"))])
    made = made_of(path, endless, 64)
    assert made.told["lint"]["sample"].endswith("assistant:⟦ was with\n</s>⟧")
    finding = found_in(path, endless)["eos-missing"]
    assert (finding.count, finding.first) == (2, "a.jsonl line 1")
    assert "EOS is added" in finding.words


def test_turns_that_end_by_another_token_than_the_models_eos_are_found(tmp_path: Path) -> None:
    other = tokenizer_folder(tmp_path / "tokenizer", CHATML, bos=False)
    path = write_jsonl(tmp_path / "a.jsonl", [chat(*TALK)])
    words = found_in(path, other)["eos-missing"].words
    assert "end the assistant's turn with <|im_end|>, but this model stops at </s>" in words
    told = {"eos_token_id": [2, 4]}
    (tmp_path / "tokenizer" / "generation_config.json").write_text(json.dumps(told))
    assert found_in(path, TokenizerFolder(tmp_path / "tokenizer")) == {}


def test_a_doubled_and_a_missing_bos_are_found(folder: TokenizerFolder, tmp_path: Path) -> None:
    rows = pairs(4)
    rows[2]["prompt"] = "<s>" + rows[2]["prompt"]
    found = found_in(write_jsonl(tmp_path / "a.jsonl", rows), folder)
    assert found["bos-doubled"].first == "a.jsonl line 3"
    bare = tokenizer_folder(tmp_path / "tokenizer", ENDED.replace("{{ bos_token }}", ""))
    found = found_in(write_jsonl(tmp_path / "b.jsonl", [chat(*TALK)]), bare)
    assert found["bos-missing"].first == "b.jsonl line 1"


def test_an_eos_that_the_data_writes_itself_is_not_doubled_but_two_are_found(
    folder: TokenizerFolder, tmp_path: Path
) -> None:
    rows = pairs(3)
    rows[0]["completion"] += "</s>"
    rows[1]["completion"] += "</s></s>"
    found = found_in(write_jsonl(tmp_path / "a.jsonl", rows), folder)
    assert {kind: one.first for kind, one in found.items()} == {"eos-doubled": "a.jsonl line 2"}


def test_long_prompts_and_cut_rows_are_found_at_the_length_asked_for(
    folder: TokenizerFolder, tmp_path: Path
) -> None:
    rows = pairs(40)
    rows[4]["prompt"] = WORDS * 4
    rows[9]["completion"] = WORDS * 4
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    found = found_in(path, folder, seq_len=32)
    assert (found["prompt-too-long"].count, found["prompt-too-long"].first) == (1, "a.jsonl line 5")
    assert (found["truncated"].count, found["truncated"].first) == (2, "a.jsonl line 5")
    assert found_in(path, folder, seq_len=512) == {}


def test_duplicates_are_counted_from_the_second_on(folder: TokenizerFolder, tmp_path: Path) -> None:
    rows = [*pairs(5), pairs(5)[1], pairs(5)[1], pairs(5)[3]]
    finding = found_in(write_jsonl(tmp_path / "a.jsonl", rows), folder)["duplicates"]
    assert (finding.count, finding.of, finding.first) == (3, 8, "a.jsonl line 6")
    text = write_jsonl(tmp_path / "b.jsonl", [{"text": WORDS}, {"text": "x"}, {"text": WORDS}])
    assert found_in(text, folder, seq_len=8)["duplicates"].first == "b.jsonl line 3"


def test_a_file_of_one_long_line_is_found(folder: TokenizerFolder, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(WORDS * 400)
    finding = found_in(path, folder)["long-line"]
    assert (finding.count, finding.first) == (1, "a.txt line 1")
    path.write_text((WORDS + "\n") * 400)
    assert found_in(path, folder) == {}


def test_empty_rows_are_found_and_left_out(folder: TokenizerFolder, tmp_path: Path) -> None:
    rows = [{"text": WORDS}, {"text": ""}, {"text": "the swarm"}]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    assert found_in(path, folder, seq_len=8)["empty"].first == "a.jsonl line 2"
    assert made_of(path, folder, 8).measured.file.num_rows == 2


def test_ready_tokens_without_eos_and_with_a_doubled_bos_are_found(
    folder: TokenizerFolder, tmp_path: Path
) -> None:
    path = write_tokens(tmp_path / "a.npy", [1, 1, 9, 10, 2, 1, 11, 12, 2, 1, 11, 12, 2])
    found = found_in(path, folder, seq_len=4)
    assert found["bos-doubled"].first == "a.npy document 1"
    assert found["duplicates"].first == "a.npy document 3"
    endless = write_tokens(tmp_path / "b.npy", list(range(6, 60)))
    assert found_in(endless, folder, seq_len=8)["eos-missing"].first == "b.npy document 1"


def test_the_sample_shows_the_first_row_with_what_is_learned(
    folder: TokenizerFolder, tmp_path: Path
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [chat(("user", "go"), ("assistant", "yes"))])
    sample = made_of(path, folder, 64).told["lint"]["sample"]
    assert sample == "<s>user: go\nassistant: ⟦yes</s>⟧\n"


def test_the_sample_of_a_long_prompt_shows_where_learning_begins(
    folder: TokenizerFolder, tmp_path: Path
) -> None:
    rows = [{"prompt": WORDS * 40, "completion": "yes"}]
    sample = made_of(write_jsonl(tmp_path / "a.jsonl", rows), folder, 4096).told["lint"]["sample"]
    assert sample.startswith("…")
    assert sample.endswith("with the swarm. ⟦yes</s>⟧")
    assert len(sample) <= 480
