"""How many bytes each kind of compression puts on a link, and what it holds on a card.

Pure arithmetic, torch-free: the planner, the prices and the codecs themselves read it here, so
that what was planned is what a link counts.
"""

from dataclasses import dataclass
from typing import Final

from transport.orders import CompressionSettings

SCALE_BYTES: Final = 2
"""One bfloat16 a token: the range of float32; values are divided by the rounded scale."""
GROUP: Final = 8
"""Neighbouring components that get the same bits: eight codes of b bits are exactly b bytes."""
CALIBRATION_TOKENS: Final = 16_384
SAMPLE_ROWS: Final = 1_024
"""Rows of the calibration that are kept whole, to fit steps and bits to them."""
CHUNK_ROWS: Final = 512
"""Tokens that are coded at once: it bounds what a codec needs for a moment."""


@dataclass(frozen=True)
class BoundarySizes:
    """Of one kind of compression at one hidden width."""

    kind: CompressionSettings
    hidden: int

    @property
    def width(self) -> int:
        """Values a token that the engine hands to a link."""
        return self.kind.dim if self.kind.kind == "learned" else self.hidden

    def row_bytes(self, number_bytes: int) -> int:
        """Bytes a token on the link, one way; number_bytes: of the layers' own format."""
        match self.kind.kind:
            case "none":
                return number_bytes * self.hidden
            case "rotation":
                return rotation_row_bytes(self.hidden, self.kind.bits)
            case _:
                return fixed_row_bytes(self.width, self.kind.bits)

    @property
    def basis_bytes(self) -> int:
        """Of a rotation's basis for one way, as it is sent and saved."""
        wide = num_components(self.hidden)
        return 4 * self.hidden + 2 * self.hidden * wide + 8 * wide + wide // GROUP

    @property
    def constant_bytes(self) -> int:
        """What the codecs of one boundary hold on a card, both ways: the basis in float32."""
        wide = num_components(self.hidden)
        each = 4 * (self.hidden + self.hidden * wide + 5 * wide)
        return 2 * each if self.kind.kind == "rotation" else 0

    @property
    def seen_bytes(self) -> int:
        """What one way's calibration holds while batches run, in the computer's memory."""
        return 8 * self.hidden**2 + 4 * SAMPLE_ROWS * self.hidden

    @property
    def fit_bytes(self) -> int:
        """On top of that for a moment when the basis is made: a second matrix, or the sample in
        its components twice more.
        """
        return max(8 * self.hidden**2, 8 * SAMPLE_ROWS * num_components(self.hidden))

    def before_bytes(self, tokens: int, number_bytes: int) -> int:
        """What crosses once before the first step: so many tokens as they are, both ways for a
        rotation and forward for a bottleneck, and the bases.
        """
        if self.kind.kind == "learned":
            start = 4 * (self.hidden + self.hidden * self.kind.dim)
            return tokens * number_bytes * self.hidden + start
        if self.kind.kind != "rotation":
            return 0
        return 2 * (tokens * number_bytes * self.hidden + self.basis_bytes)

    def codec_bytes(self, tokens: int, number_bytes: int) -> int:
        """What coding or decoding so many tokens needs for a moment."""
        if self.kind.kind == "none":
            return 0
        # Values in float32 before and after, and codes.
        each = 24 if self.kind.kind == "rotation" else 12 + number_bytes
        return min(tokens, CHUNK_ROWS) * each * self.width


def fixed_row_bytes(width: int, bits: int) -> int:
    """One scale, and `width` codes of 4 or 8 bits."""
    return SCALE_BYTES + -(-width * bits // 8)


def rotation_row_bytes(hidden: int, bits: int) -> int:
    """A token's whole share, its scale included: bits / 16 of what float16 takes."""
    return hidden * bits // 8


def num_components(hidden: int) -> int:
    """The hidden width, filled up to whole groups."""
    return -(-hidden // GROUP) * GROUP


def calibration_batches(batch_size: int, seq_len: int, train_sequences: int | None) -> int:
    """Batches that hold 16,384 tokens, or all whole ones there are."""
    wanted = -(-CALIBRATION_TOKENS // (batch_size * seq_len))
    there = wanted if train_sequences is None else max(1, train_sequences // batch_size)
    return min(wanted, there)
