"""Builds one stage's share of a model: the model's own class, cut to the stage's layers.

Every stage is the family's body class (no head) with a configuration of its own layers, so that
masks, positions and caches stay the model's own code. The head is a separate weight on the last
stage. Only the stage's own tensors are read, by name, from only the files that hold them.
Does not know adapters, training, or where the files came from.
"""

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import MODEL_MAPPING, AutoConfig

from stage_runtime import attention
from stage_runtime.checkpoint import Checkpoint
from stage_runtime.checkpoint_share import StageSpan, part_of, share_of
from stage_runtime.expert_files import ExpertTensors
from stage_runtime.model_facts import ModelFacts
from stage_runtime.packing import Packing
from transport.errors import SwarmError

Quantization = Literal["none", "int8", "nf4"]

_LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d{1,5})\.(.+)$")
# What old files carry beside the weights: masks and rotary tables that the classes make themselves.
_MADE_ANEW = re.compile(r"(?:\.attn\.(?:masked_)?bias|\.attention\.(?:masked_)?bias|\.inv_freq)$")


class Head(nn.Module):
    """The output projection of the last stage, read by the loss: logits are never made whole."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None, softcap: float | None):
        super().__init__()
        self.weight = weight
        self.bias = bias
        self.softcap = softcap
        """Gemma's bound on logits: softcap * tanh(logits / softcap)."""


class NoPositions(nn.Module):
    """In place of GPT-2's position table on later stages: the first stage has added it already."""

    def forward(self, position_ids: Tensor) -> Tensor:
        return torch.zeros((), device=position_ids.device)


