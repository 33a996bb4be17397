"""What a rotation is made of: principal components of what was seen, and bits for each of them.

Computed on the CPU in float64 from the tensors that the sender itself sends, and handed to the
receiver: two machines that computed it apart could not agree on vectors of nearly equal variance.
"""

# N = tokens, D = hidden width, P = components (D, filled up to a multiple of 8), S = sample,
# G = groups of eight components

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from stage_runtime.codecs.scaled import chunks
from stage_runtime.codecs.sizes import (
    GROUP,
    SAMPLE_ROWS,
    SCALE_BYTES,
    num_components,
    rotation_row_bytes,
)
from transport.errors import SwarmError

UNIFORM_STEPS = (1.596, 0.9957, 0.586, 0.3352, 0.1881, 0.1041, 0.0569, 0.0308, 0.0165, 0.0088,
                 0.0047, 0.0025)  # fmt: skip
"""Best step of a uniform quantizer with 1, 2, ... bits for a Gaussian of variance 1 (Max 1960)."""
STRETCHES = (0.7, 0.85, 1.0, 1.25, 1.6, 2.0, 3.0, 4.5)
"""Tails are heavier than Gaussian: the sample says how much wider a step should be."""
MOST_BITS = len(UNIFORM_STEPS)
COMPONENTS = 128
"""Fitted at once: it bounds what the fit needs for a moment."""
HELD_BACK = 0.125
"""Of the rows, drawn: they say how far the others' components carry, and are no part of them."""
LOOK_AHEAD = 3


@dataclass(frozen=True)
class Basis:
    """Both ends of a link hold the same one, to the bit."""

    mean: Tensor
    """float32 (D)."""
    vectors: Tensor
    """float16 (D, P), orthonormal columns, those with the most bits first."""
    spread: Tensor
    """float32 (P): the usual size of a component beside its token's scale."""
    step: Tensor
    """float32 (P): distance of two codes, in units of the spread."""
    bits: Tensor
    """uint8 (G)."""

    def tensors(self) -> list[Tensor]:
        """In a fixed order, for sending and filling."""
        return [self.mean, self.vectors, self.spread, self.step, self.bits]

    def named(self, prefix: str) -> dict[str, Tensor]:
        """For a file."""
        return {
            f"{prefix}{name}": tensor for name, tensor in zip(NAMES, self.tensors(), strict=True)
        }

    def check(self, row_bytes: int) -> None:
        """Refuse what no `fit` gives: it came from a neighbour, or from a file.

        Raises:
            SwarmError: stage-failed.
        """
        bits = self.bits.long()
        used = SCALE_BYTES + int(bits.sum())
        is_falling = bool((bits[1:] <= bits[:-1]).all())
        numbers = (self.mean, self.vectors, self.spread, self.step)
        is_finite = all(bool(one.isfinite().all()) for one in numbers)
        is_sized = bool((self.spread > 0).all()) and bool((self.step > 0).all())
        if used > row_bytes or int(bits.max()) > MOST_BITS or not (is_falling and is_finite):
            raise _unfit(f"{used} of {row_bytes} bytes a token, at most {int(bits.max())} bits")
        if not is_sized:
            raise _unfit("a step or spread that is not above 0")

    @classmethod
    def of(cls, named: Mapping[str, Tensor], prefix: str, hidden: int) -> "Basis | None":
        """From a file; None when it is not there.

        Raises:
            SwarmError: invalid-input; a tensor of another shape or format.
        """
        if f"{prefix}{NAMES[0]}" not in named:
            return None
        found = [named.get(f"{prefix}{name}") for name in NAMES]
        for name, one, due in zip(NAMES, found, empty_basis(hidden).tensors(), strict=True):
            if one is None or one.shape != due.shape or one.dtype != due.dtype:
                raise SwarmError(
                    "invalid-input",
                    f"the saved basis {prefix}{name} is not {due.dtype} {list(due.shape)}",
                    hint="start from another snapshot, or begin the job anew",
                )
        return cls(*(one for one in found if one is not None))


