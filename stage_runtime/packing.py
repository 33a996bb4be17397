"""Which weights of a stage are packed while it loads, and how they get into its blocks.

Each is packed as soon as it is read, on the device of its block, so that beside what is packed
already only one weight exists whole. The family's class is built with stand-ins of one number
each, which the packed weights then replace. Does not know files.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from stage_runtime.model_facts import ModelFacts
from stage_runtime.quantize import Narrow, PackedLinear, PackedWeight, pack, pack_experts
from transport.errors import SwarmError

EXPERTS = (".mlp.experts.gate_up_proj", ".mlp.experts.down_proj")
"""A mixture's fused weights. In 8 bits they stay as they are: int8 has one scale a matrix row."""


class Packing:
    """Packs a stage's projections, and in 4 bits a mixture's experts.

    Embeddings, head, norms, biases and routers stay as they are.
    """

    def __init__(
        self, facts: ModelFacts, kind: Narrow, device_of: Callable[[int], torch.device]
    ) -> None:
        """device_of: of a block, by its number within the stage."""
        self._facts = facts
        self._kind = kind
        self._device_of = device_of
        self._blocks = facts.family.layers.split(".")[-1]
        # GPT-2's projections are Conv1D: (inputs, outputs).
        self._turned = facts.model_type == "gpt2"
        self._dtype = torch.float32
        self._packed: dict[str, PackedWeight] = {}

    def take(self, name: str, weight: Tensor) -> Tensor:
        """Pack a weight that is to be packed; returns what the class is built with.

        Raises:
            SwarmError: invalid-input; names the weight that the format cannot hold.
        """
        is_experts = self._kind == "nf4" and name.endswith(EXPERTS) and weight.dim() == 3
        if not is_experts and not (self._is_projection(name) and weight.dim() == 2):
            return weight
        block = int(name.split(".")[1])
        self._dtype = weight.dtype
        rows = (weight.T if self._turned else weight).to(self._device_of(block))
        try:
            self._packed[name] = pack(rows, self._kind)
        except SwarmError as error:
            raise SwarmError(error.code, f"{name}: {error.message}", hint=error.hint) from None
        return torch.zeros((), dtype=weight.dtype).expand(weight.shape)

    def _is_projection(self, name: str) -> bool:
        path, _, kind = name.rpartition(".")
        if kind != "weight" or not path.startswith(f"{self._blocks}."):
            return False
        return any(path.endswith(f".{one.name}") for one in self._facts.linears)

    def put_into(self, body: nn.Module) -> None:
        """Replace the stand-ins' projections by packed ones."""
        while self._packed:
            name, packed = self._packed.popitem()
            path, _, kind = name.rpartition(".")
            if name.endswith(EXPERTS):
                pack_experts(body.get_submodule(path), kind, packed, self._dtype)
                continue
            parent, _, child = path.rpartition(".")
            bias = body.get_parameter(f"{path}.bias") if _has_bias(body, path) else None
            setattr(body.get_submodule(parent), child, PackedLinear(packed, bias))


def _has_bias(body: nn.Module, path: str) -> bool:
    return getattr(body.get_submodule(path), "bias", None) is not None
