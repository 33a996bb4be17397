"""Places a job: usable cards -> settings -> split -> Plan. The planner's one entry.

Pure: (model, job, pool, data) in, Plan out. No clock, no network, no random.

    from control.planning.search import PlannedModel
    plan = place(PlannedModel(source, facts, files), config, inventory, data)
    plan.fits, plan.reason, plan.plan_id    whether and why (not), and its name
    plan.view                               PlanView for every face, as it is
    plan.stages                             of each StageOrder: fellow, layers, cards, threads
    plan.view.settings                      of each StageOrder: the TrainSettings
    plan.model_dump_json() / Plan.model_validate_json()     to store it

    holds(plan, inventory) -> bool, difference(plan, inventory) -> list[str]
                                            in control.planning.difference

terms: what is known beyond the pool (links), and whether it is a what-if.

inventory is a list of control.planning.usable.FellowNow, one for each fellow of the pool, also for
those that are offline. Wrong input (an unknown module, a pin past the model's end, something not
offered yet) raises SwarmError invalid-input; a job that must wait is a Plan with fits = False.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from control.planning import auto, compression, documents
from control.planning.early import with_early_recompute
from control.planning.plan import Plan
from control.planning.price_book import PriceBook
from control.planning.search import Ask, Found, LeftOut, PlannedModel, search
from control.planning.shown import plan_of, waiting_plan
from control.planning.split import MAX_FELLOWS, FellowCards, Pins, fellows_of, pins_of
from control.planning.summary import left_out_line
from control.planning.terms import LIVE, Terms
from control.planning.usable import Card, Inventory, Wanted, examine, is_old
from stage_runtime.model_facts import ModelFacts
from stage_runtime.places import CardPlace, Device
from transport.api.job_config import JobConfig
from transport.api.plans import DataShape
from transport.errors import SwarmError


def place(
    model: PlannedModel,
    config: JobConfig,
    inventory: Inventory,
    data: DataShape | None = None,
    terms: Terms = LIVE,
) -> Plan:
    """Plan a training run on a pool as it is now, or on an inventory of cards.

    Raises:
        SwarmError: invalid-input; what no pool could run (see auto.refuse_not_offered), pins that
            contradict each other, data shorter than one batch, a card that is not in the pool.
    """
    auto.refuse_not_offered(config, model.facts)
    _refuse_short_data(config, data)
    asked = auto.quantization_asked(config)
    given = (model, config, inventory, data)
    found = _searched(*given, (terms, asked or "none"))
    if found.fits or asked is not None or not _offers(inventory, "nf4"):
        return found.plan(terms)
    smaller = _searched(*given, (terms, "nf4"))
    return smaller.plan(terms) if smaller.fits or smaller.found else found.plan(terms)


def _offers(inventory: Inventory, stored: str) -> bool:
    """Whether a card of the pool has proved that it keeps weights in this format."""
    beats = [one.heartbeat for one in inventory if one.heartbeat is not None]
    return any(stored in card.number_formats for beat in beats for card in beat.cards)


@dataclass(frozen=True)
class Ready:
    """A job with the cards that may take it."""

    ask: Ask
    cards: list[Card]
    every: list[FellowCards]
    """All fellows with a usable card."""
    fellows: list[FellowCards]
    """Those that the job takes."""
    left_out: LeftOut

    @property
    def is_enough(self) -> bool:
        """Whether there are as many fellows as the job needs."""
        return bool(self.fellows) and len(self.fellows) >= self.ask.fewest


@dataclass(frozen=True)
class _Searched:
    """What a search ended with, before anything is shown of it."""

    ready: Ready
    found: Found | None
    """None: too few fellows to search at all."""

    @property
    def fits(self) -> bool:
        """Whether the job can start."""
        return self.found is not None and not self.found.reason

    def plan(self, terms: Terms) -> Plan:
        """The plan of it."""
        ready = self.ready
        if self.found is None:
            reason = _too_few(ready.ask, ready.cards, ready.fellows)
            return waiting_plan(ready.ask, ready.cards, ready.left_out, reason)
        return plan_of(ready.ask, ready.cards, self.found, ready.left_out, terms)


def _searched(
    model: PlannedModel,
    config: JobConfig,
    inventory: Inventory,
    data: DataShape | None,
    how: tuple[Terms, auto.Quantization],
) -> _Searched:
    ready = _ready(model, config, inventory, data, how)
    if not ready.is_enough:
        return _Searched(ready, None)
    found = search(ready.ask, ready.fellows, ready.left_out)
    if not found.reason:
        found = with_early_recompute(ready.ask, ready.fellows, found)
    return _Searched(ready, found)


@dataclass(frozen=True)
class Inputs:
    """All that a plan is made from but the job file: for searches that change the job."""

    model: PlannedModel
    inventory: Inventory
    data: DataShape | None = None
    terms: Terms = LIVE
    seq_len: int | None = None
    """The length at which `data` counts its sequences."""

    def place(self, config: JobConfig) -> Plan:
        """The plan of this job."""
        return place(self.model, config, self.inventory, self._data(config), self.terms)

    def ready(self, config: JobConfig, quantization: auto.Quantization) -> Ready:
        """The cards that may take this job."""
        how = (self.terms, quantization)
        return _ready(self.model, config, self.inventory, self._data(config), how)

    def fits(self, config: JobConfig) -> bool:
        """Whether the job could start, without looking for the fastest order."""
        asked = auto.quantization_asked(config)
        tries: list[auto.Quantization] = ["none"] if asked is None else [asked]
        if asked is None and _offers(self.inventory, "nf4"):
            tries.insert(0, "nf4")  # what fits at all fits in 4 bits: ask that first
        return any(self._fits(config, quantization) for quantization in tries)

    def _fits(self, config: JobConfig, quantization: auto.Quantization) -> bool:
        ready = self.ready(config, quantization)
        if not ready.is_enough:
            return False
        ask = replace(ready.ask, by_speed=False)
        return not search(ask, ready.fellows, ready.left_out).reason

    def _data(self, config: JobConfig) -> DataShape | None:
        """The data's figures, without those that hold for another length only."""
        if self.data is None or self.seq_len in (None, config.train.seq_len):
            return self.data
        return self.data.model_copy(update={"sequences": None, "held_out_sequences": None})


