"""Plans asked for with what does not exist, contradicts itself, or is too small or too much."""

import json
from typing import Any

import pytest

from tests.flow.open_leader import JOB, OTHER, POOL
from tests.flow.refusals import ERAS, World, run_swarm
from transport.api.catalog import OPERATIONS

pytestmark = pytest.mark.usefixtures("told_where")

DAY_S = 86_400.0
SMALL: dict[str, Any] = {
    "model": {"id": "Qwen/Qwen3-0.6B"},
    "data": {"bucket": "any"},
    "train": {"steps": 10},
}
A_CARD: list[Any] = [{"name": "atlas", "cards": ["RTX 4090"]}]


def cards(*fellows: dict[str, Any], **more: Any) -> dict[str, Any]:
    """An inventory file."""
    return {"version": 1, "fellows": list(fellows), **more}


async def answers(world: World, name: str, ask: dict[str, Any]) -> dict[str, Any]:
    """The one answer that every face gives; the command line's exit code beside it."""
    told = [(await world.tools[face].call_tool(name, ask)).structured_content for face in ERAS]
    told.append(await world.post(OPERATIONS[name].path, **ask))
    words = [*OPERATIONS[name].words, "--json"]
    for key, value in ask.items():
        if key in OPERATIONS[name].positional:
            words.append(str(value))
            continue
        file = world.folder / f"{key}.json"
        file.write_text(json.dumps(value))
        words += [f"--{key.replace('_', '-')}", str(file)]
    _, out, _ = await run_swarm(*words)
    told.append(json.loads(out))
    assert all(one == told[0] for one in told), told
    first: dict[str, Any] | None = told[0]
    assert first is not None
    return first


@pytest.mark.parametrize(
    ("inventory", "said"),
    [
        (cards(), "0 with a usable card, 1 needed (there is no card yet)"),
        (cards({"name": "atlas", "cards": []}), "(there is no card yet)"),
        (
            cards({"name": "atlas", "cards": [{"card": "RTX 4090", "free_gb": 0}]}),
            "1 x 0 B free, below the",
        ),
    ],
)
async def test_a_pool_without_room_is_an_answer_with_numbers_for_training_and_for_serving(
    world: World, inventory: dict[str, Any], said: str
) -> None:
    plan = await answers(world, "jobs_plan", {"config": SMALL, "inventory": inventory})
    assert (plan["fits"], plan["plan_id"]) == (False, None)
    assert said in plan["reason"]
    ask = {"model": SMALL["model"]["id"], "inventory": inventory}
    served = await answers(world, "models_plan", ask)
    assert (served["fits"], served["plan_id"]) == (False, None)
    assert said in served["reason"]


async def test_one_card_a_card_without_a_figure_and_64_fellows_are_planned(world: World) -> None:
    one = await answers(world, "jobs_plan", {"config": SMALL, "inventory": cards(*A_CARD)})
    assert (one["fits"], len(one["layout"]["stages"])) == (True, 1)
    silent = {"name": "borealis", "cards": [{"card": "RTX 4090", "tflops": {}}]}
    told = await answers(world, "jobs_plan", {"config": SMALL, "inventory": cards(*A_CARD, silent)})
    (split,) = [one for one in told["chosen"] if one["setting"] == "split"]
    assert split["reason"] == "by free memory: no measured speed for borealis's RTX 4090 #0"
    assert (told["fits"], told["layout"]["step_s"]) == (True, None)
    many = cards(*[{"name": f"m{n}", "cards": ["RTX 3060"]} for n in range(64)])
    plan = await answers(world, "jobs_plan", {"config": SMALL, "inventory": many})
    assert len(plan["layout"]["stages"]) == 16
    spare = [card["reason"] for card in plan["cards"] if not card["used"]]
    assert spare == ["not needed: a job takes at most 16 fellows"] * 48
    text = await typed(world, SMALL, many)
    assert text.count("left out:") == 1
    assert "and 44 more: not needed" in text


