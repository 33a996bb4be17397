"""The memory oracle counts what the allocator does, and prices agree with the oracle."""

from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from stage_runtime.model_facts import facts_from_config
from tests.oracle.lean_adapters import BAR, compare
from tests.oracle.live_bytes import LiveBytes
from tests.oracle.memory_grid import Row, fallback_rows, rows
from tests.oracle.memory_oracle import Case, OneStep, OracleStage, count
from tests.oracle.memory_table import FALLBACK_BAR, LOW_BAR, WORST_BAR, line_of, price_of
from tests.unit.stage_runtime.small_models import CONFIGS, UNFUSED


class _Nothing:
    """Stands where a counter would: the profiler alone counts."""

    now = 0


def allocator_peak(case: Case) -> int:
    """What PyTorch's allocator says of a real step and update, with no mode active."""
    torch.manual_seed(0)
    stage = OracleStage(case)
    stage.make_moments()
    run, before = OneStep(stage), LiveBytes()
    for tensor in (*stage.tensors(), *run.tensors()):
        before.hold(tensor)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run.step(_Nothing())
        stage.optimizer.step()
    found = profiler.profiler
    assert found is not None
    events = [one for one in found.kineto_results.events() if one.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda one: one.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return before.now + peak


def a_small_case(family: str, method: str, **changes: Any) -> Case:
    config = (CONFIGS | UNFUSED)[family] | {"tie_word_embeddings": False}
    facts = facts_from_config(config)
    everything = (*facts.attention_targets, *facts.mlp_targets)
    targets = {"attention": facts.attention_targets, "all-linear": everything, "full": None}
    shape: dict[str, Any] = {"seq_len": 256, "batch": 4, "micro_batches": 2, "kernel": "cpu"}
    return Case(config, 2, targets[method], **(shape | changes))


@pytest.mark.parametrize(
    ("family", "method", "dtype", "recompute"),
    [
        ("llama", "attention", torch.float32, False),
        ("llama", "full", torch.float32, True),
        ("qwen3", "attention", torch.bfloat16, False),
        ("qwen3", "all-linear", torch.float32, True),
        ("gpt2", "attention", torch.bfloat16, True),
        ("gemma3_text", "full", torch.bfloat16, False),
        ("mistral", "all-linear", torch.float32, False),
        ("mixtral", "attention", torch.bfloat16, False),
        ("qwen3_moe", "attention", torch.bfloat16, True),
        ("gpt_oss", "attention", torch.bfloat16, False),
        ("gemma2", "all-linear", torch.float32, True),
    ],
)
def test_the_oracle_on_fake_tensors_counts_what_the_allocator_gives_to_real_ones(
    family: str, method: str, dtype: torch.dtype, recompute: bool
) -> None:
    case = a_small_case(family, method, dtype=dtype, recompute=recompute)
    assert count(case).peak == pytest.approx(allocator_peak(case), rel=1e-4)


def test_what_a_cpu_kernel_copies_unseen_is_in_the_workspace_of_a_cpu_card() -> None:
    """Adding a float32 adapter's output to a bfloat16 one widens the narrow one first."""
    case = a_small_case("llama", "all-linear", dtype=torch.bfloat16, recompute=True)
    seen, real = count(case).peak, allocator_peak(case)
    assert real > 1.02 * seen
    assert seen < real < price_of(case).total


ROWS = {row.title: row for row in rows()}
SPREAD = [
    "qwen3-0.6b all-linear bfloat16 512x8/1 2of3 again flash",
    "qwen3-8b full bfloat16 128x8/1 2of3 again flash",
    "llama-3.1-8b attention bfloat16 8192x1/1 2of3 kept flash",
    "llama-3.1-70b all-linear bfloat16 2048x1/1 2of3 kept flash",
    "gemma3-1b all-linear bfloat16 1024x4/1 2of3 again flash",
    "gpt2 attention bfloat16 1024x4/1 2of3 again flash",
    "pythia-1.4b attention bfloat16 1024x4/1 2of3 again flash",
    "mixtral-8x7b attention bfloat16 8192x1/1 2of3 kept flash",
    "qwen3-30b-a3b attention bfloat16 4096x1/1 2of3 again flash",
    "gpt-oss-20b attention bfloat16 1024x1/1 2of3 kept flash",
    "gemma2-2b attention bfloat16 4096x1/1 2of3 again flash",
    "qwen3-0.6b attention bfloat16 1024x8/8 1of3 kept flash",
    "gemma3-1b attention bfloat16 2048x1/1 3of3 kept flash",
    "qwen3-14b attention bfloat16 2048x1/1 2of3 kept efficient",
    "qwen3-1.7b all-linear float32 1024x1/1 2of3 kept flash",
    "qwen3-0.6b all-linear bfloat16 1024x4/4 2of3 2-early flash",
    "llama-3.1-8b attention bfloat16 2048x4/4 1of3 4-early flash",
]


@pytest.mark.parametrize("title", SPREAD)
def test_prices_hold_the_bar_over_a_spread_of_the_table(title: str) -> None:
    assert -LOW_BAR <= line_of(ROWS[title]).off <= WORST_BAR


@pytest.mark.parametrize("row", fallback_rows()[::5], ids=lambda row: row.title)
def test_experts_without_the_grouped_kernel_are_priced_as_their_fallback(row: Row) -> None:
    assert -LOW_BAR <= line_of(row).off <= FALLBACK_BAR


def test_the_table_has_sixty_configurations_and_every_model_of_the_bar() -> None:
    assert len(ROWS) >= 60
    told = " ".join(ROWS)
    for model in ("qwen3-0.6b", "qwen3-32b", "llama-3.1-8b", "llama-3.1-70b", "gemma3", "gpt2"):
        assert model in told
    for model in ("mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b"):
        assert model in told


@pytest.mark.parametrize("model", ["qwen3-8b", "gpt2", "gemma3-12b"])
def test_pefts_own_layers_keep_at_least_a_quarter_more_with_all_projections_adapted(
    model: str,
) -> None:
    line = compare(model)
    assert line.ratio >= BAR
