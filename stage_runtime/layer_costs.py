"""What one block keeps for its backward, byte by byte, and what it needs for a moment on top.

Pure arithmetic on model facts. Counted against the real classes of transformers and peft
(tests/oracle/memory_oracle.py): every term is a tensor that autograd saves. Memory inside kernels
is not counted here: it is workspace (stage_runtime.costs).

h hidden width, f feed-forward width, q heads x head size, kv key-value heads x head size,
b bytes of one number in the layers' format; all terms below are bytes per token.
"""

from dataclasses import dataclass
from functools import cached_property

from stage_runtime.attention_costs import AttentionCosts
from stage_runtime.expert_costs import ExpertCosts
from stage_runtime.model_facts import Linear, ModelFacts
from stage_runtime.pieces import TWIN_ROWS
from stage_runtime.quantized_costs import NUMBER_BYTES, StoredWeights
from transport.orders import TrainSettings

# Tensors of feed-forward width that each activation keeps for backward.
_ACTIVATION_KEEPS = {
    "silu": 1,
    "swish": 1,
    "gelu": 1,
    "gelu_pytorch_tanh": 1,
    "relu": 1,
    "gelu_new": 4,
    "gelu_fast": 7,
}
_UNKNOWN_ACTIVATION_KEEPS = 7


@dataclass(frozen=True)
class Kernels:
    """Which kernels a card computes a block with."""

    shared_heads: bool = True
    """Attention takes shared key-value heads as they are; else they are repeated first."""
    grouped: bool = True
    """Experts run in the grouped product; else in transformers' fallback."""


