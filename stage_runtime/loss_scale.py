"""Dynamic loss scaling for float16: gradients are kept where the format can hold them.

float16 loses what is below 6e-8 and overflows above 65,504, so the loss is multiplied before
backward and gradients are divided before the update. Every stage follows the same verdicts with the
same rule, so all agree on the factor without telling each other. Weights that train are float32.

Source of the method: Micikevicius et al. 2018, "Mixed Precision Training".
"""

import re
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

    def told(self) -> str:
        """As a saved state keeps it; "" for formats that need none."""
        return f"{self.value!r} {self.good_steps}" if self.moves else ""

    def go_on(self, told: str) -> None:
        """Take what a saved state kept; one from before it was kept leaves the factor as it is.

        Raises:
            SwarmError: invalid-input; it is no factor.
        """
        if not self.moves or not told:
            return
        found = re.fullmatch(r"([0-9.e+-]{1,32}) ([0-9]{1,6})", told)
        value = _number(found[1]) if found else 0.0
        if not LEAST <= value <= MOST:
            raise SwarmError(
                "invalid-input",
                f"the saved step holds {told[:40]!r} as its loss scale",
                hint="resume from another saved step, or train it again",
            )
        self.value, self.good_steps = value, int(found[2]) if found else 0

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


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
