"""How large a frame may be that a stage lets in: what its plan announces, and no more."""

from collections.abc import Sequence
from math import prod
from typing import Final

from stage_runtime.process_group import TensorKind
from transport.frames import HEADER_BYTES

MIN_FRAME_BYTES: Final = 32 * 1024
_TABLE_BYTES: Final = {"rotation": 2, "learned": 4}
"""Of a number in the tables that cross before step 1."""


def largest_frame(kinds: Sequence[TensorKind], compression: str) -> int:
    """Bytes of the largest frame that may come: what a link lets in, and no more.

    Twice the largest tensor, for codecs whose tables are larger than a small tensor. A rotation's
    basis is at most a square of the hidden width in 16 bits; a bottleneck's first components are
    at most one in float32.
    """
    sizes = [prod(kind.shape) * kind.dtype.itemsize for kind in kinds]
    sizes.append(_TABLE_BYTES.get(compression, 0) * kinds[0].shape[-1] ** 2)
    return HEADER_BYTES + 2 * max(*sizes, MIN_FRAME_BYTES)
