"""How tensors cross one boundary, seen from one of its sides: as they are, or as codes.

The process group asks here what a frame must look like, and for its bytes. Does not know frames,
steps or plans.
"""

# N = tokens, W = values of a token, R = bytes of a token on the link

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stage_runtime.codecs.scaled import Codec
from stage_runtime.tensor_bytes import bytes_of, fill

Watch = Callable[[Tensor], None]
SLICE_BYTES = 8_000_000
"""The largest frame of what is sent before the first step."""


@dataclass(frozen=True)
class Crossing:
    """One side of a boundary. None for a codec: the layers' own numbers."""

    outward: Codec | None = None
    """Of activations towards the next stage, of gradients towards the previous one."""
    inward: Codec | None = None
    watch: Watch | None = None
    """Sees every tensor that is sent, before it is coded."""

    def on_wire(
        self, dtype: torch.dtype, shape: tuple[int, ...], *, outward: bool
    ) -> tuple[torch.dtype, tuple[int, ...]]:
        """What a tensor of this kind looks like on the link; the last dimension is a token's."""
        codec = self.outward if outward else self.inward
        if codec is None or not is_of_tokens(shape):
            return dtype, shape
        return torch.uint8, (*shape[:-1], codec.row_bytes)

    def encode(self, tensor: Tensor) -> memoryview:
        """The bytes of a tensor that is sent."""
        if not is_of_tokens(tensor.shape):
            return bytes_of(tensor)
        if self.watch is not None:
            self.watch(tensor)
        if self.outward is None:
            return bytes_of(tensor)
        return bytes_of(self.outward.encode(tensor.reshape(-1, tensor.shape[-1])))

    def decode(self, payload: memoryview, into: Tensor) -> None:
        """Fill a tensor with what was received, of exactly as many bytes as `on_wire` says."""
        if self.inward is None or not is_of_tokens(into.shape):
            fill(into, payload)
            return
        rows_NW = into.view(-1, into.shape[-1])
        codes_NR = torch.empty((len(rows_NW), self.inward.row_bytes), dtype=torch.uint8)
        fill(codes_NR, payload)
        self.inward.decode(codes_NR.to(into.device), rows_NW)


PLAIN = Crossing()


def is_of_tokens(shape: Sequence[int]) -> bool:
    """Whether a tensor holds activations or gradients; a piece of a table has one dimension and
    crosses as it is.
    """
    return len(shape) > 1


def slices(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """The tensors, large ones cut along their first dimension; views, so they can be filled."""
    for tensor in tensors:
        row_bytes = max(1, tensor.element_size() * tensor[0].numel())
        yield from torch.split(tensor, max(1, SLICE_BYTES // row_bytes))
