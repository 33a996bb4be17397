"""What only a graphics card can show, in a few minutes: `pytest -m gpu tests/gpu`.

Number formats and NF4 train on the card, its kernels are the fast ones, and its allocator's peak is
what was priced. Written without a card at hand: not run yet.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from stage_runtime.checkpoint import open_checkpoint
from stage_runtime.process_group import make_group
from stage_runtime.train import boundary_of, load, train
from tests.oracle.grid import Ground, Point
from transport.direct import PipelineLinks
from transport.link import LinkName

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no graphics card"),
]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    """Tiny models and token files."""
    return Ground(tmp_path_factory.mktemp("gpu"))


def told_by(ground: Ground, folder: Path, **changes: Any) -> dict[str, list[dict[str, Any]]]:
    """One stage trained on the first card: every report, by its name."""
    point = Point("llama", 1)
    case = ground.case(point)
    settings = case.settings.model_copy(update={"steps": 6, **changes})
    (order,) = case.orders([(0, case.num_layers - 1)])
    card = order.cards[0].model_copy(
        update={
            "uuid": str(torch.cuda.get_device_properties(0).uuid),
            "budget_bytes": torch.cuda.mem_get_info(0)[0],
        }
    )
    order = order.model_copy(update={"settings": settings, "cards": [card]})
    reports: dict[str, list[dict[str, Any]]] = {}

    def report(kind: Any, **values: Any) -> None:
        reports.setdefault(kind.__name__, []).append(values)

    tokens = ground.cache / "tokens" / f"{case.tokens.digest}.safetensors"
    run = load(order, open_checkpoint(ground.model(point.model)), tokens, report, 0)
    links = PipelineLinks.open(LinkName(order.job_id, 1, 0, 0), 1, "127.0.0.1")
    group = make_group(order, links, [boundary_of(run)])
    try:
        train(run, group, report, folder)
    finally:
        group.close()
    return reports


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_format_trains_on_the_card_near_the_float32_run_of_one_process(
    ground: Ground, tmp_path: Path, dtype: str
) -> None:
    expected = ground.reference(Point("llama", 1)).losses[:6]
    told = told_by(ground, tmp_path, dtype=dtype)
    losses = [step["loss"] for step in told["StepDone"]]
    assert losses == pytest.approx(expected, abs=1e-4 if dtype == "float32" else 0.05)


def test_a_4_bit_base_trains_on_the_card(ground: Ground, tmp_path: Path) -> None:
    told = told_by(ground, tmp_path, dtype="bfloat16", quantization="nf4")
    losses = [step["loss"] for step in told["StepDone"]]
    assert all(torch.isfinite(torch.tensor(losses)))


def test_the_allocators_peak_is_what_was_priced(ground: Ground, tmp_path: Path) -> None:
    told = told_by(ground, tmp_path, dtype="bfloat16", recompute=True)
    (peak,) = told["MemoryMeasured"][-1:]
    assert peak["how"] == "allocator"
    priced = told["StageLoaded"][0]["priced_bytes"]
    assert peak["peak_bytes"] == pytest.approx(priced, rel=0.1, abs=4_000_000)


def test_marks_of_a_card_add_up_and_recompute_is_not_guessed(
    ground: Ground, tmp_path: Path
) -> None:
    told = told_by(ground, tmp_path, dtype="bfloat16", recompute=True)
    for step in told["StepDone"]:
        assert sum(step["marks"].values()) == pytest.approx(step["step_s"])
        assert "recompute" not in step["marks"]


def test_attention_runs_on_the_flash_kernel() -> None:
    q_BHTK = torch.randn(1, 8, 512, 64, device="cuda", dtype=torch.bfloat16)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        out = torch.nn.functional.scaled_dot_product_attention(
            q_BHTK, q_BHTK, q_BHTK, is_causal=True
        )
    assert out.isfinite().all()
