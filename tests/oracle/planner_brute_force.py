"""Every split, every order and every subset of small pools, against the planner's search.

Independent of control.planning.exact and .orders: counts are enumerated, and a step is the sum of
the stages and M - 1 times the slowest, computed here. As a command it prints what was compared:

    python -m tests.oracle.planner_brute_force --fellows 5 --layers 24 --pools 20
"""

import argparse
import math
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise, permutations
from typing import Any

from control.planning import auto
from control.planning.course import Course
from control.planning.disk import DISK_SPARE
from control.planning.orders import Tries
from control.planning.pace import Links, Uplink
from control.planning.search import Ask, course_of
from control.planning.split import (
    FellowCards,
    Pins,
    PlacedCard,
    StageLayers,
    fellows_of,
    split_at,
    spread,
)
from control.planning.subsets import best_subset
from control.planning.usable import Card, FellowNow
from stage_runtime.model_facts import ModelFacts
from tests.unit.control.planning.pools import GB, a_card, a_fellow, a_job, a_model
from transport.orders import TrainSettings

LETTERS = "abcdefghjk"
RESERVE = 1_000_000_000


@dataclass(frozen=True)
class Case:
    """One pool and job."""

    ask: Ask
    fellows: list[FellowCards]
    batch: int

    def settings(self, stages: int) -> TrainSettings:
        """Over so many stages."""
        saving = auto.Saving(recompute=False, quantization="none")
        return auto.settings(self.ask.asked(stages), self.batch, saving)

    @cached_property
    def _courses(self) -> dict[int, Course]:
        return {}

    def course(self, stages: int) -> Course:
        """The planner's own course over so many stages."""
        if stages not in self._courses:
            made = course_of(self.ask, self.fellows, self.settings(stages))
            self._courses[stages] = Course(
                made.book, stages, made.pins, made.disk, made.pace, made.moves
            )
        return self._courses[stages]


def a_case(seed: int, most_fellows: int = 4, layers: int = 12) -> Case:
    """A pool of up to so many fellows; in every other one memory binds. A third has links."""
    dice = random.Random(seed)
    hidden = dice.choice([2048, 3072, 4096])
    model = a_model(
        {
            "model_type": "llama", "hidden_size": hidden, "intermediate_size": 4 * hidden,
            "num_attention_heads": 16, "num_hidden_layers": layers, "vocab_size": 32000,
            "tie_word_embeddings": False, "max_position_embeddings": 4096,
        }
    )  # fmt: skip
    batch, seq_len = dice.choice([1, 4, 8]), dice.choice([128, 256])
    job = a_job(train__batch_size=batch, train__seq_len=seq_len)
    fellows = dice.randint(2, most_fellows)
    need = 2 * model.facts.total_params / fellows
    tight = seed % 2 == 0
    pool = [_a_fellow(dice, LETTERS[i], need, tight=tight) for i in range(fellows)]
    cards = [Card(one, card) for one in pool if one.heartbeat for card in one.heartbeat.cards]
    links = _links(dice, pool) if seed % 3 == 0 else None
    chosen = auto.Format("float16", "")
    ask = Ask(model, job, None, Pins(), chosen, links=links)
    return Case(ask, fellows_of(cards), batch)


def _a_fellow(dice: random.Random, letter: str, need: float, *, tight: bool) -> FellowNow:
    count = dice.choice([1, 1, 1, 2])
    cards = []
    for index in range(count):
        room = dice.uniform(0.7, 2.2) if tight else dice.uniform(4.0, 8.0)
        gb = (need * room / count) / GB + dice.choice([0.9, 1.5, 2.2])
        tflops = {"float16": round(dice.uniform(2, 40), 1)}
        cards.append(a_card(index, gb, kind="cuda", formats=["float16"], tflops=tflops))
    return a_fellow(letter, *cards)


def _links(dice: random.Random, pool: Sequence[FellowNow]) -> Links:
    rates = [dice.choice([3e6, 12e6, 125e6]) for _ in pool]
    return Links(
        fellows={
            one.fellow_id: Uplink(rate, 2 * rate, dice.choice([0.001, 0.02]))
            for one, rate in zip(pool, rates)
        }
    )


