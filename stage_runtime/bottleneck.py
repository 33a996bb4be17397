"""A learned bottleneck: what crosses a boundary is squeezed to fewer values and rebuilt behind it.

Two trained projections at each boundary, float32: the stage before it holds the one that squeezes,
the stage behind it the one that rebuilds. They start as principal components of what crosses. What
is rebuilt has the layers' dtype. The 8-bit codes on the link are the process group's business.
"""

# B = sequences, T = tokens, D = hidden width, K = values of a token that cross

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from stage_runtime.codecs.basis import Seen
from transport.orders import StageOrder


class Projection(nn.Module):
    """inputs -> outputs, computed in float32, given in the layers' dtype."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.dtype = dtype

    def forward(self, hidden: Tensor) -> Tensor:
        return functional.linear(hidden.float(), self.weight, self.bias).to(self.dtype)


@dataclass
class Bottleneck:
    """A stage's projections, and whether what crosses goes through them."""

    encoder: Projection | None
    """None on the last stage."""
    decoder: Projection | None
    """None on the first stage."""
    dim: int
    is_on: bool = False
    """False: hidden states cross at full width, as they do while it is calibrated."""

    def squeeze(self, hidden_BTD: Tensor) -> Tensor:
        """(B, T, K) where the next stage expects it; else what was given."""
        return self.encoder(hidden_BTD) if self.is_on and self.encoder else hidden_BTD

    def rebuild(self, given: Tensor) -> Tensor:
        """(B, T, D) of what came from the previous stage; else what was given."""
        return self.decoder(given) if self.is_on and self.decoder else given

    def width(self, hidden: int, *, inward: bool) -> int:
        """Values a token that the engine takes from (inward) or gives to a neighbour."""
        projection = self.decoder if inward else self.encoder
        return self.dim if self.is_on and projection is not None else hidden


@dataclass(frozen=True)
class Components:
    """Where a bottleneck starts: the principal components of what crosses, float32."""

    mean: Tensor
    """(D)."""
    vectors: Tensor
    """(D, K), orthonormal columns, the largest variance first."""

    def squeezing(self, into: Projection) -> None:
        """Start the projection before the boundary."""
        with torch.no_grad():
            into.weight.copy_(self.vectors.T)
            into.bias.copy_(-(self.vectors.T @ self.mean))

    def rebuilding(self, into: Projection) -> None:
        """Start the projection behind it."""
        with torch.no_grad():
            into.weight.copy_(self.vectors)
            into.bias.copy_(self.mean)


def make_bottleneck(
    order: StageOrder, hidden: int, dtype: torch.dtype, devices: list[torch.device]
) -> Bottleneck | None:
    """The projections of a stage, all zero; None where the settings ask for none."""
    asked = order.settings.compression
    if asked.kind != "learned" or order.num_stages == 1:
        return None
    encoder = None if order.is_last else Projection(hidden, asked.dim, dtype).to(devices[-1])
    decoder = None if order.is_first else Projection(asked.dim, hidden, dtype).to(devices[0])
    return Bottleneck(encoder, decoder, asked.dim)


def named(bottleneck: Bottleneck, order: StageOrder) -> dict[str, nn.Parameter]:
    """What it trains, by global names: "boundary.LAYER.encoder.weight", LAYER the one behind it."""
    found: dict[str, nn.Parameter] = {}
    ends = ((order.last_layer + 1, "encoder"), (order.first_layer, "decoder"))
    for layer, side in ends:
        projection = getattr(bottleneck, side)
        if projection is not None:
            found |= {f"boundary.{layer}.{side}.{n}": w for n, w in projection.named_parameters()}
    return found


def components_of(seen: Seen, dim: int) -> Components:
    """The first `dim` principal components, and the mean, of what a stage sent.

    Raises:
        SwarmError: invalid-input when too little was seen.
    """
    mean_D, vectors_DD = seen.components()
    return Components(mean_D.float(), vectors_DD[:, :dim].float().contiguous())


def empty_components(hidden: int, dim: int) -> Components:
    """Of the right shapes, to be filled."""
    return Components(torch.empty(hidden), torch.empty((hidden, dim)))
