"""The rotation: a token in its principal components, each with its own bits, and one scale.

Full width and nothing trained: it belongs to no boundary's weights, so a run that uses it can be
split again. Tokens are coded one by one. One that is not finite stays so: its scale says it.
"""

# N = tokens, D = hidden width, P = components, K = those that have bits, R = bytes of a token

import torch
from torch import Tensor

from stage_runtime.codecs.basis import Basis
from stage_runtime.codecs.packing import pack, unpack
from stage_runtime.codecs.scaled import chunks, fitted, read_scale, scale_bytes, scale_up
from stage_runtime.codecs.sizes import GROUP, SCALE_BYTES


class RotationCodec:
    """Codes of a basis; bytes of the planned row that no component needs stay zero."""

    def __init__(self, basis: Basis, row_bytes: int, device: torch.device) -> None:
        self._row_bytes, self._device = row_bytes, device
        self._basis = Basis(
            basis.mean.to(device),
            basis.vectors.to(device, torch.float32),
            basis.spread.to(device),
            basis.step.to(device),
            basis.bits,
        )
        # A basis has its components in falling order of bits.
        self._bits = [int(bits) for bits in basis.bits if bits]
        self._used = SCALE_BYTES + sum(self._bits)
        assert self._used <= row_bytes
        count = GROUP * len(self._bits)
        bits_K = basis.bits[: len(self._bits)].repeat_interleave(GROUP)
        spread_K, width_K = basis.spread[:count], (basis.spread * basis.step)[:count]
        half_K = 2.0 ** (bits_K.float() - 1)
        self._vectors_DK = self._basis.vectors[:, :count]
        self._share_K = (1 / (count * spread_K.square())).to(device)
        self._width_K, self._inverse_K = width_K.to(device), (1 / width_K).to(device)
        self._half_K, self._top_K = half_K.to(device), (2 * half_K - 1).to(device)
        self._lowest_K = ((0.5 - half_K) * width_K).to(device)
        self._zero = torch.zeros((), device=device)

    def basis(self) -> Basis:
        """What it was made of, on the CPU, to the bit."""
        of = self._basis
        return Basis(
            of.mean.cpu(), of.vectors.half().cpu(), of.spread.cpu(), of.step.cpu(), of.bits
        )

    @property
    def row_bytes(self) -> int:
        """As planned."""
        return self._row_bytes

    def encode(self, rows_ND: Tensor) -> Tensor:
        """uint8 (N, R)."""
        codes_NR = torch.zeros(
            (len(rows_ND), self._row_bytes), dtype=torch.uint8, device=self._device
        )
        for rows in chunks(len(rows_ND)):
            values_ND = rows_ND[rows].to(self._device, torch.float32)
            values_NK = (values_ND - self._basis.mean) @ self._vectors_DK
            # Root mean square of the components, each beside its own usual size.
            scale_N1 = scale_up((values_NK.square() @ self._share_K).sqrt()[:, None])
            codes_NR[rows, :SCALE_BYTES] = scale_bytes(scale_N1)
            inverse_N1 = torch.where(scale_N1 > 0, 1 / scale_N1, self._zero)
            values_NK.mul_(self._inverse_K).mul_(inverse_N1).add_(self._half_K)
            values_NK = torch.clamp(values_NK, self._zero, self._top_K)
            pack(values_NK, self._bits, codes_NR[rows, SCALE_BYTES : self._used])
        return codes_NR

    def decode(self, codes_NR: Tensor, into_ND: Tensor) -> None:
        """What the codes say, turned back."""
        for rows in chunks(len(codes_NR)):
            packed = codes_NR[rows].to(self._device)
            values_NK = torch.empty((len(packed), len(self._width_K)), device=self._device)
            unpack(packed[:, SCALE_BYTES : self._used], self._bits, values_NK)
            values_NK = torch.addcmul(self._lowest_K, values_NK, self._width_K)
            values_NK.mul_(read_scale(packed[:, :SCALE_BYTES]))
            told_ND = torch.addmm(self._basis.mean, values_NK, self._vectors_DK.T)
            into_ND[rows] = fitted(told_ND, into_ND.dtype)
