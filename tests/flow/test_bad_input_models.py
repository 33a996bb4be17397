"""Models that cannot be used: unknown, closed, pickled, with code, broken; of the hub and sent."""

import json
import shutil
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.flow.hub_stand_in import Repository, header_of, open_hub, whole, with_config
from tests.flow.open_leader import POOL, write_tiny_model
from tests.flow.refusals import World, check, everything
from tests.flow.refusing_leaders import process_world

pytestmark = pytest.mark.usefixtures("told_where")

HUGE = 1 << 40
WEIGHTS = "model.safetensors"
LOST, HERE = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is good."""
    made = tmp_path_factory.mktemp("model") / "good"
    write_tiny_model(made)
    return made


@pytest.fixture(scope="module")
def hub(folder: Path) -> Iterator[str]:
    """A hub with a repository for each way to be wrong."""
    with open_hub(repositories(folder)) as url:
        yield url


@pytest.fixture(scope="module")
async def world(
    hub: str, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> AsyncIterator[World]:
    """A leader that asks this hub."""
    at = tmp_path_factory.mktemp("leader")
    told = {"HF_ENDPOINT": hub, "HF_HOME": str(at / "hf"), "HF_HUB_OFFLINE": "0"}
    async with process_world(at, **told) as opened:
        yield opened


def repositories(folder: Path) -> dict[str, Repository]:
    """Name -> what the hub has under it."""
    weights = (folder / "model.safetensors").read_bytes()
    places = {"model.norm.weight": LOST, "model.embed_tokens.weight": HERE}
    index = json.dumps({"weight_map": places}).encode()
    nest = b"[" * 100_000
    stranger = header_of({"model.other": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})
    stranger += b"\0" * 4
    layer = {"model.layers.0.x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    return {
        "org/good": whole(folder),
        "org/gated": Repository(refusal=(401, "GatedRepo")),
        "org/closed": Repository(refusal=(403, "GatedRepo")),
        "org/private": Repository(refusal=(401, "RepoNotFound")),
        "org/forbidden": Repository(refusal=(403, "")),
        "org/down": Repository(refusal=(500, "")),
        "org/busy": Repository(refusal=(429, "")),
        "org/pickled": whole(folder, {WEIGHTS: None, "pytorch_model.bin": b"\x80\x04"}),
        "org/nothing": Repository(),
        "org/code": with_config(folder, auto_map={"AutoModel": "modeling.Mine"}),
        "org/family": with_config(folder, model_type="mamba"),
        "org/quantized": with_config(folder, quantization_config={"bits": 4}),
        "org/no-layers": with_config(folder, num_hidden_layers="two"),
        "org/no-config": whole(folder, {"config.json": None}),
        "org/odd-config": whole(folder, {"config.json": b"<html>"}),
        "org/deep-config": whole(folder, {"config.json": nest}),
        "org/list-config": whole(folder, {"config.json": b"[]"}),
        "org/no-tokenizer": whole(folder, {"tokenizer.json": None}),
        "org/odd-tokenizer": whole(folder, {"tokenizer.json": b"{}"}),
        "org/cut": whole(folder, {WEIGHTS: weights[:100]}),
        "org/short": whole(folder, {WEIGHTS: b"\x01"}),
        "org/huge-header": whole(folder, {WEIGHTS: header_of({}, HUGE)}),
        "org/odd-header": whole(folder, {WEIGHTS: struct.pack("<Q", 8) + b"not json"}),
        "org/few-layers": whole(folder, {WEIGHTS: header_of(layer) + b"\0" * 4}),
        "org/fewer-words": with_config(folder, vocab_size=_words(folder) - 1),
        "org/more-words": with_config(folder, vocab_size=_words(folder) + 1),
        "org/wrong-index": whole(
            folder, {WEIGHTS: None, f"{WEIGHTS}.index.json": index, HERE: weights, LOST: stranger}
        ),
        "org/lost-part": whole(
            folder, {WEIGHTS: None, f"{WEIGHTS}.index.json": index, HERE: weights}
        ),
    }


def _words(folder: Path) -> int:
    return int(json.loads((folder / "config.json").read_text())["vocab_size"])


HUB_CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "org/unknown": ("not-found", ("there is no model 'org/unknown' here", "HF_TOKEN")),
    "org/private": ("not-found", ("there is no model 'org/private' here", "HF_TOKEN")),
    "org/good@no-such": ("not-found", ("there is no model 'org/good@no-such' here",)),
    "org/gated": ("forbidden", ("org/gated is gated", "accept its terms on the hub")),
    "org/closed": ("forbidden", ("org/closed is gated", "accept its terms on the hub")),
    "org/forbidden": ("forbidden", ("org/forbidden", "403", "HF_TOKEN")),
    "org/down": ("unavailable", ("org/down", "500", "try again")),
    "org/busy": ("rate-limited", ("org/busy", "429", "HF_TOKEN")),
    "org/pickled": ("invalid-input", ("no .safetensors weights", "pickled ones are never read")),
    "org/nothing": ("invalid-input", ("no .safetensors weights",)),
    "org/code": ("invalid-input", ("its own model code (auto_map)", "never run here", "llama")),
    "org/family": ("invalid-input", ("family 'mamba' cannot be trained here", "qwen3")),
    "org/quantized": ("invalid-input", ("quantiz",)),
    "org/no-layers": ("invalid-input", ("num_hidden_layers",)),
    "org/no-config": ("invalid-input", ("config.json is missing",)),
    "org/odd-config": ("invalid-input", ("config.json is not JSON",)),
    "org/deep-config": ("invalid-input", ("config.json is not JSON",)),
    "org/list-config": ("invalid-input", ("config.json is not a JSON object",)),
    "org/no-tokenizer": ("invalid-input", ("no tokenizer.json",)),
    "org/odd-tokenizer": ("invalid-input", ("tokenizer.json cannot be read",)),
    "org/cut": ("invalid-input", ("org/cut", "model.safetensors", "header")),
    "org/short": ("invalid-input", ("org/short", "model.safetensors", "header")),
    "org/huge-header": ("invalid-input", ("org/huge-header", "model.safetensors", "header")),
    "org/odd-header": ("invalid-input", ("org/odd-header", "model.safetensors", "header")),
    "org/few-layers": ("invalid-input", ("lack 1 of 2 layers", "layer 1")),
    "org/lost-part": ("invalid-input", (f"{LOST} is missing",)),
    "org/wrong-index": ("invalid-input", ("lacks the tensor model.norm.weight",)),
    "org/fewer-words": ("invalid-input", ("embed_tokens.weight holds", "a vocabulary of")),
    "org/more-words": ("invalid-input", ("embed_tokens.weight holds", "a vocabulary of")),
}


def ask_for(model: str) -> dict[str, Any]:
    """Arguments of jobs_plan."""
    train = {"steps": 3, "seq_len": 8}
    config = {"model": {"id": model}, "data": {"bucket": "words"}, "train": train}
    return {"pool": POOL, "config": config}


@pytest.mark.parametrize("model", HUB_CASES)
async def test_a_model_of_the_hub_that_cannot_be_used_is_refused(world: World, model: str) -> None:
    code, words = HUB_CASES[model]
    await world.refused("jobs_plan", ask_for(model), code, *words)


@pytest.mark.parametrize("model", ["org/unknown", "org/gated", "org/pickled", "local:none"])
async def test_a_job_with_a_model_that_cannot_be_used_is_not_accepted(
    world: World, model: str
) -> None:
    code, _ = HUB_CASES.get(model, ("not-found", ()))
    await world.refused("jobs_submit", {**ask_for(model), "unpinned": True}, code)


async def test_the_good_one_of_the_same_hub_is_taken(world: World) -> None:
    plan = await world.post("/jobs/plan", **ask_for("org/good"))
    assert plan["fits"], plan["reason"]


@pytest.mark.parametrize("model", ["local:none", "local:tiny@0000000"])
async def test_a_local_model_that_is_not_there_is_refused(world: World, model: str) -> None:
    said = f"there is no model '{model}' here"
    await world.refused("jobs_plan", ask_for(model), "not-found", said, "models_list")


@pytest.mark.parametrize(
    "model", ["none", "../x/y", "local:../x", "a/b/c", "http://x/y", "a/b@c/d"]
)
async def test_what_is_no_model_id_is_refused(world: World, model: str) -> None:
    await world.refused(
        "jobs_plan", ask_for(model), "invalid-input", "/model/id: should be a model", but=("cli",)
    )
    file = world.folder / "job.json"
    file.write_text(json.dumps(ask_for(model)["config"]))
    told = await world.swarm("train", "--config", str(file), "--pool", POOL)
    check(told, "invalid-input", ("/model/id: should be a model as local:NAME",))


async def test_a_hub_that_cannot_be_reached_is_said_so_and_a_model_of_the_store_works_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "hf")}
    async with process_world(tmp_path, HF_HUB_OFFLINE="0", **gone) as world:
        monkeypatch.setenv("SWARM_LEADER", world.url)
        monkeypatch.setenv("SWARM_TOKEN", world.token)
        said = (
            "the model hub cannot be reached",
            "org/good is not in the cache",
            "swarm models add",
        )
        await world.refused("jobs_plan", ask_for("org/good"), "unavailable", *said)
        assert (await world.post("/jobs/plan", **ask_for("local:tiny")))["fits"]


# --- sent to the store ----------------------------------------------------------------------------

SENT: dict[str, tuple[str, ...]] = {
    "org/code": ("its own model code (auto_map)", "never run here"),
    "org/family": ("family 'mamba' cannot be trained here",),
    "org/odd-config": ("config.json is not JSON",),
    "org/no-config": ("config.json is missing",),
    "org/no-tokenizer": ("tokenizer.json is missing",),
    "org/odd-tokenizer": ("tokenizer.json cannot be read",),
    "org/cut": ("model.safetensors", "its header"),
    "org/short": ("model.safetensors", "its header"),
    "org/huge-header": ("model.safetensors", "its header"),
    "org/odd-header": ("model.safetensors", "its header cannot be read"),
    "org/few-layers": ("lack 1 of 2 layers",),
    "org/wrong-index": (f"{LOST} lacks the tensor model.norm.weight",),
    "org/lost-part": (f"1 of 2 weight files are missing: {LOST}",),
    "org/fewer-words": ("embed_tokens.weight holds", "a vocabulary of"),
    "org/more-words": ("embed_tokens.weight holds", "a vocabulary of"),
}


@pytest.mark.parametrize("case", SENT)
async def test_a_broken_model_that_was_sent_is_refused_and_no_list_shows_it(
    world: World, folder: Path, case: str, tmp_path: Path
) -> None:
    name = case.removeprefix("org/")
    sent = tmp_path / name
    sent.mkdir()
    headers = {"content-type": "application/octet-stream"}
    async with world.http(**headers) as client:
        for file, content in repositories(folder)[case].files.items():
            (sent / file).write_bytes(content)
            path = f"/api/v1/models/{name}/files?file={file}"
            assert (await client.post(path, content=content)).status_code == 200
    ask = {"name": name, "finish": True}
    await world.refused("models_add", ask, "invalid-input", *SENT[case], but=("cli",))
    told = await world.swarm("models", "add", str(sent), "--name", f"{name}-cli", "-q")
    check(told, "invalid-input")
    async with world.http() as client:
        listed = (await client.get("/api/v1/models")).json()["models"]
    assert [model["model_id"] for model in listed] == ["local:tiny"]


@pytest.mark.parametrize("file", ["pytorch_model.bin", "modeling.py", "weights.pkl", "run.sh", "a"])
async def test_pickled_weights_and_code_are_not_taken(
    world: World, folder: Path, file: str, tmp_path: Path
) -> None:
    ask = {"name": "bad", "file": file, "content": "x"}
    said = (f"{file} is not taken", "converted to safetensors")
    await world.refused("models_add", ask, "invalid-input", *said, but=("cli",))
    before = everything(world.data)
    (tmp_path / "m").mkdir()
    shutil.copy(folder / "config.json", tmp_path / "m")
    (tmp_path / "m" / file).write_bytes(b"x")
    told = await world.swarm("models", "add", str(tmp_path / "m"), "--name", "bad")
    check(told, "invalid-input", ("holds no *.safetensors file", "pickled weights are never read"))
    assert everything(world.data) == before


async def test_a_model_that_was_never_sent_cannot_be_finished_and_a_taken_name_is_kept(
    world: World, folder: Path
) -> None:
    ask = {"name": "never", "finish": True}
    await world.refused(
        "models_add", ask, "not-found", "local:never", "send its files", but=("cli",)
    )
    ask = {"name": "never"}
    await world.refused("models_add", ask, "invalid-input", "/file: is missing", but=("cli",))
    headers = {"content-type": "application/octet-stream"}
    async with world.http(**headers) as client:
        for path in folder.iterdir():
            content = path.read_bytes() + (b" " if path.name == "config.json" else b"")
            await client.post(f"/api/v1/models/tiny/files?file={path.name}", content=content)
    ask = {"name": "tiny", "finish": True}
    said = "local:tiny is there already, with other files"
    await world.refused("models_add", ask, "conflict", said, but=("cli",))
