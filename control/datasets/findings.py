"""What the lint counted, as findings in words, for one sequence length."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from control.datasets.rows import place_words
from control.datasets.token_file import Faulty
from control.datasets.token_shop import Made
from transport.api.plans import Finding, FindingKind

ORDER: tuple[FindingKind, ...] = get_args(FindingKind)
WORDS: Mapping[str, str] = {
    "masked": "have nothing to learn from: all their tokens are masked",
    "prompt-too-long": "have a prompt that fills the sequence, so that nothing of them is learned",
    "truncated": "are longer than the sequence and are cut",
    "eos-doubled": "end with EOS twice",
    "bos-missing": "do not begin with the BOS that this tokenizer begins texts with",
    "bos-doubled": "begin with BOS twice",
    "duplicates": "have the same tokens as a row before them",
    "long-line": "are one long line: perhaps their line ends were lost",
    "empty": "are empty and are left out",
}


def findings_of(made: Made, names: Sequence[str]) -> list[Finding]:
    """All faults of the data, in the order of their harm.

    Args:
        names: of the files, in the order in which they were tokenized.
    """
    lint = made.told["lint"]
    faults: dict[str, Faulty] = {
        name: Faulty(int(told[0]), int(told[1])) for name, told in lint["faults"].items()
    }
    faults["truncated"] = made.measured.truncated
    faults["prompt-too-long"] = made.measured.long_prompts
    rows = int(lint["rows"])
    return [
        _finding(kind, faults[kind], rows, (lint, names))
        for kind in ORDER
        if kind in faults and faults[kind].count
    ]


def _finding(
    kind: FindingKind, fault: Faulty, rows: int, told: tuple[Mapping[str, Any], Sequence[str]]
) -> Finding:
    lint, names = told
    first = place_words(fault.place, list(names)) if fault.place >= 0 else ""
    what = _missing_eos(lint) if kind == "eos-missing" else WORDS[kind]
    where = f" (first: {first})" if first else ""
    words = f"{fault.count:,} of {rows:,} rows {what}{where}"
    return Finding(kind=kind, count=fault.count, of=rows, first=first, words=words)


def _missing_eos(lint: Mapping[str, Any]) -> str:
    ends = ", ".join(_plain(name) for name in lint["turn_ends"])
    stops = ", ".join(_plain(name) for name in lint["stops"])
    if ends:
        return f"end the assistant's turn with {ends}, but this model stops at {stops}"
    return f"have no end that stops the model ({stops}); where a turn is last, EOS is added"


def _plain(name: Any) -> str:
    """A token's name without what could be more than a name."""
    return "".join(c for c in str(name)[:32] if c.isascii() and c.isprintable())
