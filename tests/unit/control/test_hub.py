"""Hub models: an id becomes a commit with its files' sizes; what cannot be had is said plainly."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from control.clock import HandClock
from control.datasets.hub import Hub
from tests.conftest import ROOT
from tests.leader_twins import write_model
from transport.errors import SwarmError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("hub") / "model")


def resolve(model: Path, model_id: str, cache: Path) -> dict[str, Any]:
    run = subprocess.run(
        [sys.executable, "-m", "tests.unit.control.hub_twin", str(model), model_id],
        check=True,
        cwd=ROOT,
        env={**os.environ, "HF_HOME": str(cache)},
        capture_output=True,
        text=True,
        timeout=40,
    )
    told: dict[str, Any] = json.loads(run.stdout)
    return told


def test_an_id_becomes_a_commit_with_the_sizes_of_its_tensors(model: Path, tmp_path: Path) -> None:
    told = resolve(model, "tiny/model@main", tmp_path)
    assert told["source"] == {
        "model_id": "tiny/model",
        "repository": "tiny/model",
        "revision": "c" * 40,
        "from_leader": False,
    }
    assert told["tensors"] == {"model.safetensors": 4 * 9 + 2}
    assert told["files"] == ["config.json", "tokenizer.json", "tokenizer_config.json"]


@pytest.mark.parametrize(
    "model_id, code",
    [
        ("tiny/nothing", "not-found"),
        ("tiny/gated", "forbidden"),
        ("tiny/pickled", "invalid-input"),
    ],
)
def test_what_cannot_be_had_is_refused_with_its_own_code(
    model: Path, tmp_path: Path, model_id: str, code: str
) -> None:
    assert resolve(model, model_id, tmp_path)["code"] == code


async def test_without_a_network_and_a_cached_copy_the_hub_is_unavailable() -> None:
    with pytest.raises(SwarmError) as refusal:
        await Hub(HandClock()).resolve("no-such-owner/no-such-model", None)
    assert refusal.value.code == "unavailable"
    assert "swarm models add" in refusal.value.hint
