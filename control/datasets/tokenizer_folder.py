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
        total.update(json.dumps(self._eos_from_config()).encode())
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
        for name in ("generation_config.json", "config.json"):
            told = self._json(name).get("eos_token_id")
            told = told[0] if isinstance(told, list) and told else told
            if isinstance(told, int):
                return told
        return None

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
