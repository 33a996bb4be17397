"""Dynamic loss scaling for float16: gradients are kept where the format can hold them.

float16 loses what is below 6e-8 and overflows above 65,504, so the loss is multiplied before
backward and gradients are divided before the update. Every stage follows the same verdicts with the
same rule, so all agree on the factor without telling each other. Weights that train are float32.

Source of the method: Micikevicius et al. 2018, "Mixed Precision Training".
"""

from dataclasses import dataclass

from transport.errors import SwarmError

FIRST = 2.0**16
MOST = 2.0**24
LEAST = 2.0**-8
"""Below this the gradients themselves are the trouble, not their format."""
GROW_AFTER = 200
"""Good updates in a row before the factor doubles."""


@dataclass
class LossScale:
    """The factor of the next step; 1 for formats that need none."""

    value: float = 1.0
    good_steps: int = 0
    """Since the factor last changed."""
    moves: bool = False

    @classmethod
    def of(cls, dtype: str) -> "LossScale":
        """The factor at the start of a run in this format."""
        return cls(FIRST, moves=True) if dtype == "float16" else cls()

    def took(self, *, overflowed: bool) -> None:
        """Follow a step's verdict: half the factor after an overflow, twice after many good steps.

        Raises:
            SwarmError: stage-failed; gradients overflow whatever the factor is.
        """
        if not self.moves:
            return
        if overflowed:
            self.value, self.good_steps = self.value / 2, 0
            if self.value < LEAST:
                raise SwarmError(
                    "stage-failed",
                    f"gradients overflow float16 even with the loss scaled by {LEAST}",
                    hint="train in bfloat16 or float32, or lower the learning rate",
                )
            return
        self.good_steps += 1
        if self.good_steps >= GROW_AFTER:
            self.value, self.good_steps = min(MOST, 2 * self.value), 0