def _ready(
    model: PlannedModel,
    config: JobConfig,
    inventory: Inventory,
    data: DataShape | None,
    how: tuple[Terms, auto.Quantization],
) -> Ready:
    terms, quantization = how
    pins = _pins(config, model.facts)
    chosen_format, cards = _usable(model.facts, config, inventory, quantization)
    usable = [card.fellow for card in cards if not card.reason]
    old = tuple(sorted({one.hostname for one in usable if is_old(one)}))
    priced = _as_old(model) if old else model
    ask = Ask(priced, config, data, pins, chosen_format, quantization, terms.links, old)
    left_out = LeftOut()
    every = fellows_of(cards)
    return Ready(ask, cards, every, _chosen(ask, every, left_out), left_out)


def _as_old(model: PlannedModel) -> PlannedModel:
    """The model as an old version runs it: attention keeps whole scores."""
    family = replace(model.facts.family, scores=model.facts.family.scores or "softcap")
    return replace(model, facts=replace(model.facts, family=family))


def _pins(config: JobConfig, facts: ModelFacts) -> Pins:
    if config.layer_index is not None and config.partition == "equal":
        raise SwarmError(
            "invalid-input",
            f"layer_index {list(config.layer_index)} and partition equal contradict each other",
            hint="leave one of them out",
        )
    pins = pins_of(
        config.layer_index, equal=config.partition == "equal", num_layers=facts.num_layers
    )
    stages = len(pins.counts) if pins.counts else compression.fewest(config)
    most = config.max_workers or MAX_FELLOWS
    if pins.counts and not config.min_workers <= stages <= most:
        raise SwarmError(
            "invalid-input",
            f"layer_index makes {stages} stages, but min_workers is {config.min_workers} "
            f"and max_workers {most}",
            hint="name one boundary fewer than fellows, or leave layer_index out",
        )
    if stages > min(MAX_FELLOWS, facts.num_layers):
        raise SwarmError(
            "invalid-input",
            f"{stages} stages are more than this job can have: at most {MAX_FELLOWS} fellows, "
            f"and one layer each of {facts.num_layers}",
            hint=f"set min_workers to {min(MAX_FELLOWS, facts.num_layers)} or less",
        )
    return pins


