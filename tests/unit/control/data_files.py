"""For tests of data: a tokenizer with BOS, rows as files of every format, tokens made of rows."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from control.datasets.findings import findings_of
from control.datasets.lint import Lint
from control.datasets.readers import Source, read_rows
from control.datasets.rows import layout_of
from control.datasets.token_file import Shape, measure, write
from control.datasets.token_shop import Made
from control.datasets.tokenize import Encoder
from control.datasets.tokenizer_folder import TokenizerFolder
from transport.api.job_config import HeldOutConfig
from transport.api.plans import Finding
from transport.errors import SwarmError

WORDS = "In the beginning was the word, and the word was with the swarm. "
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|pad|>"]


def tokenizer_folder(
    folder: Path, template: str | None = None, *, eos: str = "</s>", bos: bool = True
) -> TokenizerFolder:
    """A byte-level tokenizer that begins texts with <s>."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([WORDS] * 20, trainer)
    if bos:
        made.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 1)]
        )
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    told: dict[str, Any] = {"eos_token": eos, "pad_token": "<|pad|>"}
    told |= {"bos_token": "<s>"} if bos else {}
    told |= {"chat_template": template} if template else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return TokenizerFolder(folder)


def chat(*turns: tuple[str, str]) -> dict[str, Any]:
    """A row of messages."""
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """One object a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """The same rows as a table."""
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), str(path))
    return path


def write_tokens(path: Path, ids: Iterable[int], dtype: str = "int32") -> Path:
    """Token ids as an array."""
    with path.open("wb") as handle:
        np.save(handle, np.array(list(ids), dtype=dtype))
    return path


def made_of(
    path: Path,
    folder: TokenizerFolder,
    seq_len: int,
    held_out: HeldOutConfig | None = None,
    shape: Shape | None = None,
) -> Made:
    """The token file of one data file, with what the lint saw."""
    sources = [Source(path, path.name, group=held_out.column if held_out else None)]
    lint = Lint(folder)
    encoder = Encoder(folder, [path.name])
    tokens = list(encoder.encode(row for source in sources for row in read_rows(source)))
    for told in tokens:
        lint.look(told)
    how = shape or Shape(layout_of(tokens[0].kind), folder.pad_id)
    try:
        written = write(tokens, how, path.parent / "tokens", path.parent / "work")
    except SwarmError as error:
        raise lint.useless(error, [path.name]) from error
    told_all = {**written, "lint": lint.told()}
    file = path.parent / "tokens" / f"{written['file']['digest']}.safetensors"
    return Made(measure(file, written, seq_len, held_out or HeldOutConfig()), told_all)


def found_in(path: Path, folder: TokenizerFolder, seq_len: int = 64) -> dict[str, Finding]:
    """What is wrong with a data file, by kind."""
    made = made_of(path, folder, seq_len)
    return {finding.kind: finding for finding in findings_of(made, [path.name])}