async def typed(world: World, config: dict[str, Any], inventory: dict[str, Any]) -> str:
    """What a person reads of a plan on paper."""
    for name, value in (("job", config), ("cards", inventory)):
        (world.folder / f"{name}.json").write_text(json.dumps(value))
    files = [str(world.folder / name) for name in ("job.json", "cards.json")]
    _, out, _ = await run_swarm("plan", "--config", files[0], "--inventory", files[1])
    return out


@pytest.mark.parametrize(
    ("inventory", "said"),
    [
        (cards({"name": "a", "cards": ["RTX 9999"]}), ("a: 'RTX 9999' is not a known card",)),
        (cards({"name": "a", "cards": [{"card": "RTX 4090", "count": 65}]}), ("/count",)),
        (cards({"name": "a", "cards": [{"card": "RTX 4090", "free_gb": 30}]}),
         ("a: free_gb 30 is more than the card's 25.77 GB",)),
        (cards(*A_CARD, *A_CARD), ("two fellows are called 'atlas'",)),
        (cards({"nam": "a", "cards": []}), ("did you mean 'name'?",)),
        (cards(*A_CARD, links=[{"sender": "atlas", "taker": "x", "bytes_per_s": 1.0}]),
         ("a link names 'x', which is not a fellow",)),
        (cards({"name": "a", "cards": [], "up_bytes_per_s": 1.0}),
         ("give up_bytes_per_s and down_bytes_per_s",)),
        (cards({"name": "a", "cards": [{"card": "RTX 4090", "free_gb": -3}]}), ("/free_gb",)),
        ({"version": 2, "fellows": []}, ("/version",)),
    ],
)  # fmt: skip
async def test_an_inventory_with_something_wrong_is_refused_on_every_face(
    world: World, inventory: dict[str, Any], said: tuple[str, ...]
) -> None:
    ask = {"config": SMALL, "inventory": inventory}
    await world.refused("jobs_plan", ask, "invalid-input", *said)
    ask = {"model": SMALL["model"]["id"], "inventory": inventory}
    await world.refused("models_plan", ask, "invalid-input", *said)


async def test_an_unknown_family_is_refused_with_the_families_that_work(world: World) -> None:
    inventory = cards(*A_CARD, models={"acme/mamba": {"model_type": "mamba", "hidden_size": 64}})
    config = SMALL | {"model": {"id": "acme/mamba"}}
    said = ("family 'mamba'", "the families that work are", "llama", "qwen3")
    await world.refused(
        "jobs_plan", {"config": config, "inventory": inventory}, "invalid-input", *said
    )
    ask = {"model": "acme/mamba", "inventory": inventory}
    await world.refused("models_plan", ask, "invalid-input", *said)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layer_index": [14], "partition": "equal"}, ("layer_index [14] and partition equal",)),
        ({"layer_index": [14], "min_workers": 3}, ("makes 2 stages, but min_workers is 3",)),
        ({"layer_index": [28]}, ("boundary at layer 28", "last layer is 27")),
        ({"exclude_cards": ["f-zzzzzzzz:0"]}, ("f-zzzzzzzz:0, which is not a card",)),
        ({"train": {"steps": 10, "seq_len": 40_961}}, ("longer than the 40960 positions",)),
    ],
)
async def test_pins_and_lengths_that_no_plan_can_keep_are_refused_on_every_face(
    world: World, changes: dict[str, Any], said: tuple[str, ...]
) -> None:
    ask = {"config": SMALL | changes, "inventory": cards(*A_CARD)}
    await world.refused("jobs_plan", ask, "invalid-input", *said)