def _refuse_short_data(config: JobConfig, data: DataShape | None) -> None:
    batch = config.train.batch_size
    needed = batch if isinstance(batch, int) else (config.train.micro_batches or 1)
    if data is not None and data.sequences is not None and data.sequences < needed:
        raise SwarmError(
            "invalid-input",
            f"the data is shorter than one batch: {data.sequences} sequences of "
            f"{config.train.seq_len} tokens, a batch needs {needed}",
            hint="add data to the bucket, or set a smaller train.seq_len or train.batch_size",
        )


def _usable(
    facts: ModelFacts, config: JobConfig, inventory: Inventory, quantization: auto.Quantization
) -> tuple[auto.Format, list[Card]]:
    """The job's number format, and every card of the pool with its reason or none."""
    named = None if config.model.dtype == "auto" else config.model.dtype
    wanted = Wanted(
        floor_bytes=_floor(facts, config, named or "bfloat16", quantization),
        number_format=named,
        exclude=frozenset(config.exclude_cards),
        stored=quantization,
        features=frozenset(
            {"stage", config.method} | compression.features(config) | documents.features(config)
        ),
    )
    cards = examine(inventory, wanted)
    able = [card for card in cards if not card.reason]
    if not able:  # name a format that the cards run, not one that nobody is left to contradict
        roomy = examine(inventory, replace(wanted, floor_bytes=lambda _: 1))
        able = [card for card in roomy if not card.reason]
    chosen = auto.number_format(config, facts, able)
    floor = _floor(facts, config, chosen.name, quantization)
    return chosen, examine(inventory, replace(wanted, floor_bytes=floor, number_format=chosen.name))


def _floor(
    facts: ModelFacts,
    config: JobConfig,
    number_format: auto.Dtype,
    quantization: auto.Quantization,
) -> Callable[[Device], int]:
    """The least that a card must have free: one layer of a middle stage at batch 1."""
    if not config.memory_check:
        return lambda _: 1
    saving = auto.Saving(recompute=True, quantization=quantization)
    least = auto.settings(auto.Asked(config, facts, number_format, 1), 1, saving)
    prices = PriceBook(facts, least.model_copy(update={"micro_batches": 1}))
    layer = 1 % facts.num_layers
    return lambda device: prices.of(CardPlace(1, 3, layer, layer), device).total


def _chosen(ask: Ask, fellows: list[FellowCards], left_out: LeftOut) -> list[FellowCards]:
    """As many fellows as the job takes: those with the most free memory."""
    config, layers = ask.config, ask.model.facts.num_layers
    caps = [
        (MAX_FELLOWS, f"a job takes at most {MAX_FELLOWS} fellows"),
        (layers, f"the model has only {layers} layers"),
    ]
    if ask.old:
        caps.append((2, _old_line(ask.old)))
    if config.max_workers is not None:
        caps.append((config.max_workers, f"max_workers is {config.max_workers}"))
    if not config.use_all_workers:
        caps.append(
            (
                compression.fewest(config),
                f"use_all_workers is off, min_workers {config.min_workers}",
            )
        )
    if ask.pins.counts:
        caps.append((len(ask.pins.counts), f"layer_index makes {len(ask.pins.counts)} stages"))
    most, why = min(caps, key=lambda cap: cap[0])
    by_room = sorted(fellows, key=lambda one: (-one.free_bytes, one.fellow_id))
    for fellow in by_room[most:]:
        left_out.add(fellow, f"not needed: {why}")
    return sorted(by_room[:most], key=lambda one: one.fellow_id)


def _old_line(old: Sequence[str]) -> str:
    runs = "runs a version" if len(old) == 1 else "run versions"
    return (
        f"{', '.join(old[:4])} {runs} from before pipelines of more than two stages: "
        "update with swarm update"
    )


def _too_few(ask: Ask, cards: Sequence[Card], fellows: Sequence[FellowCards]) -> str:
    why = left_out_line(cards)
    if ask.old and ask.fewest > 2:
        why = f": {_old_line(ask.old)}"
    return (
        f"not enough ready fellows: {len(fellows)} with a usable card, "
        f"{max(1, ask.fewest)} needed{why}"
    )
