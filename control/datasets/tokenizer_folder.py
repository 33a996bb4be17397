"""A tokenizer as its model's folder describes it: tokenizer.json, special tokens, chat template.

Only the fast tokenizer's own file is read (the tokenizers library); no Python of a repository runs.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from transport.errors import SwarmError

NEEDED = "tokenizer.json"
FILES = (
    NEEDED,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
    "config.json",
)
SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token")


@dataclass(frozen=True)
class TokenizerFolder:
    """The tokenizer of a model. Every file but tokenizer.json may be absent."""

    folder: Path

    @cached_property
    def digest(self) -> str:
        """SHA-256 over all that decides the tokens of some text."""
        total = hashlib.sha256()
        for name in FILES[:4]:
            path = self.folder / name
            total.update(path.read_bytes() if path.is_file() else b"-")
            total.update(b"\0")
        total.update(json.dumps([self._eos_told(), self._vocab_told()]).encode())
        return total.hexdigest()

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizers.Tokenizer, without truncation and padding."""
        path = self.folder / NEEDED
        if not path.is_file():
            raise SwarmError(
                "invalid-input",
                "this model has no tokenizer.json",
                hint="take a model with a fast tokenizer, or convert its tokenizer first",
            )
        try:
            loaded = Tokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001 - the library raises bare Exception
            raise SwarmError(
                "invalid-input",
                f"this model's tokenizer.json cannot be read: {str(error)[:200]}",
                hint="fetch the model's files again",
            ) from None
        loaded.no_truncation()
        loaded.no_padding()
        return loaded

    @cached_property
    def special(self) -> dict[str, str]:
        """bos_token, eos_token, ... as text, those that there are."""
        told = {**self._json("special_tokens_map.json"), **self._json("tokenizer_config.json")}
        found = {name: _text(told.get(name)) for name in SPECIAL}
        return {name: text for name, text in found.items() if text}

    @property
    def eos_id(self) -> int:
        """The token that ends a document.

        Raises:
            SwarmError: invalid-input when the model names none.
        """
        named = self.special.get("eos_token")
        found = self.tokenizer.token_to_id(named) if named else self._eos_from_config()
        if found is None:
            raise SwarmError(
                "invalid-input",
                "this model does not say which token ends a text (eos_token)",
                hint="add eos_token to its tokenizer_config.json",
            )
        return int(found)

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text, where the model has one."""
        named = self.special.get("bos_token")
        return self.tokenizer.token_to_id(named) if named else None

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """Tokens at which generating stops."""
        return frozenset({self.eos_id, *self._eos_told()})

    @cached_property
    def vocab(self) -> int:
        """Ids that the model knows: by its configuration, else by the tokenizer."""
        told = self._vocab_told()
        known = int(self.tokenizer.get_vocab_size(with_added_tokens=True))
        return max(known, told or 0)

    @property
    def pad_id(self) -> int:
        """What rows are filled up with; masked, so that any token will do."""
        named = self.special.get("pad_token")
        found = self.tokenizer.token_to_id(named) if named else None
        return self.eos_id if found is None else int(found)

    @property
    def template(self) -> str | None:
        """The chat template's source; None when the model has none."""
        path = self.folder / "chat_template.jinja"
        if path.is_file():
            return path.read_text("utf-8")
        told = self._json("tokenizer_config.json").get("chat_template")
        if isinstance(told, list):
            named = {t.get("name"): t.get("template") for t in told if isinstance(t, dict)}
            told = named.get("default")
        return told if isinstance(told, str) else None

    def _eos_from_config(self) -> int | None:
        return next(iter(self._eos_told()), None)

    def _eos_told(self) -> list[int]:
        """What the configuration files say, the first that says something first."""
        found: list[int] = []
        for name in ("generation_config.json", "config.json"):
            told = self._json(name).get("eos_token_id")
            told = told if isinstance(told, list) else [told]
            found += [one for one in told if isinstance(one, int) and not isinstance(one, bool)]
        return found

    def _vocab_told(self) -> int | None:
        told = self._json("config.json").get("vocab_size")
        return told if isinstance(told, int) else None

    def _json(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        try:
            told = json.loads(path.read_bytes()) if path.is_file() else {}
        except (ValueError, RecursionError):
            raise SwarmError(
                "invalid-input",
                f"this model's {name} is not JSON",
                hint="fetch the model's files again",
            ) from None
        return told if isinstance(told, dict) else {}


def _text(told: Any) -> str:
    value = told.get("content") if isinstance(told, dict) else told
    return value if isinstance(value, str) else ""
