"""What a mixture of experts keeps for its backward, and what it needs for a moment on top.

Pure arithmetic; every term is a tensor counted in transformers' own expert code
(tests/oracle/memory_oracle.py). A token is copied to each of its experts: S = K x tokens copies.

h hidden width, I expert width, K experts per token, E experts, b bytes of a number.
"""

from dataclasses import dataclass

from stage_runtime.model_facts import ExpertFacts, ModelFacts

COPY_BYTES = 34
"""Of each copy: where it came from, where it goes back, and the weight that it is mixed with."""


@dataclass(frozen=True)
class ExpertCosts:
    """Prices of the mixture in one block."""

    facts: ModelFacts
    experts: ExpertFacts
    number_bytes: int
    full: bool
    """Whether the experts themselves train."""

    def saved_per_token(self, *, grouped: bool) -> int:
        """Kept from forward to backward: gate, up and their product's parts, and the outputs."""
        hidden, width, b = self.facts.hidden, self.experts.width, self.number_bytes
        kept = b * (3 * width + hidden) + COPY_BYTES
        if self.facts.family.clamped_experts:
            kept += b * 3 * width  # the clamped gate and up, and the sigmoid
        if self.full or not grouped:
            kept += b * (hidden + width)  # the inputs of both products
        router = 4 * self.experts.count + (b * hidden if self.full else 0)
        return self.experts.per_token * kept + router

    def top(self, tokens: int, *, grouped: bool) -> int:
        """The most that backward, or the end of a repeated forward, needs above what is kept."""
        hidden, width, b = self.facts.hidden, self.experts.width, self.number_bytes
        copies = self.experts.per_token * tokens
        clamped = self.facts.family.clamped_experts
        inner = (4 * b + 1) * width if clamped else b * max(0, 3 * width - hidden)
        outer = b * (3 * hidden + (2 * width if clamped else 0))
        moments = [copies * inner + b * hidden * tokens * clamped]
        moments.append(copies * outer + 2 * b * hidden * tokens)
        if b == 2 and self.facts.family.wide_mixing:
            # An output's gradient, its product with the weight, their sum, and one in 16 bits.
            moments.append(copies * 14 * hidden)
        if not grouped or self.full:
            # A gradient for all experts arises, though they may be frozen.
            pair = 2 * self.experts.count * width * hidden
            moments.append(b * pair - copies * 2 * b * width)
            moments.append(b * pair // 2 + copies * b * width)
        return max(moments)