@dataclass(frozen=True)
class LayerCosts:
    """Prices of one block of a model under one job's settings."""

    facts: ModelFacts
    settings: TrainSettings

    @cached_property
    def number_bytes(self) -> int:
        """Bytes of one number of weights and activations."""
        return NUMBER_BYTES[self.settings.dtype]

    @cached_property
    def full(self) -> bool:
        """Whether every weight trains."""
        return self.settings.method == "full"

    @cached_property
    def adapted(self) -> tuple[Linear, ...]:
        """The projections of each block that carry an adapter."""
        if self.settings.lora is None:
            return ()
        targets = self.settings.lora.target_modules
        found = {one.name: one for target in targets for one in self.facts.linear(target)}
        return tuple(found.values())

    @cached_property
    def adapter_params(self) -> int:
        """Adapter parameters of one layer."""
        return sum(self._rank * (one.inputs + one.outputs) for one in self.adapted)

    @cached_property
    def adapter_tensors(self) -> int:
        """A and B of each adapted projection."""
        return 2 * len(self.adapted)

    @cached_property
    def largest_trained(self) -> int:
        """Parameters of the largest tensor of a block that trains."""
        if not self.full:
            return max((self._rank * max(a.inputs, a.outputs) for a in self.adapted), default=0)
        experts = self.facts.experts
        fused = 2 * experts.count * experts.width * self.facts.hidden if experts else 0
        return max(fused, *(one.inputs * one.outputs for one in self.facts.linears))

    @cached_property
    def saved_per_token(self) -> int:
        """Kept from a block's forward until its backward, without recompute or experts."""
        saved = self._norms() + self.attention.saved_per_token() + self._dense()
        return saved + (self._inputs() if self.full else self._adapters())

    @cached_property
    def unkept_by_first_block(self) -> int:
        """Not kept by the model's first block when the embeddings are frozen: nothing flows back
        through its first norm, nor through a feed-forward that stands beside the attention.
        """
        norm = _norm(self.facts, self.facts.hidden, self.number_bytes)
        if not self.facts.parallel or self._adapts(self.facts.family.mlp):
            return norm
        return self._norms() + self._dense()

    @cached_property
    def keeps_input(self) -> bool:
        """Whether a stage's first norm keeps the received input itself, not a copy of it."""
        if self.facts.learned_positions:
            return False  # its class adds positions, zero here, and so makes a new tensor
        return self.number_bytes == 4 or not self.facts.family.rms_norm

    @cached_property
    def final_norm_per_token(self) -> int:
        """Kept by the norm before the head."""
        norm = _norm(self.facts, self.facts.hidden, self.number_bytes)
        return norm + 4 * self.facts.hidden * (self.full and self.facts.family.rms_norm)

    @cached_property
    def attention(self) -> AttentionCosts:
        """Prices of the block's attention."""
        autocast = self.full and self.number_bytes == 2
        apart = self.settings.document_mask
        return AttentionCosts(self.facts, self.number_bytes, self.settings.seq_len, autocast, apart)

    @cached_property
    def experts(self) -> ExpertCosts | None:
        """Prices of the block's mixture; None when its feed-forward is dense."""
        mixture = self.facts.experts
        # Their product knows no autocast: float32 weights compute in float32.
        number_bytes = 4 if self.full else self.number_bytes
        if mixture is None:
            return None
        return ExpertCosts(self.facts, mixture, number_bytes, self.full)

    def heaviest_in(self, first: int, last: int) -> int:
        """A layer with a mask of these, if there is one; else the first."""
        masked = self.attention.masked_in(first, last)
        return first if masked is None else masked

    def saved_by_layer(self, layer: int, rows: int, kernels: Kernels) -> int:
        """Bytes that a layer keeps for one micro-batch of `rows` sequences."""
        tokens = rows * self.settings.seq_len
        saved = tokens * (self.saved_per_token + self._mixed(kernels))
        shared = kernels.shared_heads
        saved += self.attention.saved_by_layer(layer, rows, shared=shared)
        if self.facts.family.joined_rotary and not shared and self._keeps_output():
            saved -= tokens * self.number_bytes * self.facts.query_width  # no copy of it here
        return saved + self._own_weights()

    def repeated_top(self, rows: int, kernels: Kernels) -> int:
        """The same when the block is computed again first."""
        tokens, b = rows * self.settings.seq_len, self.number_bytes
        # In float32 the block's first norm keeps the saved input itself, not one more copy.
        twice = tokens * b * self.facts.hidden * (b == 4 and not self.full)
        return self.top(rows, kernels) - twice

    def top(self, rows: int, kernels: Kernels) -> int:
        """Bytes needed for a moment in a block's backward, above what is kept."""
        tokens = rows * self.settings.seq_len
        if self.experts is not None:
            top = self.experts.top(tokens, grouped=kernels.grouped)
        else:
            top = self._dense_top(tokens) + self._weight_gradient()
        scores = self.attention.scores_top(tokens)
        if not scores:
            return top
        # Backward of the scores begins when the feed-forward after them is gone.
        gone = self._dense() + self._mixed(kernels) + self._norms() // 2
        return max(top, scores - tokens * gone)

    def product_top(self, rows: int) -> int:
        """Bytes needed for a moment above what is kept while a packed projection is unpacked.

        The feed-forward's last one weighs most: its input or that one's gradient stands beside
        it; in a forward without adapters there also its output, the norm's, and the stream.
        """
        stored, b = StoredWeights(self.facts, self.settings), self.number_bytes
        if not stored.unpacked:
            return 0
        facts, again = self.facts, self.settings.recompute
        beside = facts.query_width if facts.experts else facts.ffn
        if not self._adapts(facts.family.mlp):
            more = 4 * facts.hidden if again else 8 * facts.hidden
        else:
            more = 0
        more -= 4 * facts.hidden * (again and b == 4)
        tokens = rows * self.settings.seq_len
        return stored.unpacked + max(stored.scales, tokens * (b * beside + more))

    @property
    def _rank(self) -> int:
        return self.settings.lora.rank if self.settings.lora else 0

    def _own_weights(self) -> int:
        """Copies of weights that every micro-batch keeps for itself: a full fine-tune in 16 bits
        casts its float32 weights, and experts in 4 bits are unpacked.
        """
        if not self.full:
            return StoredWeights(self.facts, self.settings).expert_copies()
        return 0 if self.number_bytes == 4 else 2 * sum(one.params for one in self.facts.linears)

    def _mixed(self, kernels: Kernels) -> int:
        return self.experts.saved_per_token(grouped=kernels.grouped) if self.experts else 0

    def _dense_top(self, tokens: int) -> int:
        """Gradients of feed-forward width that exist at once, in a micro-batch."""
        facts, b = self.facts, self.number_bytes
        hidden, ffn, wide = facts.hidden, facts.ffn, facts.family.wide_norm
        simple = not facts.family.gated and self._activation_keeps() == 1
        if self.full:
            return tokens * (
                (1 if simple else 2) * b * ffn - (8 * hidden if wide and b == 2 else 0)
            )
        if self._adapts(facts.family.mlp):
            return self._adapted_top(tokens, simple=simple)
        top = (2 if simple else 3) * b * ffn
        if wide:
            top = max(top - 4 * hidden, 20 * hidden if b == 2 else 0)
        return tokens * top

    def _adapted_top(self, tokens: int, *, simple: bool) -> int:
        """The same where the feed-forward carries adapters. In 16 bits an adapter's backward makes
        float32 twins of its input and of its output's gradient, some rows at a time.
        """
        facts, b = self.facts, self.number_bytes
        hidden, ffn, wide = facts.hidden, facts.ffn, facts.family.wide_norm
        out = self._adapts(facts.family.mlp[-1:])
        if b == 4:
            return tokens * ((8 if out or simple else 12) * ffn - 4 * hidden * wide)
        rows = min(tokens, TWIN_ROWS)
        if out:
            # The last projection keeps its own input, which is gone by the time of three gradients.
            top = tokens * (4 * ffn - 4 * hidden * wide)
            twins = rows * 4 * (ffn + hidden) + tokens * (2 * ffn - 2 * hidden * wide)
        else:
            top = tokens * ((4 if simple else 6) * ffn - 4 * hidden * wide)
            between = 2 * hidden * facts.family.gated
            twins = rows * 4 * ffn + tokens * (2 * ffn + between - 4 * hidden * wide)
        return max(top, twins, tokens * 20 * hidden * wide)

    def _weight_gradient(self) -> int:
        """A projection's gradient in the layers' format, before it is added up in float32."""
        return self.number_bytes * self.largest_trained if self.full else 0

    def _norms(self) -> int:
        facts, b = self.facts, self.number_bytes
        if facts.parallel:
            # Both norms read the same tensor; each keeps its own mean and deviation.
            norms = b * facts.hidden + 8 * facts.family.norms
        else:
            norms = facts.family.norms * _norm(facts, facts.hidden, b)
        if facts.family.qk_norm:
            norms += 4 * (facts.query_width + facts.kv_width) + 4 * (facts.heads + facts.kv_heads)
        if self.full and facts.family.rms_norm:
            kept = 4 if facts.family.wide_norm else b
            norms += kept * facts.family.norms * facts.hidden
            if facts.family.qk_norm:
                norms += kept * (facts.query_width + facts.kv_width)
        return norms

    def _dense(self) -> int:
        if self.facts.experts is not None:
            return 0
        gate = 2 if self.facts.family.gated else 0
        return self.number_bytes * self.facts.ffn * (self._activation_keeps() + gate)

    def _activation_keeps(self) -> int:
        return _ACTIVATION_KEEPS.get(self.facts.activation, _UNKNOWN_ACTIVATION_KEEPS)

    def _adapts(self, targets: tuple[str, ...]) -> bool:
        """Whether any of these projections carries an adapter."""
        return any(one.name in targets for one in self.adapted)

    def _adapters(self) -> int:
        """What the adapters keep: their input, once, whatever number of projections reads it."""
        facts, b = self.facts, self.number_bytes
        ins = sum(self._adapts(f[:-1]) for f in (facts.family.attention, facts.family.mlp))
        kept = b * facts.hidden * min(ins, facts.family.norms)
        copied = facts.family.joined_rotary or bool(facts.family.scores)
        if self._keeps_output() and copied:
            kept += b * facts.query_width
        if self._adapts(facts.family.mlp[-1:]):
            kept += b * facts.ffn
        return kept

    def _keeps_output(self) -> bool:
        """Whether the last projection of the attention keeps its input as it is."""
        return self.full or self._adapts(self.facts.family.attention[-1:])

    def _inputs(self) -> int:
        """What trainable projections keep: their inputs, where nobody else keeps them."""
        facts, b = self.facts, self.number_bytes
        copied = facts.family.joined_rotary or bool(facts.family.scores)
        norm_outputs = 1 if facts.family.norms == 1 or facts.experts else 2
        ffn = 0 if facts.experts else facts.ffn
        kept = b * (norm_outputs * facts.hidden + facts.query_width * copied + ffn)
        return kept + self._autocast_inputs()

    @cached_property
    def wide_stream_per_token(self) -> int:
        """More that a block keeps where the embeddings are float32 and it computes in 16 bits: on
        the first stage of such a full fine-tune the residual stream is float32.
        """
        facts, hidden = self.facts, self.facts.hidden
        if not self.full or self.number_bytes == 4:
            return 0
        readers = (1 if facts.family.fused_qkv else 3) + (2 if facts.family.gated else 1)
        outputs = 1 if facts.family.norms == 1 else 2
        casts = 2 * hidden * (readers - outputs)
        if facts.family.wide_norm:
            return casts
        if facts.family.rms_norm:
            return 2 * hidden * facts.family.norms  # the casts are there on every stage
        return 2 * hidden * (1 if facts.parallel else facts.family.norms) + casts

    def _autocast_inputs(self) -> int:
        """What float32 weights that compute in 16 bits add: an RMSNorm's output is float32 there,
        and every projection casts it for itself.
        """
        facts = self.facts
        if self.number_bytes == 4 or facts.family.wide_norm or not facts.family.rms_norm:
            return 0
        readers = (1 if facts.family.fused_qkv else 3) + (2 if facts.family.gated else 1)
        return 2 * facts.hidden * (readers - facts.family.norms)


def _norm(facts: ModelFacts, width: int, number_bytes: int) -> int:
    """A norm's input and its statistics. RMSNorm keeps a float32 input, LayerNorm its own."""
    return 4 * width + 4 if facts.family.rms_norm else number_bytes * width + 8
