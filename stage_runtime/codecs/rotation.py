"""The rotation: a token in its principal components, each with its own bits, and one scale.

Full width and nothing trained: it belongs to no boundary's weights, so a run that uses it can be
split again. Tokens are coded one by one. One that is not finite stays so: its scale says it.
"""

# N = tokens, D = hidden width, P = components, G = groups of eight, E = 8, R = bytes of a token

import torch
from torch import Tensor

from stage_runtime.codecs.basis import Basis, scale_of
from stage_runtime.codecs.packing import pack, unpack
from stage_runtime.codecs.scaled import chunks, fitted, read_scale, scale_bytes, scale_up
from stage_runtime.codecs.sizes import GROUP, SCALE_BYTES


class RotationCodec:
    """Codes of a basis; bytes of the planned row that no component needs stay zero."""

    def __init__(self, basis: Basis, row_bytes: int, device: torch.device) -> None:
        self._row_bytes, self._device = row_bytes, device
        self._bits = [int(bits) for bits in basis.bits]
        self._used = SCALE_BYTES + sum(self._bits)
        assert self._used <= row_bytes
        bits_P = basis.bits.long().repeat_interleave(GROUP)
        self._kept_P = (bits_P > 0).to(device)
        self._half_P = torch.where(bits_P > 0, 2.0 ** (bits_P - 1), 0.0).to(device)
        self._spread_P, self._step_P = basis.spread.to(device), basis.step.to(device)
        self._width_P = (basis.spread * basis.step).to(device)
        self._mean_D = basis.mean.to(device)
        self._vectors_DP = basis.vectors.float().to(device)

    def basis(self) -> Basis:
        """What it was made of, on the CPU, to the bit."""
        bits = torch.tensor(self._bits, dtype=torch.uint8)
        return Basis(
            self._mean_D.cpu(),
            self._vectors_DP.half().cpu(),
            self._spread_P.cpu(),
            self._step_P.cpu(),
            bits,
        )

    @property
    def row_bytes(self) -> int:
        """As planned."""
        return self._row_bytes

    def encode(self, rows_ND: Tensor) -> Tensor:
        """uint8 (N, R)."""
        codes_NR = rows_ND.new_zeros((len(rows_ND), self._row_bytes), dtype=torch.uint8)
        for rows in chunks(len(rows_ND)):
            values_ND = rows_ND[rows].to(self._device, torch.float32)
            values_NP = (values_ND - self._mean_D) @ self._vectors_DP
            scale_N1 = scale_up(scale_of(values_NP / self._spread_P, self._kept_P))
            codes_NR[rows, :SCALE_BYTES] = scale_bytes(scale_N1)
            values_NP.div_(self._width_P).div_(scale_N1).nan_to_num_(0.0).floor_()
            values_NP.add_(self._half_P)
            values_NP = torch.minimum(values_NP.clamp_(min=0), 2 * self._half_P - 1)
            codes_NGE = values_NP.long().view(len(values_NP), -1, GROUP)
            codes_NR[rows, SCALE_BYTES : self._used] = pack(codes_NGE, self._bits)
        return codes_NR

    def decode(self, codes_NR: Tensor, into_ND: Tensor) -> None:
        """What the codes say, turned back."""
        for rows in chunks(len(codes_NR)):
            packed = codes_NR[rows].to(self._device)
            codes_NGE = torch.zeros(
                (len(packed), len(self._bits), GROUP), dtype=torch.int64, device=packed.device
            )
            unpack(packed[:, SCALE_BYTES : self._used], self._bits, codes_NGE)
            values_NP = codes_NGE.flatten(1).float().sub_(self._half_P - 0.5)
            values_NP.mul_(self._width_P * self._kept_P).mul_(read_scale(packed[:, :SCALE_BYTES]))
            told_ND = (values_NP @ self._vectors_DP.T).add_(self._mean_D)
            into_ND[rows] = fitted(told_ND, into_ND.dtype)