def _unfit(what: str) -> SwarmError:
    return SwarmError(
        "stage-failed",
        f"the basis of a boundary's codes is none: {what}",
        hint="run the same version of Swarm on every fellow; if it is, one of them misbehaves",
    )


NAMES = ("mean", "vectors", "spread", "step", "bits")


def empty_basis(hidden: int) -> Basis:
    """Of the right shapes, to be filled."""
    wide = num_components(hidden)
    return Basis(
        torch.empty(hidden),
        torch.empty((hidden, wide), dtype=torch.float16),
        torch.empty(wide),
        torch.empty(wide),
        torch.empty(wide // GROUP, dtype=torch.uint8),
    )


@dataclass
class Seen:
    """Statistics of the rows that crossed: their covariance, and some of them as they are."""

    hidden: int
    is_centred: bool
    """Activations have a mean; gradients are taken around zero, so that zero stays zero."""
    holds_back: bool = True
    """Whether some rows are kept as they are, for `fit`."""
    count: int = 0
    rows: int = 0
    total: Tensor = field(init=False)
    """float64 (D)."""
    outer: Tensor = field(init=False)
    """float64 (D, D): the sum of the rows' products with themselves."""
    sample: list[Tensor] = field(default_factory=list)
    sampled: int = 0
    draw: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def __post_init__(self) -> None:
        self.total = torch.zeros(self.hidden, dtype=torch.float64)
        self.outer = torch.zeros((self.hidden, self.hidden), dtype=torch.float64)

    def add(self, tensor: Tensor) -> None:
        """Take in rows; those that are zero throughout say nothing.

        Raises:
            SwarmError: stage-failed when a value is not finite.
        """
        rows_ND = tensor.detach().reshape(-1, tensor.shape[-1])
        for rows in chunks(len(rows_ND)):
            self._add(rows_ND[rows].cpu().double())

    def _add(self, rows_ND: Tensor) -> None:
        most_N = rows_ND.abs().amax(-1)
        if not bool(most_N.isfinite().all()):
            raise SwarmError(
                "stage-failed",
                "a value is not finite before the first step: the codes cannot be calibrated",
                hint="train in float32 or bfloat16, or without compression",
            )
        rows_ND = rows_ND[most_N > 0]
        share = HELD_BACK if self.holds_back else 0.0
        held = torch.rand(len(rows_ND), generator=self.draw) < share
        self.rows += len(rows_ND)
        if self.sampled < SAMPLE_ROWS:
            self.sample.append(rows_ND[held].float())
            self.sampled += int(held.sum())
        seen_ND = rows_ND[~held]
        self.count += len(seen_ND)
        self.total += seen_ND.sum(0)
        self.outer.addmm_(seen_ND.T, seen_ND)

    def take_sample(self) -> Tensor:
        """The rows held back, float32; once only."""
        sample, self.sample = torch.cat(self.sample)[:SAMPLE_ROWS], []
        return sample

    def components(self) -> tuple[Tensor, Tensor]:
        """(mean (D), eigenvectors (D, D) as columns, the largest first), float64. Once only.

        Raises:
            SwarmError: invalid-input when too little was seen.
        """
        if self.count < 2 or not (self.sampled or not self.holds_back):
            raise SwarmError(
                "invalid-input",
                f"the data gives {self.rows} tokens to calibrate the codes on, which is too few",
                hint="add data, or use compression.kind fixed_int8",
            )
        mean_D = self.total / self.count if self.is_centred else torch.zeros_like(self.total)
        # In place, and let go before the vectors are turned: each matrix is 8 bytes a value.
        covariance_DD, self.outer = self.outer.div_(self.count), torch.empty(0)
        covariance_DD.addr_(mean_D, mean_D, alpha=-1)
        vectors_DD = torch.linalg.eigh(covariance_DD).eigenvectors
        del covariance_DD
        return mean_D, vectors_DD.flip(1)


def fit(seen: Seen, bits: int) -> Basis:
    """The basis for a rate of `bits` a value on average, a token's scale included.

    Bits go, one a group at a time, to where the sample's squared error falls most: reverse
    water-filling (Cover & Thomas, Elements of Information Theory, 10.3.3) on what was measured.
    """
    mean_D, vectors_DD = seen.components()
    vectors_DP = torch.nn.functional.pad(
        vectors_DD, (0, num_components(seen.hidden) - seen.hidden)
    ).half()
    del vectors_DD
    unit_SP = (seen.take_sample() - mean_D.float()) @ vectors_DP.float()
    order = unit_SP.square().mean(0).argsort(descending=True, stable=True)
    unit_SP, vectors_DP = unit_SP[:, order], vectors_DP[:, order].contiguous()
    budget = rotation_row_bytes(seen.hidden, bits) - SCALE_BYTES
    kept_P = torch.ones(len(order), dtype=torch.bool)
    spread_P = _spread(unit_SP)
    unit_SP /= spread_P
    for _ in range(2):  # the scale is of the components that get bits, which follow from the scale
        errors_BP, steps_BP = _errors(unit_SP, scale_of(unit_SP, kept_P))
        bits_G = _pour(errors_BP * spread_P.square(), budget)
        bits_P = bits_G.repeat_interleave(GROUP)
        kept_P = bits_P > 0
    step_P = steps_BP.gather(0, bits_P[None])[0]
    by_bits = bits_P.argsort(descending=True, stable=True)  # groups stay together
    return Basis(
        mean_D.float(),
        vectors_DP[:, by_bits].contiguous(),
        spread_P[by_bits],
        step_P[by_bits],
        bits_G.sort(descending=True).values.to(torch.uint8),
    )


def scale_of(unit_NP: Tensor, kept_P: Tensor) -> Tensor:
    """(N, 1): root mean square of a token's components that get bits, each in its own unit."""
    kept = kept_P.to(unit_NP.dtype)
    return ((unit_NP.square() @ kept) / kept.sum().clamp(min=1)).sqrt()[:, None]


def _spread(values_SP: Tensor) -> Tensor:
    spread = values_SP.square().mean(0).sqrt()
    return spread.clamp(min=float(spread.max()) * 1e-6 + 1e-30)


def _errors(unit_SP: Tensor, scale_S1: Tensor) -> tuple[Tensor, Tensor]:
    """(mean squared error, best step) of each component at 0, 1, ... bits: both (B, P)."""
    parts = [
        _errors_of(unit_SP[:, some] / scale_S1) for some in chunks(unit_SP.shape[1], COMPONENTS)
    ]
    errors, steps = zip(*parts, strict=True)
    return torch.cat(errors, dim=1), torch.cat(steps, dim=1)


def _errors_of(unit_SP: Tensor) -> tuple[Tensor, Tensor]:
    errors, steps = [unit_SP.square().mean(0)], [torch.ones(unit_SP.shape[1])]
    for bits, usual in enumerate(UNIFORM_STEPS, start=1):
        top = 2.0 ** (bits - 1)
        found, best = errors[-1].clone(), torch.full_like(errors[0], usual)
        for stretch in STRETCHES:
            step = usual * stretch
            codes = (unit_SP / step).floor_().clamp_(-top, top - 1).add_(0.5).mul_(step)
            error = codes.sub_(unit_SP).square_().mean(0)
            better = error < found
            found[better], best[better] = error[better], step
        errors.append(found)
        steps.append(best)
    return torch.stack(errors), torch.stack(steps)


def _pour(errors_BP: Tensor, budget: int) -> Tensor:
    """Bits of each group, in all exactly `budget` bytes a token, falling from group to group."""
    errors_GB = errors_BP.T.reshape(-1, GROUP, len(errors_BP)).sum(1)
    most = errors_GB.shape[1] - 1
    gains_JGB = torch.stack([
        torch.nn.functional.pad(errors_GB[:, :-j] - errors_GB[:, j:], (0, j)) / j
        for j in range(1, LOOK_AHEAD + 1)
    ])  # fmt: skip
    gains_GB = gains_JGB.amax(0)
    gains_GB[:, most] = -1.0
    bits_G = torch.zeros(len(errors_GB), dtype=torch.int64)
    for _ in range(min(budget, most * len(bits_G))):
        bits_G[gains_GB.gather(1, bits_G[:, None])[:, 0].argmax()] += 1
    return bits_G
