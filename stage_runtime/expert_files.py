"""Puts a mixture's experts, which most repositories store one by one, into the fused weights.

transformers computes with two tensors a block: gate and up of all experts, and down of all. The
files of Mixtral and Qwen3-MoE name each expert's three projections; those of gpt-oss hold the two
tensors as they are. Does not know stages: names are a block's own, with its local number.
"""

import re

import torch
from torch import Tensor

from stage_runtime.model_facts import ModelFacts
from transport.errors import SwarmError

_ONE = re.compile(
    r"^(?P<block>.+\.)(?:mlp|block_sparse_moe)\.experts\.(?P<expert>\d{1,5})\."
    r"(?P<part>w1|w2|w3|gate_proj|up_proj|down_proj)\.weight$"
)
_UP, _DOWN = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"
# Where a projection goes: the fused tensor, and its half there (0 gate, 1 up; None = whole).
_PLACES: dict[str, tuple[str, int | None]] = {
    "w1": (_UP, 0),
    "w3": (_UP, 1),
    "w2": (_DOWN, None),
    "gate_proj": (_UP, 0),
    "up_proj": (_UP, 1),
    "down_proj": (_DOWN, None),
}


class ExpertTensors:
    """Takes single experts' projections and fills the fused tensors, in the stage's format."""

    def __init__(self, facts: ModelFacts, dtype: torch.dtype) -> None:
        self._facts = facts
        self._dtype = dtype
        self._fused: dict[str, Tensor] = {}
        self._missing: dict[str, set[tuple[int, int | None]]] = {}

    def renamed(self, local: str) -> str:
        """The class's name of a tensor that is no single expert's: Mixtral's router."""
        return local.replace(".block_sparse_moe.", ".mlp.")

    def take(self, local: str, tensor: Tensor) -> bool:
        """Copy one expert's projection into its place; False when the tensor is none.

        Raises:
            SwarmError: invalid-input; an expert or a shape that config.json does not announce.
        """
        found = _ONE.match(local)
        if found is None or self._facts.experts is None:
            return False
        kind, half = _PLACES[found["part"]]
        target = self._target(found["block"] + kind, kind)
        place = (int(found["expert"]), half)
        waiting = self._missing[found["block"] + kind]
        slot = self._slot(target, place) if place in waiting else None
        if slot is None or slot.shape != tensor.shape:
            told = None if slot is None else tuple(slot.shape)
            raise _broken(
                f"{local} has the shape {tuple(tensor.shape)} in the files, but config.json says "
                f"{told or f'there are {self._facts.experts.count} experts'}"
            )
        slot.copy_(tensor)
        waiting.discard(place)
        return True

    def whole(self) -> dict[str, Tensor]:
        """The fused tensors by the names of the class.

        Raises:
            SwarmError: invalid-input; an expert is missing.
        """
        for name, waiting in sorted(self._missing.items()):
            if waiting:
                expert = min(expert for expert, _ in waiting)
                raise _broken(
                    f"the model's files lack {len(waiting)} parts of {name}, "
                    f"first of expert {expert}"
                )
        return self._fused

    def _target(self, name: str, kind: str) -> Tensor:
        if name not in self._fused:
            experts = self._facts.experts
            assert experts is not None
            hidden, width = self._facts.hidden, experts.width
            wide = (2 * width, hidden) if kind == _UP else (hidden, width)
            self._fused[name] = torch.empty((experts.count, *wide), dtype=self._dtype)
            halves: tuple[int | None, ...] = (0, 1) if kind == _UP else (None,)
            self._missing[name] = {(e, half) for e in range(experts.count) for half in halves}
        return self._fused[name]

    @staticmethod
    def _slot(target: Tensor, place: tuple[int, int | None]) -> Tensor:
        expert, half = place
        if half is None:
            return target[expert]
        width = target.shape[1] // 2
        return target[expert, half * width : (half + 1) * width]


def _broken(message: str) -> SwarmError:
    return SwarmError("invalid-input", message, hint="fetch the whole repository again")
