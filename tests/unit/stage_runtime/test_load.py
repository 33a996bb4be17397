"""A stage's share: what it computes, what it reads, and what it refuses."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from stage_runtime.checkpoint import INDEX, Checkpoint, open_checkpoint
from stage_runtime.checkpoint_share import StageSpan
from stage_runtime.load import LoadedStage, load_stage
from tests.oracle.checkpoints import TINY
from tests.oracle.grid import Ground
from tests.oracle.stages import even_cuts
from transport.errors import SwarmError

F32 = torch.float32


def spans(num_layers: int, num_stages: int) -> list[StageSpan]:
    cuts = even_cuts(num_layers, num_stages)
    return [
        StageSpan(first, last, stage == 0, stage == num_stages - 1)
        for stage, (first, last) in enumerate(cuts)
    ]


def logits_of(stages: list[LoadedStage], ids: Tensor) -> Tensor:
    hidden = ids
    for stage in stages:
        name = "input_ids" if stage.span.is_first else "inputs_embeds"
        hidden = stage.body.eval()(**{name: hidden}, use_cache=False).last_hidden_state
    head = stages[-1].head
    assert head is not None
    logits = hidden @ head.weight.T + (0 if head.bias is None else head.bias)
    return logits if head.softcap is None else torch.tanh(logits / head.softcap) * head.softcap


@pytest.mark.parametrize("model", TINY)
@pytest.mark.parametrize("num_stages", [1, 2, 3, 5])
def test_slices_of_a_model_give_the_whole_models_logits_bit_for_bit(
    ground: Ground, model: str, num_stages: int
) -> None:
    folder = ground.model(model)
    whole = AutoModelForCausalLM.from_pretrained(folder, dtype=F32).eval()
    ids = torch.arange(40).reshape(2, 20)
    checkpoint = open_checkpoint(folder)
    stages = [
        load_stage(checkpoint, span, F32) for span in spans(checkpoint.facts.num_layers, num_stages)
    ]
    with torch.no_grad():
        assert torch.equal(logits_of(stages, ids), whole(input_ids=ids).logits)


@pytest.mark.parametrize("model", TINY)
def test_stages_name_their_weights_as_the_whole_model_does_each_once(
    ground: Ground, model: str
) -> None:
    folder = ground.model(model)
    whole = AutoModelForCausalLM.from_pretrained(folder, dtype=F32)
    checkpoint = open_checkpoint(folder)
    for num_stages in (1, 3):
        named: dict[str, Tensor] = {}
        for span in spans(checkpoint.facts.num_layers, num_stages):
            for name, weight in load_stage(checkpoint, span, F32).named_weights():
                assert name not in named
                named[name] = weight
        expected = dict(whole.named_parameters())
        if checkpoint.facts.tied and num_stages > 1:
            expected["lm_head.weight"] = whole.lm_head.weight
        assert named.keys() == expected.keys()
        assert all(torch.equal(named[name], expected[name]) for name in named)


def test_a_middle_stage_holds_its_layers_and_nothing_of_the_ends(ground: Ground) -> None:
    checkpoint = open_checkpoint(ground.model("llama"))
    stage = load_stage(checkpoint, StageSpan(2, 3, False, False), F32)
    held = sum(weight.numel() for _, weight in stage.named_weights())
    assert held == sum(checkpoint.facts.layer_params[2:4])
    assert stage.head is None
    assert sum(w.numel() for w in stage.body.parameters()) == held


def test_only_files_that_hold_a_stages_layers_are_opened(ground: Ground, tmp_path: Path) -> None:
    folder = tmp_path / "part"
    shutil.copytree(ground.model("llama-untied-72"), folder)
    checkpoint = open_checkpoint(folder)
    span = StageSpan(2, 2, False, False)
    for file, names in checkpoint.files.items():
        if not any(".layers.2." in name for name in names):
            (folder / file).unlink()
    load_stage(checkpoint, span, F32)
    assert len(list(folder.glob("*.safetensors"))) < len(checkpoint.files)


def test_weights_load_in_the_asked_dtype_frozen_and_alone_in_their_storage(
    ground: Ground,
) -> None:
    stage = load_stage(
        open_checkpoint(ground.model("gpt2")), StageSpan(0, 2, True, False), torch.bfloat16
    )
    for _, weight in stage.named_weights():
        assert weight.dtype == torch.bfloat16
        assert not weight.requires_grad
        assert weight.untyped_storage().nbytes() == weight.numel() * 2


Damage = Callable[[Path], None]


def edit_config(**changes: Any) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return damage


def edit_index(change: Callable[[dict[str, str]], None]) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / INDEX
        index = json.loads(path.read_text())
        change(index["weight_map"])
        path.write_text(json.dumps(index))

    return damage


def cut_short(folder: Path) -> None:
    file = min(folder.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-50])


def drop_shard(folder: Path) -> None:
    min(folder.glob("*.safetensors")).unlink()


def spoil_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def only_pickles(folder: Path) -> None:
    for file in [*folder.glob("*.safetensors"), folder / INDEX]:
        file.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04")


def another_tensor(folder: Path) -> None:
    file = folder / next(iter(open_checkpoint(folder).files))
    tensors = load_file(file)
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(64)
    save_file(tensors, file)
    edit_index(lambda names: names.update({"model.layers.0.self_attn.q_proj.bias": file.name}))(
        folder
    )


def spoil(value: float, dtype: torch.dtype = torch.float32) -> Damage:
    """Put one value into a weight of a layer."""

    def damage(folder: Path) -> None:
        file = folder / next(
            file
            for file, names in open_checkpoint(folder).files.items()
            if any("layers.3.mlp.up_proj" in name for name in names)
        )
        tensors = load_file(file)
        name = next(name for name in tensors if "layers.3.mlp.up_proj" in name)
        tensors[name] = tensors[name].to(dtype)
        tensors[name][-1, -1] = value
        save_file(tensors, file)

    return damage


def whole_numbers(folder: Path) -> None:
    file = folder / next(iter(open_checkpoint(folder).files))
    save_file({name: one.to(torch.int8) for name, one in load_file(file).items()}, file)


UP_3 = r"model\.layers\.3\.mlp\.up_proj\.weight in model-\d+-of-\d+\.safetensors"
DAMAGES: dict[str, tuple[Damage, str]] = {
    "own code": (edit_config(auto_map={"AutoModel": "x.Y"}), "own model code"),
    "unknown family": (edit_config(model_type="mamba"), "mamba"),
    "quantized": (edit_config(quantization_config={"quant_method": "gptq"}), "quantized"),
    "another vocabulary": (edit_config(vocab_size=300), r"\(260, 64\)"),
    "another width": (edit_config(intermediate_size=100), "config.json says"),
    "more layers": (edit_config(num_hidden_layers=7), "lack 1 of 7 layers"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
    "config is no JSON": (spoil_config, "cannot be read") ,
    "cut short": (cut_short, "cannot be read"),
    "a file is gone": (drop_shard, "is missing"),
    "only pickled weights": (only_pickles, "pickled"),
    "index names a missing tensor": (
        edit_index(lambda m: m.update({"model.layers.0.mlp.odd.weight": next(iter(m.values()))})),
        "odd|does not contain|cannot be read",
    ),
    "index lacks a tensor": (
        edit_index(lambda names: [names.pop(n) for n in list(names) if "layers.0.mlp.up" in n]),  # type: ignore[arg-type]
        "lack 1 tensors",
    ),
    "index leaves the folder": (
        edit_index(lambda names: names.update({"model.norm.weight": "../x.safetensors"})),
        "no weight file",
    ),
    "a tensor too many": (another_tensor, "does not have"),
    "a weight is NaN": (spoil(float("nan")), f"{UP_3} holds NaN"),
    "a weight is NaN in 16 bits": (spoil(float("nan"), torch.bfloat16), f"{UP_3} holds NaN"),
    "a weight is infinite": (spoil(float("-inf")), f"{UP_3} holds infinite values"),
    "weights are whole numbers": (whole_numbers, "is stored as int8, which is not read here"),
}  # fmt: skip


def load_whole(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    last = checkpoint.facts.num_layers - 1
    load_stage(checkpoint, StageSpan(0, last, True, True), F32)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_foreign_checkpoint_is_refused_in_one_clear_sentence(
    ground: Ground, tmp_path: Path, damage: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(ground.model("llama"), folder)
    do, sentence = DAMAGES[damage]
    do(folder)
    with pytest.raises(SwarmError, match=sentence) as refusal:
        load_whole(folder)
    assert refusal.value.code == "invalid-input"
    assert refusal.value.hint


def test_a_weight_beyond_the_jobs_format_is_refused_with_the_format_that_holds_it(
    ground: Ground, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(ground.model("llama"), folder)
    spoil(70_000.0)(folder)
    span = StageSpan(3, 3, False, False)
    load_stage(open_checkpoint(folder), span, torch.bfloat16)
    with pytest.raises(SwarmError, match=f"{UP_3} holds 7e\\+04, beyond the 6.55e\\+04") as refusal:
        load_stage(open_checkpoint(folder), span, torch.float16)
    assert "bfloat16" in refusal.value.hint
    with pytest.raises(SwarmError, match=r"layers.0.mlp.up_proj.weight: .* larger than 65504"):
        load_stage(open_checkpoint(folder), span, torch.bfloat16, "int8")
    load_stage(open_checkpoint(folder), span, torch.bfloat16, "nf4")


def test_a_family_that_is_not_offered_is_told_which_are(ground: Ground, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(ground.model("llama"), folder)
    edit_config(model_type="mamba")(folder)
    with pytest.raises(SwarmError) as refusal:
        open_checkpoint(folder)
    assert "llama" in refusal.value.hint
    assert "gemma3_text" in refusal.value.hint


def old_names(folder: Path) -> None:
    """Rewrite a GPT-2 checkpoint as the oldest repositories hold it: no prefix, masks inside."""
    tensors: dict[str, Tensor] = {}
    for file in folder.glob("*.safetensors"):
        tensors |= {k.removeprefix("transformer."): v for k, v in load_file(file).items()}
        file.unlink()
    tensors["h.1.attn.bias"] = torch.tril(torch.ones(4, 4)).view(1, 1, 4, 4)
    (folder / INDEX).unlink()
    save_file(tensors, folder / "model.safetensors")


def test_old_names_in_one_file_load_alike(ground: Ground, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(ground.model("gpt2"), folder)
    old_names(folder)
    for span in spans(6, 2):
        new, old = (
            dict(load_stage(open_checkpoint(one), span, F32).named_weights())
            for one in (ground.model("gpt2"), folder)
        )
        assert new.keys() == old.keys()
        assert all(torch.equal(new[name], old[name]) for name in new)


def test_reading_names_the_file_that_lacks_a_tensor(ground: Ground) -> None:
    checkpoint: Checkpoint = open_checkpoint(ground.model("llama"))
    file = next(iter(checkpoint.files))
    with safe_open(str(checkpoint.folder / file), framework="pt") as opened:
        assert "absent" not in opened.keys()  # noqa: SIM118 - not a mapping
    with pytest.raises(SwarmError, match=file):
        list(checkpoint.read(file, ["absent"], F32))
