"""Counter-offers: small changes with which a job fits, or is more than a tenth faster.

Pure. Each offer is a whole plan of a whole config, placed by the same planner, so that it can be
submitted as it is. At most three, smallest change first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from control.planning import auto
from control.planning.maximize import maximized
from control.planning.orders import Ranked, Tries
from control.planning.place import Inputs
from control.planning.plan import Plan
from control.planning.search import Ask, course_of, tries_for
from control.planning.split import MAX_FELLOWS, FellowCards
from control.planning.subsets import best_subset
from transport.api.job_config import JobConfig, QuantizationConfig
from transport.api.plans import Offer
from transport.orders import TrainSettings
from transport.units import count_of, human_seconds

MOST_OFFERS = 3
WORTH = 0.9
"""An offer of more speed takes at most this share of the plan's time."""
FEWEST_TOKENS = 64
"""A shorter sequence than this is no help."""


@dataclass(frozen=True)
class Offered:
    """A change, and the plan that it makes."""

    change: str
    plan: Plan

    @property
    def shown(self) -> Offer:
        """For every face."""
        view = self.plan.view
        return Offer(
            change=self.change,
            plan_id=self.plan.plan_id,
            step_s=view.layout.step_s,
            config=view.config,
        )


def offers(plan: Plan, inputs: Inputs) -> list[Offered]:
    """Up to three changes that make a waiting plan fit, or one that fits faster."""
    if plan.fits:
        return _faster(plan, inputs)
    return _fitting(plan, inputs)


def _fitting(plan: Plan, inputs: Inputs) -> list[Offered]:
    """Single changes first; all of them together when none is enough alone."""
    config = plan.view.config
    told: list[Offered] = []
    for change, changed in _smaller(config, inputs):
        made = inputs.place(changed)
        if made.fits:
            told.append(Offered(change, made))
        if len(told) == MOST_OFFERS:
            break
    if told:
        return told
    changes = list(_smaller(config, inputs, with_length=False))
    both = config
    for _, changed in changes:
        both = _merged(config, both, changed)
    shorter = _shorter(both, inputs)
    words = [change for change, _ in changes]
    for more, changed in [("", both), *([shorter] if shorter else [])]:
        made = inputs.place(changed)
        if made.fits and words:
            return [Offered(" and ".join([*words, *([more] if more else [])]), made)]
    return []


def _smaller(
    config: JobConfig, inputs: Inputs, *, with_length: bool = True
) -> Iterator[tuple[str, JobConfig]]:
    """Changes that need less memory, smallest first."""
    train, model = config.train, config.model
    if train.recompute is False:
        yield (
            "recompute on (about a half longer)",
            _train(config, recompute=None),
        )
    if isinstance(train.batch_size, int) and train.batch_size > 1:
        for batch in (b for b in auto.AUTO_BATCHES if b < train.batch_size):
            changed = _train(config, batch_size=batch, micro_batches=None)
            if inputs.place(changed).fits:
                yield f"batch {batch} instead of {train.batch_size}", changed
                break
    if model.quantization == "none" and config.method == "lora":
        bits = QuantizationConfig(bits=4)
        changed = config.model_copy(
            update={"model": model.model_copy(update={"quantization": bits})}
        )
        yield "weights in 4 bits", changed
    if config.layer_index is not None or config.partition == "equal":
        free = config.model_copy(update={"layer_index": None, "partition": "weighted"})
        yield "layers where the planner puts them", free
    if config.exclude_cards:
        every = config.model_copy(update={"exclude_cards": []})
        yield f"with the {count_of(len(config.exclude_cards), 'card')} that you left out", every
    if config.method == "full":
        yield (
            "adapters instead of a full fine-tune (method lora)",
            config.model_copy(update={"method": "lora"}),
        )
    if with_length and (shorter := _shorter(config, inputs)):
        yield shorter


def _shorter(config: JobConfig, inputs: Inputs) -> tuple[str, JobConfig] | None:
    changed = maximized(inputs, config)
    seq_len, asked = changed.train.seq_len, config.train.seq_len
    if not FEWEST_TOKENS <= seq_len < asked:
        return None
    return f"sequences of {seq_len:,} tokens instead of {asked:,}", changed


def _merged(config: JobConfig, one: JobConfig, other: JobConfig) -> JobConfig:
    """`one` with what `other` changed of the config."""
    told = {
        name: getattr(other, name)
        for name in JobConfig.model_fields
        if name != "train" and getattr(other, name) != getattr(config, name)
    }
    train = {
        name: getattr(other.train, name)
        for name in type(config.train).model_fields
        if getattr(other.train, name) != getattr(config.train, name)
    }
    return one.model_copy(update={**told, "train": one.train.model_copy(update=train)})


def _train(config: JobConfig, **changes: object) -> JobConfig:
    return config.model_copy(update={"train": config.train.model_copy(update=changes)})


