"""The plain run in one process: what stages compute, within its price and within its budget."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from stage_runtime.model_facts import facts_from_config
from stage_runtime.places import Device
from stage_runtime.reference_costs import reference_bytes
from stage_runtime.reference_process import run_reference
from tests.oracle.grid import Ground, Point
from tests.oracle.stages import REVISION, Case, Workers, run_to_end
from transport.orders import CardShare, ModelSource, ReferenceOrder, ReferenceStart
from transport.reports import Evaluated, StepDone


def alone(case: Case, budget_bytes: int = 1 << 40) -> dict[str, Any]:
    """Train a case in this very process, from the cache."""
    card = CardShare(
        index=0,
        uuid="cpu-0",
        first_layer=0,
        last_layer=case.num_layers - 1,
        planned_bytes=0,
        budget_bytes=budget_bytes,
    )
    model = ModelSource(
        model_id=f"local:{case.model}",
        repository=f"local/{case.model}",
        revision=REVISION,
        from_leader=True,
    )
    order = ReferenceOrder(
        verify_id="v-abcdefgh",
        job_id="j-abcdefgh",
        model=model,
        settings=case.settings,
        tokens=case.tokens,
        card=card,
        threads=1,
    )
    start = ReferenceStart(
        order=order,
        leader_url="",
        leader_token="swn_test",
        leader_pin=None,
        cache_folder=str(case.cache),
    )
    return run_reference(start)


@pytest.mark.parametrize(
    ("point", "apart"),
    [
        (Point("llama", 2, changes=(("steps", 4),)), 1e-5),
        (Point("gpt2", 2, method="full", layout="ragged", changes=(("steps", 4),)), 1e-5),
        (Point("mixtral-64", 2, changes=(("steps", 4), ("quantization", "nf4"))), 1e-5),
        (Point("llama", 2, changes=(("steps", 4), ("dtype", "float16"))), 5e-3),
        (
            Point("llama", 2, layout="documents", changes=(("steps", 4), ("document_mask", True))),
            1e-5,
        ),
    ],
    ids=str,
)
def test_one_process_computes_what_stages_compute_and_holds_what_was_estimated(
    workers: Workers, tmp_path_factory: pytest.TempPathFactory, point: Point, apart: float
) -> None:
    ground = Ground(tmp_path_factory.mktemp("reference"))
    case = ground.case(point)
    run = run_to_end(workers, case, 2)
    told = alone(case)

    losses = [step.loss for step in run.workers[-1].of(StepDone)]
    held_out = [one.loss for one in run.workers[-1].of(Evaluated)]
    assert told["losses"] == pytest.approx(losses, abs=apart)
    assert told["held_out"] == pytest.approx(held_out, abs=apart)
    config = json.loads((ground.model(point.model) / "config.json").read_text())
    estimate = reference_bytes(facts_from_config(config), case.settings, Device("cpu"))
    assert told["peak_bytes"] <= estimate


def test_a_run_beyond_the_cards_budget_stops(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    with pytest.raises(torch.OutOfMemoryError, match="budget"):
        alone(ground.case(Point("llama", 1)), budget_bytes=300_000)
