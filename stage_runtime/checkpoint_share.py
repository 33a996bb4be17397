"""Which checkpoint files a stage needs: the download share, and the names the loader reads.

Pure: tensor names and sizes as safetensors headers tell them. Torch-free.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from stage_runtime.model_facts import ModelFacts
from transport.errors import SwarmError

Tensors = Mapping[str, int]
"""Tensor name -> bytes in the file."""
Part = Literal["layer", "embedding", "final_norm", "head", "other"]

_LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d{1,5})\.")
_PICTURES = re.compile(r"(?:^|\.)(?:vision_tower|vision_model|multi_modal_projector)\.")


@dataclass(frozen=True)
class StageSpan:
    """The layers of a stage and its place in the pipeline. `last_layer` is inclusive."""

    first_layer: int
    last_layer: int
    is_first: bool
    is_last: bool

    @property
    def num_layers(self) -> int:
        """Layers that the stage runs."""
        return self.last_layer - self.first_layer + 1


def part_of(facts: ModelFacts, name: str) -> tuple[Part, int]:
    """What a tensor in the files belongs to, and its layer (-1 when it has none).

    Names may carry or lack the leading "model." or "transformer.", as old repositories do.
    """
    if _PICTURES.search(name):
        return "other", -1
    found = _LAYER.search(name)
    if found:
        return "layer", int(found.group(1))
    module = name.rpartition(".")[0].split(".")[-1]
    if module in {path.split(".")[-1] for path in facts.family.embeddings}:
        return "embedding", -1
    if module == facts.family.final_norm.split(".")[-1]:
        return "final_norm", -1
    if module in ("lm_head", "embed_out"):
        return "head", -1
    return "other", -1


def needs(facts: ModelFacts, span: StageSpan, name: str) -> bool:
    """Whether a stage reads this tensor. A tied last stage reads the embedding as its head."""
    part, layer = part_of(facts, name)
    if part == "layer":
        return span.first_layer <= layer <= span.last_layer
    if part == "embedding":
        token_table = not name.split(".")[-2].startswith("wpe")
        return span.is_first or (span.is_last and facts.tied and token_table)
    if part == "head":
        return span.is_last and not facts.tied
    return part == "final_norm" and span.is_last


def share_of(
    facts: ModelFacts, files: Mapping[str, Tensors], span: StageSpan
) -> dict[str, list[str]]:
    """The files a stage downloads -> the tensors it reads from each."""
    share = {
        file: sorted(name for name in tensors if needs(facts, span, name))
        for file, tensors in files.items()
    }
    return {file: names for file, names in sorted(share.items()) if names}


def download_bytes(facts: ModelFacts, files: Mapping[str, Tensors], span: StageSpan) -> int:
    """Bytes of the whole files that hold a stage's share: files are fetched whole."""
    return sum(sum(files[file].values()) for file in share_of(facts, files, span))


def refuse_without_safetensors(names: list[str]) -> None:
    """Refuse a repository without safetensors weights.

    Raises:
        SwarmError: invalid-input.
    """
    if not any(name.endswith(".safetensors") for name in names):
        raise SwarmError(
            "invalid-input",
            "this repository has no .safetensors weights; pickled ones are never read",
            hint="take a repository that holds safetensors files, or convert it first",
        )


def refuse_missing_layers(facts: ModelFacts, files: Mapping[str, Tensors]) -> None:
    """Refuse files that lack a layer or the embedding.

    Raises:
        SwarmError: invalid-input; names what is missing.
    """
    found = {part_of(facts, name) for tensors in files.values() for name in tensors}
    missing = [i for i in range(facts.num_layers) if ("layer", i) not in found]
    if missing:
        raise SwarmError(
            "invalid-input",
            f"the model's files lack {len(missing)} of {facts.num_layers} layers, "
            f"the first of them layer {missing[0]}",
            hint="fetch the whole repository again",
        )
    if ("embedding", -1) not in found:
        raise SwarmError(
            "invalid-input",
            "the model's files lack the input embeddings",
            hint="fetch the whole repository again",
        )


def refuse_other_tables(facts: ModelFacts, shapes: Mapping[str, Sequence[int]]) -> None:
    """Refuse embeddings or a head that are not as large as config.json says.

    Args:
        shapes: tensor name -> shape, as the files' headers tell them.

    Raises:
        SwarmError: invalid-input; names the tensor with both numbers.
    """
    for name, shape in sorted(shapes.items()):
        part, _ = part_of(facts, name)
        if part not in ("embedding", "head") or not name.endswith(".weight"):
            continue
        positions = name.split(".")[-2].startswith("wpe")
        rows = facts.max_positions if positions else facts.vocab
        if rows is not None and tuple(shape) != (rows, facts.hidden):
            what = "positions" if positions else "a vocabulary"
            raise SwarmError(
                "invalid-input",
                f"{name} holds {' x '.join(map(str, shape)) or 'one number'}, but config.json says "
                f"{what} of {rows} and a width of {facts.hidden}",
                hint="take config.json and weights from the same revision",
            )