def _pace(plan: Plan, made: Plan, gain: float) -> str:
    """How much sooner: by the step where batches are alike, else by the same tokens."""
    step_s = human_seconds(made.view.layout.step_s)
    before, after = plan.view.settings, made.view.settings
    assert before is not None
    assert after is not None
    less = f"{100 * gain:.0f} % less"
    if before.batch_size == after.batch_size:
        return f"a step takes {step_s}, {less}"
    return f"a step of batch {after.batch_size} takes {step_s}: {less} for the same tokens"


def _faster(plan: Plan, inputs: Inputs) -> list[Offered]:
    """Changes that take at most nine tenths of the time for the same tokens."""
    pace = _token_s(plan)
    if pace is None:
        return []
    told: list[Offered] = []
    for change, changed in _quicker(plan, inputs):
        made = inputs.place(changed)
        found = _token_s(made)
        if made.fits and found is not None and found <= WORTH * pace:
            told.append(Offered(f"{change}: {_pace(plan, made, 1 - found / pace)}", made))
        if len(told) == MOST_OFFERS:
            break
    return told


def _token_s(plan: Plan) -> float | None:
    """Seconds of a token: batches may differ."""
    step_s, settings = plan.view.layout.step_s, plan.view.settings
    if step_s is None or settings is None:
        return None
    return step_s / (settings.batch_size * settings.seq_len)


def _quicker(plan: Plan, inputs: Inputs) -> Iterator[tuple[str, JobConfig]]:
    config, settings = plan.view.config, plan.view.settings
    assert settings is not None
    if config.layer_index is not None or config.partition == "equal":
        free = config.model_copy(update={"layer_index": None, "partition": "weighted"})
        yield "layers where the planner puts them", free
    if config.train.recompute is True:
        yield "recompute only when it is needed", _train(config, recompute=None)
    if config.train.micro_batches is not None:
        yield "micro-batches that the leader chooses", _train(config, micro_batches=None)
    if config.layer_index is None and config.partition == "weighted":
        yield from _fewer(plan, settings, inputs)


def _fewer(plan: Plan, settings: TrainSettings, inputs: Inputs) -> Iterator[tuple[str, JobConfig]]:
    """The fastest of all subsets of the fellows, where it is not all of them."""
    config = plan.view.config
    found = inputs.ready(config, settings.quantization)
    used = {stage.fellow_id for stage in plan.stages}
    priced = [one for one in found.every if _is_priced(found.ask, one, settings)]
    fellows = _candidates(priced)
    ranked = _ranked(found.ask, settings, fellows)
    if ranked is None or {one.fellow_id for one in ranked.order} == used:
        return
    kept = {one.fellow_id for one in ranked.order}
    left = [card.id for one in found.every if one.fellow_id not in kept for card in one.cards]
    names = ", ".join(one.cards[0].fellow.hostname for one in ranked.order)
    changed = config.model_copy(update={"exclude_cards": [*config.exclude_cards, *left]})
    yield f"only {len(kept)} of {len(found.every)} fellows ({names})", changed


def _candidates(fellows: Sequence[FellowCards]) -> list[FellowCards]:
    """Of many fellows the roomiest and the fastest: one outside both is rarely among the best."""
    by_room = sorted(fellows, key=lambda one: (-one.free_bytes, one.fellow_id))[:MAX_FELLOWS]
    by_speed = sorted(fellows, key=lambda one: (-_speed(one), one.fellow_id))[:MAX_FELLOWS]
    kept = {one.fellow_id for one in (*by_room, *by_speed)}
    return [one for one in fellows if one.fellow_id in kept]


def _speed(fellow: FellowCards) -> float:
    return max((s.tflops for card in fellow.cards for s in card.report.speeds), default=0.0)


def _is_priced(ask: Ask, fellow: FellowCards, settings: TrainSettings) -> bool:
    return course_of(ask, [fellow], settings).pace is not None


def _ranked(ask: Ask, settings: TrainSettings, fellows: Sequence[FellowCards]) -> Ranked | None:
    config, fewest = ask.config, ask.fewest
    most = min(
        config.max_workers or MAX_FELLOWS, len(fellows), ask.model.facts.num_layers,
        2 if ask.old else MAX_FELLOWS,
    )  # fmt: skip
    if fewest > most:
        return None
    courses = {
        size: replace(course_of(ask, fellows, _over(ask, settings, size)), stages=size)
        for size in range(fewest, most + 1)
    }
    if courses[fewest].pace is None:
        return None
    return best_subset(courses.__getitem__, fellows, fewest, most, Tries(2 * tries_for(most)))


def _over(ask: Ask, settings: TrainSettings, stages: int) -> TrainSettings:
    saving = auto.Saving(settings.recompute, settings.quantization)
    return auto.settings(ask.asked(stages), settings.batch_size, saving)
