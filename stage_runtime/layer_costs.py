"""What one block keeps for its backward, byte by byte, and what it needs for a moment on top.

Pure arithmetic on model facts. Counted against the real classes of transformers and peft
(tests/unit/stage_runtime/test_costs.py): every term is a tensor that autograd saves.
Memory inside kernels is not counted here: it is workspace (stage_runtime.costs).

h hidden width, f feed-forward width, q heads x head size, kv key-value heads x head size,
b bytes of one number in the layers' format; all terms below are bytes per token.
"""

from dataclasses import dataclass
from functools import cached_property

from stage_runtime.model_facts import Linear, ModelFacts
from transport.orders import TrainSettings

NUMBER_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

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
class LayerCosts:
    """Prices of one block of a model under one job's settings."""

    facts: ModelFacts
    settings: TrainSettings

    @cached_property
    def number_bytes(self) -> int:
        """Bytes of one number of weights and activations."""
        return NUMBER_BYTES[self.settings.dtype]

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
        rank = self.settings.lora.rank if self.settings.lora else 0
        return sum(rank * (one.inputs + one.outputs) for one in self.adapted)

    @cached_property
    def adapter_tensors(self) -> int:
        """A and B of each adapted projection."""
        return 2 * len(self.adapted)

    @cached_property
    def saved_per_token(self) -> int:
        """Kept from a block's forward until its backward, without recompute."""
        saved = self._norms() + self._attention() + self._feed_forward()
        return saved + (self._adapters() if self.settings.method == "lora" else self._inputs())

    @cached_property
    def unkept_by_first_block(self) -> int:
        """Not kept by the model's first block when the embeddings are frozen: nothing flows back
        through its first norm, nor through a feed-forward that stands beside the attention.
        """
        norm = _norm(self.facts, self.facts.hidden, self.number_bytes)
        if not self.facts.parallel or self._adapts(self.facts.family.mlp):
            return norm
        return self._norms() + self._feed_forward()

    @cached_property
    def keeps_input(self) -> bool:
        """Whether a stage's first norm keeps the received input itself, not a copy of it."""
        if self.facts.learned_positions:
            return False  # its class adds positions, zero here, and so makes a new tensor
        return self.number_bytes == 4 or not self.facts.family.rms_norm

    @cached_property
    def final_norm_per_token(self) -> int:
        """Kept by the norm before the head."""
        full = self.settings.method == "full" and self.facts.family.rms_norm
        norm = _norm(self.facts, self.facts.hidden, self.number_bytes)
        return norm + 4 * self.facts.hidden * full

    def slides_in(self, first: int, last: int) -> int:
        """A sliding layer of these, if there is one; else the first."""
        layers = range(first, last + 1)
        return next((i for i in layers if self._masked(i)), first)

    def saved_by_layer(self, layer: int, rows: int, *, flash: bool = True) -> int:
        """Bytes that a layer keeps for one micro-batch of `rows` sequences.

        flash: shared key-value heads stay shared in the kernel. Where not, and wherever there is
        a mask, they are repeated first.
        """
        seq_len = self.settings.seq_len
        saved = rows * seq_len * self.saved_per_token
        masked = self._masked(layer)
        if masked:
            # The boolean mask becomes a bias in the layers' format, and the kernel keeps it.
            saved += rows * seq_len * seq_len * self.number_bytes
        if masked or not flash:
            repeated = 2 * (self.facts.query_width - self.facts.kv_width)
            saved += rows * seq_len * repeated * self.number_bytes
        return saved + self._cast_weights()

    def _masked(self, layer: int) -> bool:
        window = self.facts.window
        slides = self.facts.layer_types[layer] == "sliding_attention"
        return slides and window is not None and self.settings.seq_len >= window

    def _cast_weights(self) -> int:
        """A full fine-tune in 16 bits keeps each micro-batch's own 16-bit copy of the weights."""
        if self.settings.method == "lora" or self.number_bytes == 4:
            return 0
        return 2 * sum(one.params for one in self.facts.linears)

    @cached_property
    def top_per_token(self) -> int:
        """Needed for a moment in a block's backward, above what is kept."""
        facts, b = self.facts, self.number_bytes
        hidden, ffn = facts.hidden, facts.ffn
        if self._adapts(facts.family.mlp):
            return 8 * ffn if b == 4 else 6 * ffn + 2 * hidden * facts.family.gated
        simple = not facts.family.gated and self._activation_keeps() == 1
        top = (2 if simple else 3) * b * ffn
        if facts.family.wide_norm:
            return max(top - 4 * hidden, 20 * hidden if b == 2 else 0)
        return top

    def _norms(self) -> int:
        facts, b = self.facts, self.number_bytes
        if facts.parallel:
            # Both norms read the same tensor; each keeps its own mean and deviation.
            norms = b * facts.hidden + 8 * facts.family.norms
        else:
            norms = facts.family.norms * _norm(facts, facts.hidden, b)
        if facts.family.qk_norm:
            norms += 4 * (facts.query_width + facts.kv_width) + 4 * (facts.heads + facts.kv_heads)
        if self.settings.method == "full" and facts.family.rms_norm:
            kept = 4 if facts.family.wide_norm else b
            norms += kept * facts.family.norms * facts.hidden
            if facts.family.qk_norm:
                norms += kept * (facts.query_width + facts.kv_width)
        return norms

    def _attention(self) -> int:
        """Queries, keys, values, the output, and one float32 sum a head."""
        facts, b = self.facts, self.number_bytes
        queries, keys = facts.query_width, facts.kv_width
        kept = b * (2 * queries + 2 * keys) + 4 * facts.heads
        if facts.family.fused_qkv and facts.family.joined_rotary:
            kept += b * (queries + keys)  # the values keep the whole fused projection alive
        return kept

    def _feed_forward(self) -> int:
        gate = 2 if self.facts.family.gated else 0
        return self.number_bytes * self.facts.ffn * (self._activation_keeps() + gate)

    def _activation_keeps(self) -> int:
        return _ACTIVATION_KEEPS.get(self.facts.activation, _UNKNOWN_ACTIVATION_KEEPS)

    def _adapts(self, targets: tuple[str, ...]) -> bool:
        """Whether any of these projections carries an adapter."""
        return any(one.name in targets for one in self.adapted)

    def _adapters(self) -> int:
        """What the adapters keep: their float32 input, and the output of A."""
        facts = self.facts
        rank = self.settings.lora.rank if self.settings.lora else 0
        kept = 4 * rank * len(self.adapted)
        if self.number_bytes == 2:
            # peft copies the input to float32 once for each adapted projection.
            return kept + 4 * sum(one.inputs for one in self.adapted)
        ins = sum(self._adapts(f[:-1]) for f in (facts.family.attention, facts.family.mlp))
        kept += 4 * facts.hidden * min(ins, facts.family.norms)
        if self._adapts(facts.family.attention[-1:]) and facts.family.joined_rotary:
            kept += 4 * facts.query_width
        if self._adapts(facts.family.mlp[-1:]):
            kept += 4 * facts.ffn
        return kept

    def _inputs(self) -> int:
        """What trainable projections keep: their inputs, where nobody else keeps them."""
        facts, b = self.facts, self.number_bytes
        copied = facts.query_width if facts.family.joined_rotary else 0
        norm_outputs = 1 if facts.family.norms == 1 else 2
        return b * (norm_outputs * facts.hidden + copied + facts.ffn) + self._autocast_inputs()

    def _autocast_inputs(self) -> int:
        """What float32 weights that compute in 16 bits add: a norm's output is float32 there, and
        every projection casts it for itself; LayerNorm casts its own input too.
        """
        facts = self.facts
        if self.number_bytes == 4 or facts.parallel or facts.family.wide_norm:
            return 0
        if not facts.family.rms_norm:
            return 4 * facts.hidden
        readers = (1 if facts.family.fused_qkv else 3) + (2 if facts.family.gated else 1)
        return 2 * facts.hidden * (readers - facts.family.norms)


def _norm(facts: ModelFacts, width: int, number_bytes: int) -> int:
    """A norm's input and its statistics. RMSNorm keeps a float32 input, LayerNorm its own."""
    return 4 * width + 4 if facts.family.rms_norm else number_bytes * width + 8
