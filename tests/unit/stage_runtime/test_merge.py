"""Merging: a base and its adapters become one checkpoint that plain transformers loads."""

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from stage_runtime.checkpoint import weight_files
from stage_runtime.families import FAMILIES
from stage_runtime.merge import BLOCK_BYTES, Adapters, merge_file
from tests.oracle.checkpoints import TINY, VOCAB, write_tiny_model
from transport.errors import SwarmError

MERGED = ["llama", "llama-untied-72", "gemma3", "qwen3", "gpt2", "gpt_neox", "phi", "mixtral"]


def trained_adapter(base: PreTrainedModel, model: str, folder: Path) -> Path:
    """An adapter with values as training leaves them, saved by peft."""
    family = FAMILIES[TINY[model][0]]
    torch.manual_seed(1)
    config = LoraConfig(
        r=4,
        lora_alpha=8,
        target_modules=[*family.attention, *family.mlp[-1:]],
        task_type="CAUSAL_LM",
        fan_in_fan_out=model == "gpt2",
    )
    adapted = get_peft_model(base, config)
    for name, weight in adapted.named_parameters():
        if "lora_" in name:
            weight.data.normal_(std=0.05)
    adapted.save_pretrained(str(folder))
    return folder / "adapter_model.safetensors"


def merge_folder(source: Path, target: Path, adapters: Adapters, dtype: str | None = None) -> None:
    """Every weight file of a folder merged into another; the rest copied."""
    for name in weight_files(source):
        merge_file(source / name, target / name, adapters, dtype)
    adapters.refuse_unused()
    for path in source.iterdir():
        if path.suffix == ".json":
            (target / path.name).write_bytes(path.read_bytes())


@pytest.mark.parametrize("model", MERGED)
def test_the_merged_model_alone_gives_the_logits_of_base_and_adapter_in_peft(
    model: str, tmp_path: Path
) -> None:
    source, target = tmp_path / "base", tmp_path / "merged"
    write_tiny_model(source, model)
    base = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    tokens = torch.randint(VOCAB, (2, 12), generator=torch.Generator().manual_seed(2))
    plain = base(tokens).logits
    file = trained_adapter(base, model, tmp_path / "adapter")
    fresh = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    adapted = PeftModel.from_pretrained(fresh, str(tmp_path / "adapter"))
    expected = adapted.eval()(tokens).logits

    merge_folder(source, target, Adapters(file, 2.0, transposed=model == "gpt2"))

    merged = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    assert (merged(tokens).logits - expected).abs().max() < 2e-5
    assert (plain - expected).abs().max() > 1e-3


def test_a_merge_into_half_precision_rounds_once_and_keeps_the_rest_as_it_was(
    tmp_path: Path,
) -> None:
    weight = torch.randn(6, 4).to(torch.bfloat16)
    norm = torch.randn(6)
    source = tmp_path / "base.safetensors"
    names = ("model.layers.0.q_proj.weight", "model.norm.weight")
    save_file(dict(zip(names, (weight, norm))), source, metadata={"format": "pt"})
    a, b = torch.randn(2, 4), torch.randn(6, 2)
    adapter = tmp_path / "adapter.safetensors"
    prefix = "base_model.model.model.layers.0.q_proj"
    save_file({f"{prefix}.lora_A.weight": a, f"{prefix}.lora_B.weight": b}, adapter)

    merge_file(source, tmp_path / "own", Adapters(adapter, 0.5, transposed=False), None)
    merge_file(source, tmp_path / "half", Adapters(adapter, 0.5, transposed=False), "float16")

    exact = weight.float() + 0.5 * (b @ a)
    own, half = load_file(tmp_path / "own"), load_file(tmp_path / "half")
    assert torch.equal(own[names[0]], exact.to(torch.bfloat16))
    assert torch.equal(own[names[1]], norm)
    assert torch.equal(half[names[0]], exact.to(torch.float16))
    assert half[names[1]].dtype == torch.float16


def test_memory_stays_at_a_few_blocks_however_large_a_weight_is(tmp_path: Path) -> None:
    rows, columns = 8192, 2048
    source = tmp_path / "base.safetensors"
    save_file({"model.layers.0.q_proj.weight": torch.zeros(rows, columns)}, source)
    adapter = tmp_path / "adapter.safetensors"
    prefix = "base_model.model.model.layers.0.q_proj"
    halves = {"lora_A": torch.ones(2, columns), "lora_B": torch.ones(rows, 2)}
    save_file({f"{prefix}.{name}.weight": one for name, one in halves.items()}, adapter)
    adapters = Adapters(adapter, 1.0, transposed=False)
    tracemalloc.start()
    before = peak_resident()
    merge_file(source, tmp_path / "out", adapters, "bfloat16")
    grown = peak_resident() - before
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * BLOCK_BYTES
    assert grown < rows * columns * 4
    with safe_open(str(tmp_path / "out"), framework="pt") as opened:
        assert opened.get_slice("model.layers.0.q_proj.weight")[:1].unique().tolist() == [2.0]


def peak_resident() -> int:
    """The most this process ever held, in bytes."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def a_base(tmp_path: Path, **more: Any) -> Path:
    path = tmp_path / "base.safetensors"
    save_file({"model.layers.0.q_proj.weight": torch.ones(4, 4), **more}, path)
    return path


def an_adapter(
    tmp_path: Path, outputs: int = 4, module: str = "q_proj", value: float = 1.0
) -> Path:
    path = tmp_path / "adapter.safetensors"
    prefix = f"base_model.model.model.layers.0.{module}"
    halves = {"lora_A": torch.full((1, 4), value), "lora_B": torch.ones(outputs, 1)}
    save_file({f"{prefix}.{name}.weight": one for name, one in halves.items()}, path)
    return path


def test_an_adapter_that_fits_no_weight_is_refused_with_its_layer(tmp_path: Path) -> None:
    adapters = Adapters(an_adapter(tmp_path, outputs=5), 1.0, transposed=False)
    with pytest.raises(SwarmError, match=r"\(5, 4\), the base has \(4, 4\)"):
        merge_file(a_base(tmp_path), tmp_path / "out", adapters, None)
    adapters = Adapters(an_adapter(tmp_path, module="k_proj"), 1.0, transposed=False)
    merge_file(a_base(tmp_path), tmp_path / "out", adapters, None)
    with pytest.raises(SwarmError, match="first k_proj of layer 0"):
        adapters.refuse_unused()


def test_a_sum_that_float16_cannot_hold_is_refused_by_the_tensors_name(tmp_path: Path) -> None:
    adapters = Adapters(an_adapter(tmp_path, value=1e5), 1.0, transposed=False)
    with pytest.raises(SwarmError, match=r"q_proj\.weight holds values that F16 cannot") as refusal:
        merge_file(a_base(tmp_path), tmp_path / "out", adapters, "float16")
    assert "bfloat16" in refusal.value.hint


def test_a_file_that_is_cut_short_is_refused_and_a_dropped_tensor_is_gone(tmp_path: Path) -> None:
    base = a_base(tmp_path, head=torch.ones(2))
    merge_file(base, tmp_path / "out", None, None, frozenset({"head"}))
    assert set(load_file(tmp_path / "out")) == {"model.layers.0.q_proj.weight"}
    base.write_bytes(base.read_bytes()[:-3])
    with pytest.raises(SwarmError, match="cannot be read"):
        merge_file(base, tmp_path / "out", None, None)
