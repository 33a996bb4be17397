"""Puts LoRA adapters on a stage, and names what it trains as the whole model would.

The adapters are peft's in mathematics, names and files (stage_runtime.lora_linear). Their first
values are a pure function of the seed and the module's global name, so that they do not depend on
how the model is split.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from stage_runtime.load import LoadedStage
from stage_runtime.lora_linear import AdapterShape, put_adapters
from transport.errors import SwarmError
from transport.orders import LoraSettings, TrainSettings

PEFT_PREFIX = "base_model.model."


def make_trainable(stage: LoadedStage, settings: TrainSettings) -> dict[str, nn.Parameter]:
    """Choose what trains: adapters put on the stage, every weight, or nothing of the stage itself
    (method boundary). Global name -> parameter.

    Raises:
        SwarmError: invalid-input; an adapter target that the family does not have.
    """
    if settings.lora is not None:
        return _inject(stage, settings.lora, settings.seed)
    if settings.method == "boundary":
        return {}
    weights = dict(stage.named_weights())
    for weight in weights.values():
        weight.requires_grad_(True)
    if stage.facts.tied and not stage.span.is_first:
        # The first stage's table, of which this is a copy, trains (stage_runtime.tied).
        weights.pop(f"{stage.facts.family.head}.weight", None)
    return weights


def _inject(stage: LoadedStage, lora: LoraSettings, seed: int) -> dict[str, nn.Parameter]:
    _refuse_unknown_targets(stage, lora)
    shape = AdapterShape(lora.rank, lora.alpha / lora.rank, lora.dropout)
    put_adapters(stage.body, lora.target_modules, shape)
    trained: dict[str, nn.Parameter] = {}
    for local, weight in stage.body.named_parameters():
        if ".lora_A." in local or ".lora_B." in local:
            name = PEFT_PREFIX + stage.global_name(local)
            weight.data = _first_values(name, tuple(weight.shape), seed)
            weight.requires_grad_(True)
            trained[name] = weight
    return trained


def _refuse_unknown_targets(stage: LoadedStage, lora: LoraSettings) -> None:
    unknown = [one for one in lora.target_modules if not stage.facts.linear(one)]
    if unknown:
        names = [one.name for one in stage.facts.linears]
        raise SwarmError(
            "invalid-input",
            f"a {stage.facts.model_type} layer has no module {unknown[0]!r} to put an adapter on",
            hint=f"its modules are {', '.join(names)}",
        )


def _first_values(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """peft's own start, drawn from (seed, name): A uniform as a linear layer's, B zero."""
    values = torch.zeros(shape, dtype=torch.float32)
    if ".lora_A." in name:
        digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        nn.init.kaiming_uniform_(values, a=math.sqrt(5), generator=generator)
    return values


def digest_of(trained: Mapping[str, Tensor]) -> str:
    """SHA-256 over the names and values of what trains, in order of names."""
    digest = hashlib.sha256()
    for name, weight in sorted(trained.items()):
        digest.update(name.encode())
        for block in _raw_blocks(weight):
            digest.update(block)
    return digest.hexdigest()


def _raw_blocks(weight: Tensor) -> Iterator[memoryview]:
    flat = weight.detach().to("cpu").contiguous().view(-1).view(torch.uint8)
    for start in range(0, flat.numel(), 1 << 24):
        yield memoryview(flat[start : start + (1 << 24)].numpy())  # type: ignore[arg-type]