@dataclass(frozen=True)
class _Stage:
    """A stage's cards with their price and seconds."""

    placed: tuple[PlacedCard, ...]
    seconds: float


class BruteForce:
    """Tries everything."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self._stages: dict[tuple[str, int, int, int], _Stage] = {}

    @property
    def facts(self) -> ModelFacts:
        """Of the model."""
        return self.case.ask.model.facts

    def _stage(self, fellow: FellowCards, stage: int, stages: int, count: int) -> _Stage:
        key = (fellow.fellow_id, stage, stages, count)
        if key not in self._stages:
            course = self.case.course(stages)
            assert course.pace is not None
            first = 0 if stage == 0 else 1
            if stage == stages - 1:
                first = self.facts.num_layers - count
            where = StageLayers(stage, stages, first, first + count - 1)
            placed = spread(fellow.cards, course.book, where)
            seconds = sum(self._card_s(one, course.pace.settings) for one in placed)
            self._stages[key] = _Stage(placed, seconds)
        return self._stages[key]

    def _card_s(self, one: PlacedCard, settings: TrainSettings) -> float:
        tokens = settings.batch_size // settings.micro_batches * settings.seq_len
        layers = self.facts.layer_params[one.place.first_layer : one.place.last_layer + 1]
        is_last = one.place.stage == one.place.num_stages - 1 and one.place.gives_output
        params = sum(layers) + (self.facts.head_params if is_last else 0)
        speed = next(s.tflops for s in one.card.report.speeds if s.number_format == "float16")
        return 4 * tokens * params / (speed * 1e12)

    def of_order(self, order: Sequence[FellowCards], *, capped: bool = True) -> float:
        """The shortest step of a fixed order; inf when the split by memory does not fit."""
        stages = len(order)
        course = self.case.course(stages)
        assert course.pace is not None
        base = course.by_memory(order)
        if not base.fits:
            return math.inf
        held = {one.card.id: one.place.num_layers for one in base.cards}
        net = course.pace.network([one.fellow_id for one in order])
        tables = [
            {
                count: self._stage(fellow, i, stages, count).seconds
                for count in range(1, self.facts.num_layers - stages + 2)
                if not capped or _may(self._stage(fellow, i, stages, count).placed, held)
            }
            for i, fellow in enumerate(order)
        ]
        parts = course.pace.parts
        steps = (
            sum(costs) + net.once_s + (parts - 1) * max(*costs, net.floor_s)
            for costs in _compositions(tables, self.facts.num_layers)
        )
        return min(steps, default=math.inf)

    def of_all(self) -> float:
        """The shortest step over all subsets and orders."""
        fellows = self.case.fellows
        return min(
            self.of_order(order)
            for size in range(1, len(fellows) + 1)
            for subset in combinations(fellows, size)
            for order in permutations(subset)
        )


def _may(placed: Sequence[PlacedCard], held: dict[str, int]) -> bool:
    for one in placed:
        gains = one.place.num_layers > held.get(one.card.id, 0)
        free = one.card.free_bytes
        kept = max(RESERVE, int(free * 0.1)) if gains else 0
        if one.price.total > free - kept:
            return False
    return True


def placed_by_place(case: Case, order: Sequence[FellowCards]) -> float:
    """The shortest step of a fixed order where layers differ or disks are small: every way to cut
    the model is laid where it lies, and asked whether cards and disks hold it.
    """
    stages, num_layers = len(order), case.ask.model.facts.num_layers
    course = case.course(stages)
    assert course.pace is not None
    base = course.by_memory(order)
    if not base.fits:
        return math.inf
    held = {one.card.id: one.place.num_layers for one in base.cards}
    best = math.inf
    for cuts in combinations(range(1, num_layers), stages - 1):
        counts = [b - a for a, b in pairwise((0, *cuts, num_layers))]
        made = split_at(order, course.book, counts)
        if counts != base.counts and not _may(made.cards, held):
            continue
        if not any(case.ask.disk.lack(stage) for stage in made.stages):
            best = min(best, course.pace.step_s(made))
    return best


def an_odd_case(seed: int, layers: int = 12) -> Case:
    """A pool on which windows make layers differ, or files of several layers meet small disks."""
    dice = random.Random(seed)
    case = a_case(2 * seed, 4, layers)
    facts = case.ask.model.facts
    model = case.ask.model
    if seed % 2:
        kinds = tuple(
            "full_attention" if i % 3 == 2 else "sliding_attention" for i in range(layers)
        )
        model = replace(model, facts=replace(facts, layer_types=kinds, window=32))
    each = dice.choice([1, 2, 3, 5])
    files: dict[str, dict[str, int]] = {
        "tables": {"model.embed_tokens.weight": 2 * facts.head_params}
    }
    for i, params in enumerate(facts.layer_params):
        files.setdefault(f"part-{i // each}", {})[f"model.layers.{i}.mlp.weight"] = 2 * params
    model = replace(model, files=files if seed % 3 else None)
    whole = 2 * facts.total_params
    pool = []
    for one in case.fellows:
        fellow = one.cards[0].fellow
        assert fellow.heartbeat is not None
        free = int(DISK_SPARE + whole * dice.uniform(0.4, 1.2))
        machine = fellow.heartbeat.machine.model_copy(update={"disk_free_bytes": free})
        beat = fellow.heartbeat.model_copy(update={"machine": machine})
        pool.append(replace(fellow, heartbeat=beat))
    cards = [Card(one, card) for one in pool if one.heartbeat for card in one.heartbeat.cards]
    return Case(replace(case.ask, model=model), fellows_of(cards), case.batch)


def _compositions(tables: Sequence[dict[int, float]], layers: int) -> Iterator[list[float]]:
    """Costs of the stages, for every way of laying all layers."""
    if len(tables) == 1:
        if layers in tables[0]:
            yield [tables[0][layers], 0.0]
        return
    for count, cost in tables[0].items():
        if count < layers:
            for rest in _compositions(tables[1:], layers - count):
                yield [cost, *rest]


@dataclass(frozen=True)
class Compared:
    """The planner's steps against all there are, on one pool. inf: nothing fits."""

    fixed: float
    fixed_best: float
    over_all: float
    over_all_best: float
    all_by_memory: float
    bound: float
    uncapped: float
    """Of the fixed order if memory were endless."""


