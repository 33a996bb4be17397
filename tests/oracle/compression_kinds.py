"""What the table of compression compares, on which model and which text.

SmolLM2-135M-Instruct as `swarm demo` converted it, and English that every Python brings along, in
128-token sequences: the last ones are held out, the first hold the calibration.
"""

from dataclasses import dataclass
from pathlib import Path
from pydoc_data import topics

import numpy as np
from platformdirs import user_cache_path
from tokenizers import Tokenizer

from tests.oracle.tokens import write_token_file
from transport.orders import CompressionSettings, TokenFile

DEMO = user_cache_path("swarm") / "demo" / "models" / "SmolLM2-135M-Instruct"
SEQ_LEN, HELD_OUT, CALIBRATION = 128, 48, 128
LAYERS = 30


@dataclass(frozen=True)
class Kind:
    """One line of the tables."""

    name: str
    kind: str
    bits: int
    part: int = 0
    """A learned bottleneck has the hidden width over this."""
    adapts_mlp: bool = False
    """Whether a job of it has adapters on the feed-forward layers as well."""

    def settings(self, hidden: int) -> CompressionSettings:
        """As an order has it."""
        dim = hidden // self.part if self.part else 0
        return CompressionSettings(kind=self.kind, bits=self.bits, dim=dim)  # type: ignore[arg-type]


NONE = Kind("none", "none", 0)
NONE_MLP = Kind("none, mlp too", "none", 0, adapts_mlp=True)
WHOLE = Kind("int8, whole tensor", "whole", 8)
"""One scale for all tokens: what a scale a token is held against, and no kind of Swarm's."""
HALF, QUARTER, EIGHTH = (
    (Kind("fixed_int8", "fixed_int8", 8), Kind("rotation 8 bits", "rotation", 8)),
    (
        Kind("fixed_int4", "fixed_int4", 4),
        Kind("learned 1/2 width", "learned", 8, 2, adapts_mlp=True),
        Kind("rotation 4 bits", "rotation", 4),
    ),
    (
        Kind("learned 1/4 width", "learned", 8, 4, adapts_mlp=True),
        Kind("rotation 2 bits", "rotation", 2),
    ),
)
KINDS = (*HALF, *QUARTER, *EIGHTH)


def text_file(cache: Path, folder: Path) -> TokenFile:
    """The English, shuffled by sequences with a fixed seed."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = [tokenizer.encode(text).ids for _, text in sorted(topics.topics.items())]
    stream = np.concatenate([np.array(one) for one in ids])
    whole = len(stream) // SEQ_LEN
    order = np.random.default_rng(0).permutation(whole)
    rows = stream[: whole * SEQ_LEN].reshape(whole, SEQ_LEN)[order].reshape(-1)
    return write_token_file(
        cache, layout="packed", rows=[rows], supervised=[np.ones_like(rows)],
        seq_len=SEQ_LEN, held_out=HELD_OUT, pad=0,
    )  # fmt: skip
