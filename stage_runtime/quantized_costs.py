"""What frozen projections weigh when they are stored in 4 or 8 bits, and what using them takes.

Pure arithmetic; the sizes are those of bitsandbytes' own tensors (counted in tests).
Embeddings, head, norms, biases and routers are never quantized.
"""

from dataclasses import dataclass
from functools import cached_property

from stage_runtime.model_facts import ModelFacts
from transport.orders import TrainSettings

NUMBER_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

NF4_BLOCK = 64
"""Weights that share one scale."""
NF4_SCALE_BLOCK = 256
"""Scales that share one scale of their own: double quantization."""
_NF4_TABLES = 16 * 4 + 256 * 4 + 4  # the code's 16 values, the scales' 256, and their mean


@dataclass(frozen=True)
class StoredWeights:
    """Bytes of a layer's weights, and of the buffers that undo the quantization."""

    facts: ModelFacts
    settings: TrainSettings

    @property
    def number_bytes(self) -> int:
        """Of one parameter that is not quantized: a full fine-tune keeps float32."""
        return 4 if self.settings.method == "full" else NUMBER_BYTES[self.settings.dtype]

    def layer(self, layer: int) -> int:
        """One layer's weights as they lie in memory."""
        params, quantized = self.facts.layer_params[layer], 0
        for weights, outputs in self._quantized:
            params -= weights
            quantized += self._stored(weights, outputs)
        return self.number_bytes * params + quantized

    def buffer(self) -> int:
        """What using the largest projection takes: one exists unpacked at a time."""
        return self.unpacked + self.scales

    @cached_property
    def unpacked(self) -> int:
        """The largest projection once more in the compute format."""
        return 0 if self.settings.quantization == "none" else self.number_bytes * self._largest

    @cached_property
    def scales(self) -> int:
        """Its scales in float32: they exist until it is unpacked."""
        return 4 * self._largest // NF4_BLOCK if self.settings.quantization == "nf4" else 0

    @cached_property
    def _largest(self) -> int:
        return max(one.inputs * one.outputs for one in self.facts.linears)

    def expert_copies(self) -> int:
        """Whole experts of one layer in the compute format.

        Experts in 4 bits are unpacked when they are used, and their product keeps the unpacked
        tensor for backward: every micro-batch that waits holds one, unless it is recomputed.
        """
        experts = self.facts.experts
        if experts is None or self.settings.quantization != "nf4":
            return 0
        return self.number_bytes * experts.weight_params(self.facts.hidden)

    @cached_property
    def _quantized(self) -> list[tuple[int, int]]:
        """(weights, output rows) of each tensor of a layer that is quantized."""
        if self.settings.quantization == "none":
            return []
        found = [(one.inputs * one.outputs, one.outputs) for one in self.facts.linears]
        experts = self.facts.experts
        if experts is not None and self.settings.quantization == "nf4":
            # Fused experts have no 8-bit form: they stay as they are under int8.
            size = experts.count * experts.width * self.facts.hidden
            found += [(2 * size, 0), (size, 0)]
        return found

    def _stored(self, weights: int, outputs: int) -> int:
        if self.settings.quantization == "int8":
            return weights + 4 * outputs
        blocks = -(-weights // NF4_BLOCK)
        return -(-weights // 2) + blocks + 4 * -(-blocks // NF4_SCALE_BLOCK) + _NF4_TABLES
