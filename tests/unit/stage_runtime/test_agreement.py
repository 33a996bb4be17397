"""All stages train the same, or none starts; what would never train is named."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch import nn

from stage_runtime.agreement import (
    agree,
    fingerprint,
    refuse_nothing_to_train,
    refuse_without_gradient,
)
from stage_runtime.process_group import SwarmGroup
from tests.oracle.grid import Ground, Point
from tests.unit.stage_runtime.test_process_group import at_once, chain
from transport.errors import SwarmError
from transport.orders import StageOrder


@pytest.fixture
def groups() -> Iterator[list[SwarmGroup]]:
    made = chain(3)
    yield made
    for group in made:
        group.close(0)


@pytest.fixture
def orders(ground: Ground) -> list[StageOrder]:
    return ground.case(Point("llama", 3)).orders([(0, 1), (2, 3), (4, 5)])


def name(layer: int, projection: str = "q_proj") -> str:
    return f"base_model.model.model.layers.{layer}.self_attn.{projection}.lora_A.weight"


def refusals(
    groups: list[SwarmGroup], orders: list[StageOrder], own: list[str]
) -> list[SwarmError]:
    """What each stage refuses with."""

    def one(stage: int) -> SwarmError | None:
        try:
            agree(groups[stage], orders[stage], own[stage])
        except SwarmError as error:
            return error
        return None

    with ThreadPoolExecutor(3) as pool:
        told = [future.result(20) for future in [pool.submit(one, s) for s in range(3)]]
    return [error for error in told if error is not None]


def test_stages_with_the_same_job_agree_whatever_layers_they_hold(
    groups: list[SwarmGroup], orders: list[StageOrder]
) -> None:
    own = [fingerprint(order, [name(order.first_layer)]) for order in orders]
    assert len(set(own)) == 1
    assert refusals(groups, orders, own) == []


@pytest.mark.parametrize("what", ["settings", "revision", "names"])
def test_one_stage_that_differs_stops_all_of_them_with_the_same_words(
    groups: list[SwarmGroup], orders: list[StageOrder], what: str
) -> None:
    odd = orders[1]
    if what == "settings":
        changed = odd.settings.model_copy(update={"seed": 4})
        odd = odd.model_copy(update={"settings": changed})
    if what == "revision":
        odd = odd.model_copy(update={"model": odd.model.model_copy(update={"revision": "b" * 40})})
    names = [[name(0)], [name(2, "v_proj" if what == "names" else "q_proj")], [name(4)]]
    own = [fingerprint(o, n) for o, n in zip([orders[0], odd, orders[2]], names, strict=True)]
    found = refusals(groups, orders, own)
    assert [error.code for error in found] == ["plan-changed"] * 3


def test_a_full_fine_tune_agrees_though_its_ends_train_more(orders: list[StageOrder]) -> None:
    full = [
        order.model_copy(
            update={"settings": order.settings.model_copy(update={"method": "full", "lora": None})}
        )
        for order in orders
    ]
    names = [["model.embed_tokens.weight"], ["model.layers.2.x.weight"], ["lm_head.weight"]]
    assert len({fingerprint(o, n) for o, n in zip(full, names, strict=True)}) == 1


def test_a_stage_with_nothing_to_train_names_its_layers_and_what_was_looked_for(
    orders: list[StageOrder],
) -> None:
    with pytest.raises(SwarmError, match=r"layers 2-3: they have no projection named q_proj"):
        refuse_nothing_to_train(orders[1], {})


def test_a_tensor_without_a_gradient_is_named_once_and_echoed_by_the_others(
    groups: list[SwarmGroup],
) -> None:
    weights = [nn.Parameter(torch.zeros(2)) for _ in range(3)]
    for weight in (weights[0], weights[2]):
        weight.grad = torch.zeros(2)

    def one(stage: int) -> str | bool:
        try:
            refuse_without_gradient(groups[stage], {f"tensor-{stage}": weights[stage]})
        except SwarmError as error:
            return error.message if not error.facts["echo"] else True
        return False

    told = at_once([partial(one, stage) for stage in range(3)])
    assert told == [True, "tensor-1 got no gradient in the first step: it would never train", True]
