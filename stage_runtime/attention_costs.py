"""What attention keeps for its backward, by the kernel that computes it.

Pure arithmetic. Three kernels: one that shares key-value heads (flash, and the CPU's own), one
that needs them repeated (memory-efficient: cards before Ampere, float32 and every mask), and
none, where a family's softcap or sinks make whole scores.

q heads x head size, kv key-value heads x head size, a heads, s tokens of a sequence, b bytes of
a number; per-token terms unless said otherwise.
"""

from dataclasses import dataclass
from functools import cached_property

from stage_runtime.model_facts import ModelFacts


@dataclass(frozen=True)
class AttentionCosts:
    """Prices of the attention in one block."""

    facts: ModelFacts
    number_bytes: int
    seq_len: int
    autocast: bool = False
    """Weights are float32 and compute in 16 bits (a full fine-tune)."""
    apart: bool = False
    """Documents that share a sequence do not see each other: every layer has a mask."""

    def saved_per_token(self) -> int:
        """Queries, keys, values, the output, and one float32 sum a head."""
        facts, b = self.facts, self.number_bytes
        queries, keys = facts.query_width, facts.kv_width
        if facts.family.scores:
            return b * (queries + 2 * keys)  # nothing keeps the output of a plain product
        kept = b * (2 * queries + 2 * keys) + 4 * facts.heads
        if facts.family.fused_qkv and facts.family.joined_rotary:
            kept += b * (queries + keys)  # the values keep the whole fused projection alive
        return kept

    def saved_by_layer(self, layer: int, rows: int, *, shared: bool) -> int:
        """Bytes of `rows` sequences beyond the per-token terms: repeated heads, masks, scores.

        shared: the kernel takes shared key-value heads as they are.
        """
        tokens = rows * self.seq_len
        if self.facts.family.scores:
            return tokens * (self._repeated() + self._scores_saved())
        masked = self.is_masked(layer)
        # The boolean mask becomes a bias in the layers' format, and the kernel keeps it.
        saved = tokens * self.seq_len * self.number_bytes if masked else 0
        return saved + (tokens * self._repeated() if masked or not shared else 0)

    def is_masked(self, layer: int) -> bool:
        """Whether a mask exists: documents are apart, or the layer's window is shorter than the
        sequence.
        """
        if self.apart:
            return True
        window = self.facts.window
        slides = self.facts.layer_types[layer] == "sliding_attention"
        return slides and window is not None and self.seq_len >= window

    @cached_property
    def _next_masked(self) -> list[int]:
        """For each layer the first masked one from it on; the number of layers when none is."""
        count = self.facts.num_layers
        told = [count] * (count + 1)
        for layer in reversed(range(count)):
            told[layer] = layer if self.is_masked(layer) else told[layer + 1]
        return told

    def masked_in(self, first: int, last: int) -> int | None:
        """The first masked layer of these; None when none is."""
        found = self._next_masked[first]
        return found if found <= last else None

    def scores_top(self, tokens: int) -> int:
        """Scores that exist for a moment beyond those that are kept; 0 for a fused kernel."""
        wide = self.number_bytes == 4
        sinks = 8 if wide or self.autocast else 4
        each = {"": 0, "sinks": sinks, "softcap": 8 if wide else 6}[self.facts.family.scores]
        return tokens * self.facts.heads * self.seq_len * each

    def mask_bytes(self, first: int, last: int, rows: int) -> int:
        """Masks that a recomputed micro-batch keeps alive, one a kind of layer."""
        square = self.seq_len * self.seq_len
        kinds = len(set(self.facts.layer_types[first : last + 1]))
        if self.facts.family.scores:
            return kinds * rows * square * self.number_bytes
        if self.apart:
            return kinds * rows * square
        return square if self.masked_in(first, last) is not None else 0

    def _repeated(self) -> int:
        """Key-value heads repeated for every query head; a single one is a view."""
        facts = self.facts
        if facts.kv_heads == 1 and not facts.family.scores:
            return 0
        return 2 * (facts.query_width - facts.kv_width) * self.number_bytes

    def _scores_saved(self) -> int:
        facts, b = self.facts, self.number_bytes
        if facts.family.scores == "sinks":
            # Float32 sinks widen the scores that they are joined to.
            each = 4 if self.autocast else b
            narrow = b * self.seq_len if self.autocast else 0
            return facts.heads * (each * (self.seq_len + 1) + narrow + 8)
        # tanh of the scores, their float32 softmax, and the softmax in the layers' format.
        return facts.heads * self.seq_len * (b + 4 + (b if b == 2 else 0))