@pytest.mark.parametrize("seq_len", [0, -1, 10_000_000])
async def test_a_length_that_no_job_may_have_is_refused_with_the_bound(
    world: World, seq_len: int
) -> None:
    ask = {"config": SMALL | {"train": {"steps": 10, "seq_len": seq_len}}, "pool": POOL}
    await world.refused("jobs_plan", ask, "invalid-input", "/train/seq_len", but=("cli",))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"context_tokens": 0}, ("/context_tokens",)),
        ({"context_tokens": 10_000_000}, ("/context_tokens",)),
        ({"context_tokens": 40_961}, ("longer than the 40960 positions",)),
        ({"stages": 0}, ("/stages",)),
        ({"stages": 17}, ("/stages",)),
        ({"maximize": "beauty"}, ("/maximize",)),
        ({"kv_storage": "int3"}, ("/kv_storage",)),
        ({"plan_id": "0123456789abcdef"}, ("a plan on an inventory has none",)),
    ],
)
async def test_a_load_with_a_wrong_argument_is_refused_on_every_face(
    world: World, changes: dict[str, Any], said: tuple[str, ...]
) -> None:
    ask = {"model": SMALL["model"]["id"], "inventory": cards(*A_CARD), **changes}
    # The command line tells the choices of an option in its own words.
    but = ("cli",) if {"maximize", "kv_storage"} & set(changes) else ()
    await world.refused("models_plan", ask, "invalid-input", *said, but=but)


async def served(world: World) -> dict[str, Any]:
    """A plan for serving the pool's own model."""
    told = await world.post("/models/plan", pool=POOL, model="local:tiny", context_tokens=16)
    assert told["fits"], told["reason"]
    return told


async def test_a_plan_for_serving_is_kept_shown_again_and_never_taken_for_another(
    world: World,
) -> None:
    plan = await served(world)
    ask = {"pool": POOL, "model": "local:tiny", "plan_id": plan["plan_id"]}
    for face in ERAS:
        again = await world.tools[face].call_tool("models_plan", ask)
        assert again.structured_content == plan
    code, out, _ = await run_swarm(
        "model-load", "local:tiny", "--plan", "--pool", POOL, "--plan-id", plan["plan_id"], "--json"
    )
    assert (code, json.loads(out)) == (0, plan)
    said = f"there is no plan {plan['plan_id']!r} here"
    await world.refused("models_plan", ask | {"pool": OTHER}, "not-found", said)
    training = {"pool": POOL, "config": JOB, "plan_id": plan["plan_id"]}
    await world.refused("jobs_submit", training, "conflict", "is for serving a model")
    job = await world.post("/jobs/plan", pool=POOL, config=JOB)
    await world.refused(
        "models_plan", ask | {"plan_id": job["plan_id"]}, "conflict", "is not one for serving"
    )


async def test_a_plan_for_serving_that_no_longer_holds_is_refused_with_the_new_one(
    world: World,
) -> None:
    plan, leader = await served(world), world.leader
    assert leader is not None
    ask = {"pool": POOL, "model": "local:tiny", "plan_id": plan["plan_id"], "context_tokens": 16}
    fellow_id = world.fellows["only"]
    before = leader.office.registry.of_pool(POOL)[0].beat
    assert before is not None
    full = [card.model_copy(update={"free_bytes": 1000}) for card in before.cards]
    leader.heartbeat(fellow_id, before.model_copy(update={"cards": full}))
    try:
        async with world.http() as client:
            told = (await client.post("/api/v1/models/plan", json=ask)).json()
        assert told["code"] == "plan-changed"
        assert "1 kB free, the plan needs" in told["facts"]["changes"][0]
        assert told["facts"]["new_plan"].startswith("This model would not load:")
        code, _, err = await run_swarm(
            "model-load", "local:tiny", "--plan", "--pool", POOL, "--plan-id", plan["plan_id"]
        )
        assert code == 5
        assert "new plan (none): This model would not load" in err
    finally:
        leader.heartbeat(fellow_id, before)
    assert await world.post("/models/plan", **ask) == plan


async def test_a_plan_for_serving_is_expired_after_a_day(world: World) -> None:
    plan = await served(world)
    world.clock.ahead_s += DAY_S + 1
    ask = {"pool": POOL, "model": "local:tiny", "plan_id": plan["plan_id"]}
    await world.refused("models_plan", ask, "expired", "is older than it may be")
