"""A table that two stages hold: one gradient, one update, the same bits after every step."""

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import nn

from stage_runtime.adapters import digest_of
from stage_runtime.model_facts import facts_from_config
from stage_runtime.optim import adamw, set_rate
from stage_runtime.process_group import SwarmGroup, TensorKind
from stage_runtime.tied import TiedTable
from stage_runtime.tied_costs import crossing_bytes, shares_table
from tests.oracle.settings import some_settings
from tests.unit.stage_runtime.small_models import SMOLLM2
from tests.unit.stage_runtime.test_process_group import at_once, chain
from transport.pieces import PIECE_BYTES

ROWS, WIDTH, PIECE = 7, 5, 8
"""35 values in pieces of 8: the last one is not full."""


def parts_of(groups: list[SwarmGroup]) -> list[TiedTable]:
    """Each stage's part, both ends starting from the same values."""
    torch.manual_seed(2)
    values = torch.randn(ROWS, WIDTH)
    last = len(groups) - 1
    return [
        TiedTable(
            group,
            stage,
            len(groups),
            ROWS * WIDTH,
            PIECE,
            nn.Parameter(values.clone()) if stage in (0, last) else None,
        )
        for stage, group in enumerate(groups)
    ]


@pytest.fixture(params=[2, 3, 4])
def parts(request: pytest.FixtureRequest) -> Iterator[list[TiedTable]]:
    groups = chain(request.param)
    for group in groups:
        group._boundaries = frozenset([TensorKind(torch.float32, (PIECE,))])
        group.begin_step(1)
    yield parts_of(groups)
    for group in groups:
        group.close(0)


def weight_of(part: TiedTable) -> nn.Parameter:
    assert part.weight is not None
    return part.weight


def test_both_copies_are_the_same_bits_after_every_step_and_equal_one_table(
    parts: list[TiedTable],
) -> None:
    first, last = weight_of(parts[0]), weight_of(parts[-1])
    alone = nn.Parameter(first.detach().clone())
    ours, theirs = (adamw({"table": one}, torch.device("cpu")) for one in (first, alone))
    for step in range(1, 5):
        below, above = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
        first.grad, last.grad, alone.grad = below.clone(), above.clone(), below + above
        at_once([part.gather for part in parts])
        assert weight_of(parts[-1]).grad is None
        torch.testing.assert_close(first.grad, alone.grad, rtol=0, atol=0)
        for optimizer in (ours, theirs):
            set_rate(optimizer, 0.1 / step)
            optimizer.step()
        at_once([part.spread for part in parts])
        assert digest_of({"table": first}) == digest_of({"table": last})
        assert torch.equal(first, alone)


def test_a_stage_whose_loss_saw_no_target_adds_nothing(parts: list[TiedTable]) -> None:
    first, kept = weight_of(parts[0]), torch.randn(ROWS, WIDTH)
    first.grad = kept.clone()
    at_once([part.gather for part in parts])
    assert torch.equal(first.grad, kept)


def test_the_bytes_on_a_boundary_are_those_that_the_plan_counts() -> None:
    facts = facts_from_config(SMOLLM2 | {"vocab_size": 1001, "hidden_size": 576})
    settings = some_settings(method="full", lora=None)
    groups = chain(2)
    size, planned = 1001 * 576, crossing_bytes(facts, settings, 2)
    piece = 1 << 18
    for group in groups:
        group._boundaries = frozenset([TensorKind(torch.float32, (piece,))])
    weights = [nn.Parameter(torch.zeros(1001, 576)) for _ in range(2)]
    parts = [TiedTable(g, i, 2, size, piece, w) for i, (g, w) in enumerate(zip(groups, weights))]
    at_once([partial(group.exchange, [0.0]) for group in groups])  # connected from here on
    before = groups[1].received_bytes
    at_once([part.spread for part in parts])
    headers = groups[1].received_bytes - before - planned
    frames = -(-size // piece)
    assert 0 < headers < 200 * (frames + planned // PIECE_BYTES)
    for group in groups:
        group.close(0)


def test_nothing_is_shared_with_adapters_untied_or_alone() -> None:
    facts = facts_from_config(SMOLLM2)
    full = some_settings(method="full", lora=None)
    assert shares_table(facts, full, 2)
    assert not shares_table(facts, full, 1)
    assert not shares_table(facts, some_settings(), 2)
    untied = facts_from_config(SMOLLM2 | {"tie_word_embeddings": False})
    assert crossing_bytes(untied, full, 3) == 0
