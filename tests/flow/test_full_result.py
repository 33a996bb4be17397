"""A full fine-tune as a whole checkpoint: plain transformers loads what the stages trained."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from control.jobs.adapters import join_tensors
from stage_runtime.checkpoint import open_checkpoint
from stage_runtime.merge import merge_file
from tests.oracle.grid import Ground, Point
from tests.oracle.one_process import held_out
from tests.oracle.stages import Workers, run_to_end
from transport.reports import Evaluated


@pytest.mark.parametrize("model", ["llama", "mixtral"])
def test_trained_weights_alone_are_a_model_with_the_runs_own_held_out_loss(
    workers: Workers, ground: Ground, tmp_path: Path, model: str
) -> None:
    point = Point(model, 2, method="full")
    case = ground.case(point)
    case = replace(case, settings=case.settings.model_copy(update={"steps": 4}))
    run = run_to_end(workers, case, 2)
    joined = tmp_path / "joined.safetensors"
    join_tensors([run.file_of(stage) for stage in range(2)], joined)

    facts = open_checkpoint(ground.model(model)).facts
    drop = frozenset({f"{facts.family.head}.weight"}) if facts.tied else frozenset()
    whole = tmp_path / "whole"
    merge_file(joined, whole / "model.safetensors", None, None, drop)
    (whole / "config.json").write_bytes((ground.model(model) / "config.json").read_bytes())

    merged = AutoModelForCausalLM.from_pretrained(whole, dtype=torch.float32)
    loss, _ = held_out(merged, ground.sequences(point), case.settings)
    told = {one.moment: one for one in run.workers[-1].of(Evaluated)}
    assert abs(told["trained"].loss - loss) <= 1e-4