def compare(case: Case) -> Compared:
    """Plan a case, and try everything."""
    brute, order = BruteForce(case), tuple(case.fellows)
    course = case.course(len(order))
    tried = course.tried(order)
    found = best_subset(case.course, case.fellows, 1, len(order), Tries(10_000))
    assert course.pace is not None
    base = course.by_memory(order)
    return Compared(
        fixed=tried.seconds if tried else math.inf,
        fixed_best=brute.of_order(order),
        over_all=found.tried.seconds if found else math.inf,
        over_all_best=brute.of_all(),
        all_by_memory=course.pace.step_s(base) if base.fits else math.inf,
        bound=found.bound_s if found else math.inf,
        uncapped=brute.of_order(order, capped=False),
    )


def report(told: Sequence[Compared]) -> dict[str, Any]:
    """Figures over many pools."""
    fixed = [one.fixed / one.fixed_best for one in told if one.fixed_best < math.inf]
    free = [one.over_all / one.over_all_best for one in told if one.over_all_best < math.inf]
    gains = [one.all_by_memory / one.over_all for one in told if one.all_by_memory < math.inf]
    return {
        "pools": len(told),
        "caps_bind_in": sum(one.fixed_best > one.uncapped * (1 + 1e-9) for one in told),
        "fixed_order_worst": max(fixed),
        "subsets_and_orders_worst": max(free),
        "median_gain_over_all_by_memory": statistics.median(gains),
    }


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fellows", type=int, default=5)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--pools", type=int, default=20)
    asked = parser.parse_args()
    told = [compare(a_case(seed, asked.fellows, asked.layers)) for seed in range(asked.pools)]
    for name, value in report(told).items():
        print(f"{name:32} {value:.4g}")


if __name__ == "__main__":
    main()
