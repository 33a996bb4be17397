"""Stages under torchrun, with no leader: the same losses as one process, and clear refusals."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stage_runtime.launched import Rank, RunFile, run_rank, spans
from tests.oracle.grid import TOLERANCE, Ground, Point
from transport.errors import SwarmError
from transport.schema import parse

ROOT = Path(__file__).resolve().parents[2]


def run_file(ground: Ground, point: Point, folder: Path, **changes: Any) -> Path:
    """A run of a point of the grid over gloo."""
    settings = ground.settings(point).model_copy(update={"backend": "gloo"})
    tokens = ground.tokens(point)
    told = {
        "model": str(ground.model(point.model)),
        "tokens": str(ground.cache / "tokens" / f"{tokens.digest}.safetensors"),
        "layout": tokens.layout,
        "held_out_sequences": tokens.held_out_sequences,
        "pad_token_id": tokens.pad_token_id,
        "settings": settings.model_dump(mode="json"),
        "out": str(folder / "out"),
        **changes,
    }
    path = folder / "run.json"
    path.write_text(json.dumps(told))
    return path


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_ranks_of_torchrun_train_to_the_losses_of_one_process(
    ground: Ground, tmp_path: Path
) -> None:
    point = Point("llama", 2)
    path = run_file(ground, point, tmp_path)
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *words, "-m", "stage_runtime.launched", str(path)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    expected = ground.reference(point).losses
    for rank in range(2):
        lines = (tmp_path / "out" / f"reports-{rank}.jsonl").read_text().splitlines()
        steps = [told for line in lines if (told := json.loads(line))["kind"] == "step"]
        assert [step["loss"] for step in steps] == pytest.approx(expected, abs=TOLERANCE)
        assert (tmp_path / "out" / f"stage-{rank}.safetensors").is_file()


def test_layers_are_cut_evenly_or_as_told_and_wrong_cuts_are_refused() -> None:
    assert spans(7, 3, None) == [(0, 2), (3, 4), (5, 6)]
    assert spans(6, 2, [4]) == [(0, 3), (4, 5)]
    for cuts in ([0], [6], [4, 2], [1, 2]):
        with pytest.raises(SwarmError, match="do not give each of 2 ranks a layer of 6"):
            spans(6, 2, cuts)
    with pytest.raises(SwarmError, match="of 8 ranks"):
        spans(6, 8, None)


def test_without_a_launcher_and_with_swarms_own_backend_it_is_refused(
    ground: Ground, tmp_path: Path
) -> None:
    with pytest.raises(SwarmError, match="has not set WORLD_SIZE"):
        Rank.of({"RANK": "0"})
    path = run_file(ground, Point("llama", 2), tmp_path)
    run = parse(RunFile, json.loads(path.read_text()))
    swarm = run.model_copy(
        update={"settings": run.settings.model_copy(update={"backend": "swarm"})}
    )
    with pytest.raises(SwarmError, match="whose links a leader makes"):
        run_rank(swarm, Rank(0, 2, 0))


def test_more_held_out_than_the_tokens_have_is_refused_with_both_numbers(
    ground: Ground, tmp_path: Path
) -> None:
    path = run_file(ground, Point("llama", 2), tmp_path, held_out_sequences=10_000)
    run = parse(RunFile, json.loads(path.read_text()))
    with pytest.raises(SwarmError, match="sequences, 10000 of them held out"):
        run_rank(run, Rank(0, 2, 0))
