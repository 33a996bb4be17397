"""Tensors as the bytes that frames carry, and back.

Works on raw bytes, so that bfloat16 and float16 cross unchanged. Does not know frames or links.
"""

from typing import Final

import torch
from torch import Tensor

DTYPE_NAMES: Final = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
    torch.int8: "int8",
    torch.int32: "int32",
    torch.float64: "float64",
    torch.uint8: "uint8",
    torch.int64: "int64",
}


def bytes_of(tensor: Tensor) -> memoryview:
    """The tensor's values as bytes on the CPU; no copy when they lie there in order."""
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return flat.numpy().data


def fill(target: Tensor, payload: memoryview) -> None:
    """Copy bytes into a tensor of exactly that many."""
    if target.device.type == "cpu" and target.is_contiguous():
        target.reshape(-1).view(torch.uint8).numpy().data[:] = payload
        return
    staged = torch.empty(target.shape, dtype=target.dtype)
    fill(staged, payload)
    target.copy_(staged)
