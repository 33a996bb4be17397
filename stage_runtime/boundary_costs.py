"""What the boundaries of a stage cost on a card: buffers, codecs, projections, calibration.

Pure arithmetic, no torch. `stage_runtime.costs` adds it to the price of a place.
"""

# D = hidden width, K = values of a token of a learned bottleneck

from dataclasses import dataclass
from functools import cached_property

from stage_runtime.codecs.sizes import BoundarySizes
from stage_runtime.model_facts import ModelFacts
from stage_runtime.quantized_costs import NUMBER_BYTES
from transport.orders import TrainSettings


@dataclass(frozen=True)
class BoundaryCosts:
    """Of one job. `inward`: the card takes what the previous stage gives; `outward`: it gives to
    the next one.
    """

    facts: ModelFacts
    settings: TrainSettings

    @cached_property
    def sizes(self) -> BoundarySizes:
        """Bytes on the link, and of codecs."""
        return BoundarySizes(self.settings.compression, self.facts.hidden)

    @cached_property
    def learned(self) -> bool:
        """Whether projections stand at the boundary."""
        return self.settings.compression.kind == "learned"

    @cached_property
    def tokens(self) -> int:
        """Of a micro-batch."""
        return self.settings.batch_size // self.settings.micro_batches * self.settings.seq_len

    @cached_property
    def number_bytes(self) -> int:
        """Of what crosses."""
        return NUMBER_BYTES[self.settings.dtype]

    @cached_property
    def crossing_bytes(self) -> int:
        """One micro-batch as the engine takes it from, or gives it to, a link."""
        return self.tokens * self.sizes.width * self.number_bytes

    def constants(self, inward: bool, outward: bool) -> int:
        """What codecs hold all the time."""
        return (inward + outward) * self.sizes.constant_bytes

    def coding(self, inward: bool, outward: bool) -> int:
        """What coding a micro-batch needs for a moment: some tokens in float32, and its codes."""
        if not (inward or outward) or self.settings.compression.kind == "none":
            return 0
        rows = self.tokens * self.sizes.row_bytes(self.number_bytes)
        return self.sizes.codec_bytes(self.tokens, self.number_bytes) + rows

    def params(self, inward: bool, outward: bool) -> int:
        """Trained parameters of the projections: K x D and their biases."""
        if not self.learned:
            return 0
        hidden, dim = self.facts.hidden, self.settings.compression.dim
        return inward * hidden * (dim + 1) + outward * dim * (hidden + 1)

    def tensors(self, inward: bool, outward: bool) -> int:
        """Trained tensors: a weight and a bias each."""
        return 2 * (inward + outward) * self.learned

    def largest(self, inward: bool, outward: bool) -> int:
        """Parameters of the largest trained tensor."""
        there = self.learned and (inward or outward)
        return self.facts.hidden * self.settings.compression.dim if there else 0

    def kept(self, inward: bool, outward: bool) -> int:
        """What projections keep of a micro-batch for their own gradients: their input in float32,
        where it is not a buffer of the engine already.
        """
        if not self.learned:
            return 0
        taken = 4 * self.settings.compression.dim if self.number_bytes < 4 else 0
        return self.tokens * (inward * taken + outward * 4 * self.facts.hidden)

    def seen(self, inward: bool, outward: bool) -> int:
        """What a calibration holds on a CPU card while batches run."""
        match self.settings.compression.kind:
            case "rotation":
                return (inward + outward) * self.sizes.seen_bytes
            case "learned":
                return outward * 8 * self.facts.hidden**2
            case _:
                return 0

    def fitting(self, inward: bool, outward: bool) -> int:
        """What it holds on top of that while a basis is made, when activations are gone."""
        match self.settings.compression.kind:
            case "rotation":
                return self.sizes.fit_bytes
            case "learned":
                return outward * 8 * self.facts.hidden**2
            case _:
                return 0
