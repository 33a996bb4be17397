"""The model store: whole safetensors folders get in, everything else is refused with the reason."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.leader_twins import Pool, open_pool, write_model
from transport.errors import SwarmError


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    async with open_pool(tmp_path) as made:
        yield made


def edit(**changes: object) -> Callable[[Path], None]:
    """Change keys of config.json."""

    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def drop(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink()

    return change


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


def index_without_file(folder: Path) -> None:
    told = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(told))


async def test_a_whole_folder_becomes_a_model_with_a_revision_of_its_files(
    pool: Pool, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "m")
    await pool.add_model(folder)
    (row,) = (await pool.ask("models_list")).models
    assert (row.model_id, row.family, row.layers) == ("local:tiny", "llama", 4)
    assert row.revision is not None
    assert len(row.revision) == 40
    stored = await pool.leader.model("tiny")
    assert stored is not None
    served = pool.leader.model_folder("tiny") / "model.safetensors"
    assert served.read_bytes() == (folder / "model.safetensors").read_bytes()


async def test_the_same_folder_again_is_the_same_model_and_another_one_is_refused(
    pool: Pool, tmp_path: Path
) -> None:
    await pool.add_model(write_model(tmp_path / "m"))
    await pool.add_model(tmp_path / "m")
    with pytest.raises(SwarmError) as refusal:
        await pool.add_model(write_model(tmp_path / "other", layers=5))
    assert refusal.value.code == "conflict"
    assert (await pool.ask("models_list")).models[0].layers == 4


@pytest.mark.parametrize(
    "damage, told",
    [
        (drop("config.json"), "config.json is missing"),
        (drop("tokenizer.json"), "tokenizer.json is missing"),
        (drop("model.safetensors"), "no .safetensors"),
        (cut, "not a whole safetensors file"),
        (index_without_file, "1 of 1 weight files are missing"),
        (edit(auto_map={"AutoModel": "x.Y"}), "auto_map"),
        (edit(model_type="mystery"), "mystery"),
        (edit(num_hidden_layers=6), "lack 2 of 6 layers"),
    ],
)
async def test_a_folder_that_cannot_be_trained_is_refused_with_what_is_wrong(
    pool: Pool, tmp_path: Path, damage: Callable[[Path], None], told: str
) -> None:
    folder = write_model(tmp_path / "m")
    damage(folder)
    with pytest.raises(SwarmError) as refusal:
        await pool.add_model(folder)
    assert refusal.value.code == "invalid-input"
    assert told in refusal.value.message
    assert (await pool.ask("models_list")).models == []


@pytest.mark.parametrize("file", ["pytorch_model.bin", "modeling_x.py", "weights.pt", "a.pkl"])
async def test_pickled_weights_and_code_are_not_taken(pool: Pool, file: str) -> None:
    with pytest.raises(SwarmError) as refusal:
        await pool.send("models_add", b"x", name="tiny", file=file)
    assert refusal.value.code == "invalid-input"


@pytest.mark.parametrize("file", ["../x.json", "a/b.json", ".hidden.json", "x.json/"])
async def test_a_file_name_never_leaves_its_folder(pool: Pool, file: str) -> None:
    with pytest.raises(SwarmError) as refusal:
        await pool.send("models_add", b"x", name="tiny", file=file)
    assert refusal.value.code == "invalid-input"


async def test_a_model_that_is_not_there_is_not_found(pool: Pool, tmp_path: Path) -> None:
    with pytest.raises(SwarmError) as refusal:
        await pool.ask("models_add", name="none", finish=True)
    assert refusal.value.code == "not-found"
