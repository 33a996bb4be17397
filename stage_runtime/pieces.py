"""How much of a large thing is computed at once: sizes that the engine and its prices share."""

from typing import Final

TWIN_ROWS: Final = 1024
"""Rows of which an adapter makes float32 copies at once."""
LOSS_WORDS: Final = 1 << 13
"""Words of the vocabulary whose part of a trained head's gradient is computed at once."""