@dataclass
class LoadedStage:
    """A stage's weights in memory."""

    facts: ModelFacts
    span: StageSpan
    body: nn.Module
    """The family's body class; later stages are fed inputs_embeds."""
    head: Head | None
    """On the last stage only. Alone and tied, it is the embedding's own parameter."""

    @property
    def layers_name(self) -> str:
        """The body's list of blocks: "layers" or "h"."""
        return self.facts.family.layers.split(".")[-1]

    @property
    def blocks(self) -> nn.ModuleList:
        """The stage's blocks in order."""
        blocks = getattr(self.body, self.layers_name)
        assert isinstance(blocks, nn.ModuleList)
        return blocks

    def global_name(self, local: str) -> str:
        """The name that a module or parameter of the body has in the whole causal model."""
        root, _, layers = self.facts.family.layers.partition(".")
        if local.startswith(f"{layers}."):
            _, index, rest = local.split(".", 2)
            local = f"{layers}.{int(index) + self.span.first_layer}.{rest}"
        return f"{root}.{local}"

    def named_weights(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Every parameter once, by its global name; a shared embedding keeps the embedding's."""
        seen: set[int] = set()
        for local, weight in self.body.named_parameters():
            seen.add(id(weight))
            yield self.global_name(local), weight
        for local, weight in self.head.named_parameters() if self.head else ():
            if id(weight) not in seen:
                yield f"{self.facts.family.head}.{local}", weight


def load_stage(
    checkpoint: Checkpoint,
    span: StageSpan,
    dtype: torch.dtype,
    quantization: Quantization = "none",
    device_of: Callable[[int], torch.device] = lambda _: torch.device("cpu"),
) -> LoadedStage:
    """Read a stage's tensors and build its modules, frozen.

    All lies on the CPU, but for packed weights, which lie on the device of their block.

    device_of: of a block, by its number within the stage.

    Raises:
        SwarmError: invalid-input; names the file and the tensor when one is missing, unreadable or
            of another shape than config.json says.
    """
    facts = checkpoint.facts
    config = _stage_config(checkpoint.folder, facts, span)
    model_class = MODEL_MAPPING[type(config)]
    with torch.device("meta"):
        expected = dict(model_class(config).state_dict())
    packing = None if quantization == "none" else Packing(facts, quantization, device_of)
    tensors = _read(checkpoint, span, dtype, packing)
    head = _head(facts, span, tensors, config)
    _check(checkpoint, expected, tensors, _not_ours(facts, span))
    for name in _not_ours(facts, span) & expected.keys():
        tensors[name] = torch.zeros(expected[name].shape, dtype=dtype)
    attention.register()
    body = model_class.from_pretrained(
        None,
        config=config,
        state_dict=tensors,
        dtype=dtype,
        # No fused kernel computes a softcap or sinks: the family's own plain attention does.
        attn_implementation="eager" if facts.family.scores else attention.NAME,
    )
    tensors.clear()
    if packing is not None:
        packing.put_into(body)
    _drop_foreign_parts(body, facts, span)
    _restore_layer_scaling(body, facts, span, config)
    if head is not None and facts.tied and span.is_first:
        head.weight = body.get_input_embeddings().weight
    stage = LoadedStage(facts, span, body, head)
    for _, weight in stage.named_weights():
        weight.requires_grad_(False)
    return stage


def _stage_config(folder: Path, facts: ModelFacts, span: StageSpan) -> Any:
    """The model's configuration with only the stage's layers, and none of others' tables."""
    config = copy.deepcopy(AutoConfig.from_pretrained(folder).get_text_config())
    config.num_hidden_layers = span.num_layers
    types = getattr(config, "layer_types", None)
    if types is not None:
        config.layer_types = list(types[span.first_layer : span.last_layer + 1])
    for key in facts.family.dropout_keys:
        setattr(config, key, 0.0)
    config.use_cache = False
    if not span.is_first:
        config.vocab_size = 1
        config.pad_token_id = None
        if facts.learned_positions:
            config.max_position_embeddings = 1
    return config


def _read(
    checkpoint: Checkpoint, span: StageSpan, dtype: torch.dtype, packing: Packing | None
) -> dict[str, Tensor]:
    """The stage's tensors by the body's own names; the head's as "head.weight", "head.bias"."""
    tensors: dict[str, Tensor] = {}
    for parts in _by_layers(checkpoint, span):
        experts = ExpertTensors(checkpoint.facts, dtype)
        found: dict[str, Tensor] = {}
        for file, names in parts:
            for name, tensor in checkpoint.read(file, names, dtype):
                for local in _local_names(checkpoint.facts, span, name):
                    if not experts.take(local, tensor):
                        local = experts.renamed(local)  # noqa: PLW2901
                        found[local] = tensor if packing is None else packing.take(local, tensor)
        for local, tensor in experts.whole().items():
            found[local] = tensor if packing is None else packing.take(local, tensor)
        tensors |= found
    return tensors


def _by_layers(checkpoint: Checkpoint, span: StageSpan) -> list[list[tuple[str, list[str]]]]:
    """(file, tensors to read from it) of the tables, then of each layer."""
    layers: dict[int, dict[str, list[str]]] = {}
    for file, names in share_of(checkpoint.facts, checkpoint.files, span).items():
        for name in names:
            if not _MADE_ANEW.search(name):
                _, layer = part_of(checkpoint.facts, name)
                layers.setdefault(layer, {}).setdefault(file, []).append(name)
    return [list(files.items()) for _, files in sorted(layers.items())]


def _local_names(facts: ModelFacts, span: StageSpan, name: str) -> list[str]:
    """Where a tensor of the files goes; the embedding of a tied model may go to two places."""
    part, layer = part_of(facts, name)
    if part == "layer":
        found = _LAYER.search(name)
        assert found is not None
        blocks = facts.family.layers.split(".")[-1]
        return [f"{blocks}.{layer - span.first_layer}.{found.group(2)}"]
    module, kind = name.split(".")[-2:]
    if part == "head":
        return [f"head.{kind}"]
    if part != "embedding":
        return [f"{module}.{kind}"]
    is_head = facts.tied and span.is_last and not span.is_first
    return [f"{module}.{kind}"] * span.is_first + ["head.weight"] * is_head


def _head(
    facts: ModelFacts, span: StageSpan, tensors: dict[str, Tensor], config: Any
) -> Head | None:
    if not span.is_last:
        return None
    softcap = getattr(config, "final_logit_softcapping", None)
    embedding = facts.family.embeddings[0].split(".")[-1]
    shared = facts.tied and span.is_first
    weight = tensors.get(f"{embedding}.weight") if shared else tensors.pop("head.weight", None)
    bias = tensors.pop("head.bias", None)
    if weight is None or (bias is None) == facts.family.head_bias:
        raise _broken("the model's files lack the output head", "fetch the whole repository again")
    if tuple(weight.shape) != (facts.vocab, facts.hidden):
        raise _broken(
            f"the output head holds {tuple(weight.shape)} values, but config.json says a "
            f"vocabulary of {facts.vocab} and a width of {facts.hidden}",
            "take config.json and weights from the same revision",
        )
    return Head(nn.Parameter(weight), None if bias is None else nn.Parameter(bias), softcap)


def _not_ours(facts: ModelFacts, span: StageSpan) -> set[str]:
    """Tensors that the class has but the stage does not: filled small, then taken out."""
    names: set[str] = set()
    if not span.is_first:
        names |= {f"{path.split('.')[-1]}.weight" for path in facts.family.embeddings}
    if not span.is_last:
        norm = facts.family.final_norm.split(".")[-1]
        names |= {f"{norm}.weight", f"{norm}.bias"}
    return names


def _check(
    checkpoint: Checkpoint, expected: dict[str, Tensor], found: dict[str, Tensor], filled: set[str]
) -> None:
    missing = sorted(expected.keys() - found.keys() - filled)
    if missing:
        raise _broken(
            f"the model's files lack {len(missing)} tensors of this stage, first {missing[0]!r}",
            "fetch the whole repository again",
        )
    surplus = sorted(found.keys() - expected.keys())
    if surplus:
        raise _broken(
            f"the model's files hold {surplus[0]!r}, which a {checkpoint.facts.model_type} model "
            "of this config.json does not have",
            "take config.json and weights from the same revision",
        )
    for name, tensor in found.items():
        if tensor.shape != expected[name].shape:
            raise _broken(
                f"{name} has the shape {tuple(tensor.shape)} in the files, but config.json says "
                f"{tuple(expected[name].shape)}",
                "take config.json and weights from the same revision",
            )


def _drop_foreign_parts(body: Any, facts: ModelFacts, span: StageSpan) -> None:
    if not span.is_first:
        for path in facts.family.embeddings:
            positions = facts.learned_positions and path != facts.family.embeddings[0]
            setattr(body, path.split(".")[-1], NoPositions() if positions else nn.Identity())
    if not span.is_last:
        setattr(body, facts.family.final_norm.split(".")[-1], nn.Identity())


def _restore_layer_scaling(body: Any, facts: ModelFacts, span: StageSpan, config: Any) -> None:
    """Some GPT-2 models divide attention by the layer's number, which must be the global one."""
    if not getattr(config, "scale_attn_by_inverse_layer_idx", False):
        return
    for local, block in enumerate(getattr(body, facts.family.layers.split(".")[-1])):
        block.attn.scaling *= (local + 1) / (local + 1 + span.first_layer)


def _broken(message: str, hint: str) -> SwarmError:
    return SwarmError("invalid-input", message, hint=hint)
