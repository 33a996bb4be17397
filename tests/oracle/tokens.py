"""Token files for tests, and the orders that name them."""

import hashlib
from pathlib import Path
from pydoc_data import topics
from typing import Any, Literal

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from transport.orders import TokenFile

Ids = np.ndarray[Any, Any]


def write_token_file(
    cache: Path,
    *,
    layout: Literal["packed", "rows"],
    rows: list[Ids],
    supervised: list[Ids],
    seq_len: int,
    held_out: int,
    pad: int,
) -> TokenFile:
    """Write rows as a token file into the cache folder, named by its digest."""
    folder = cache / "tokens"
    folder.mkdir(parents=True, exist_ok=True)
    starts = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)
    draft = folder / "draft.safetensors"
    save_file(
        {
            "tokens": np.concatenate(rows).astype(np.int32),
            "supervised": np.concatenate(supervised).astype(np.uint8),
            "row_starts": starts,
        },
        str(draft),
    )
    data = draft.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    draft.replace(folder / f"{digest}.safetensors")
    total = int(starts[-1]) // seq_len if layout == "packed" else len(rows)
    return TokenFile(
        digest=digest,
        size_bytes=len(data),
        layout=layout,
        num_tokens=int(starts[-1]),
        num_rows=len(rows),
        train_sequences=total - held_out,
        held_out_sequences=held_out,
        pad_token_id=pad,
    )


def packed_text(cache: Path, *, seq_len: int, sequences: int, held_out: int = 3) -> TokenFile:
    """A stream of bytes with patterns in it, every token supervised."""
    random = np.random.default_rng(5)
    words = [random.integers(97, 123, size=random.integers(2, 7)) for _ in range(12)]
    stream: list[int] = []
    while len(stream) < seq_len * sequences + 5:
        stream += [*words[random.integers(0, 12)].tolist(), 32]
    ids = np.array(stream)
    return write_token_file(
        cache,
        layout="packed",
        rows=[ids],
        supervised=[np.ones_like(ids)],
        seq_len=seq_len,
        held_out=held_out,
        pad=256,
    )


def packed_documents(cache: Path, *, seq_len: int, sequences: int, held_out: int = 3) -> TokenFile:
    """Documents of unlike lengths, some longer than a sequence, packed; a document's first token is
    no target, as nothing of it stands before it."""
    random = np.random.default_rng(7)
    words = [random.integers(97, 123, size=random.integers(2, 7)) for _ in range(12)]
    rows: list[Ids] = []
    while sum(map(len, rows)) < seq_len * sequences:
        count = int(random.integers(1, 9))
        rows.append(np.concatenate([words[random.integers(0, 12)] for _ in range(count)]))
    masks = [np.minimum(np.arange(len(row)), 1) for row in rows]
    return write_token_file(
        cache,
        layout="packed",
        rows=rows,
        supervised=masks,
        seq_len=seq_len,
        held_out=held_out,
        pad=256,
    )


def ragged_chat(cache: Path, *, seq_len: int, rows: int, held_out: int = 3) -> TokenFile:
    """Rows of unlike lengths, answers supervised; a quarter of the rows has no supervised token, so
    that micro-batches are empty now and then, and no whole step is. Some rows are longer than
    seq_len."""
    random = np.random.default_rng(6)
    texts, masks = [], []
    for row in range(rows):
        length = int(random.integers(3, seq_len + 6))
        texts.append(random.integers(32, 127, size=length))
        mask = np.zeros(length, dtype=np.uint8)
        if row % 4 or row >= rows - held_out:
            mask[length // 2 :] = 1
        masks.append(mask)
    return write_token_file(
        cache,
        layout="rows",
        rows=texts,
        supervised=masks,
        seq_len=seq_len,
        held_out=held_out,
        pad=256,
    )


def real_text(
    cache: Path, folder: Path, layout: Literal["packed", "rows"], *, seq_len: int
) -> TokenFile:
    """English that every Python brings along (pydoc's topics), in a real model's own tokens.

    rows: a topic's title asks, its text answers; every fourth row has no supervised token.
    """
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    chosen = sorted(topics.topics.items())[:40]
    titles = [np.array(tokenizer.encode(f"What is {title}? ").ids) for title, _ in chosen]
    texts = [np.array(tokenizer.encode(text[:400]).ids) for _, text in chosen]
    if layout == "packed":
        stream = np.concatenate(texts)[: seq_len * 40 + 5]
        return write_token_file(
            cache,
            layout="packed",
            rows=[stream],
            supervised=[np.ones_like(stream)],
            seq_len=seq_len,
            held_out=3,
            pad=0,
        )
    masks = [
        np.array([0] * len(title) + [int(row % 4 > 0 or row >= 37)] * len(text))
        for row, (title, text) in enumerate(zip(titles, texts, strict=True))
    ]
    return write_token_file(
        cache,
        layout="rows",
        rows=[np.concatenate(pair) for pair in zip(titles, texts, strict=True)],
        supervised=masks,
        seq_len=seq_len,
        held_out=3,
        pad=0,
    )
