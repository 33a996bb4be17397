"""Turns what a job asks ("auto" allowed) into what its stages run with, and says why.

Pure. A number that the caller set is never changed; what cannot be done is refused in a sentence.
Does not place anything: the planner tries these settings, best first, until one fits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from control.planning import compression, documents
from control.planning.usable import Card
from stage_runtime.costs import loss_chunk_tokens, runs_1f1b
from stage_runtime.model_facts import ModelFacts
from transport.api.job_config import JobConfig, QuantizationConfig
from transport.api.plans import Chosen
from transport.errors import SwarmError
from transport.orders import LoraSettings, TrainSettings
from transport.units import count_of

AUTO_BATCHES = (32, 16, 8, 4, 2, 1)
LORA_RATE = 2e-4
BOUNDARY_RATE = 1e-4
"""The projections start calibrated."""
FULL_RATES = ((1_000_000_000, 5e-5), (10_000_000_000, 2e-5))
"""(below so many parameters, learning rate) of a full fine-tune."""
FULL_RATE_BEYOND = 1e-5
WARM_UP_SHARE = 0.05
WARM_UP_MOST = 100


RateShape = Literal["constant", "cosine"]
Dtype = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class Format:
    """The number format of a job, and why."""

    name: Dtype
    reason: str


@dataclass(frozen=True)
class Asked:
    """What settings are made from."""

    config: JobConfig
    facts: ModelFacts
    number_format: Dtype
    num_stages: int
    train_sequences: int | None = None
    """Of the data at this sequence length; None until it is tokenized."""
    whole_logits: bool = False
    """A fellow of an old version computes the loss over a whole micro-batch at once."""


def refuse_not_offered(config: JobConfig, facts: ModelFacts) -> None:
    """Refuse what this version cannot do, or what the model does not allow.

    Raises:
        SwarmError: invalid-input.
    """
    if config.method == "full" and isinstance(config.model.quantization, QuantizationConfig):
        bits = config.model.quantization.bits
        raise _refusal(
            f"a full fine-tune cannot train weights stored in {bits} bits",
            "use method lora, or model.quantization none",
        )
    compression.refuse(config, facts)
    documents.refuse(config, facts)
    _refuse_long(config, facts)
    if config.method == "lora":
        lora_targets(config, facts)


def _refuse_long(config: JobConfig, facts: ModelFacts) -> None:
    seq_len, most = config.train.seq_len, facts.max_positions
    if most is not None and seq_len > most:
        raise _refusal(
            f"train.seq_len {seq_len} is longer than the {most} positions of this model",
            f"set train.seq_len to {most} or less",
        )


def lora_targets(config: JobConfig, facts: ModelFacts, num_stages: int = 1) -> tuple[str, ...]:
    """The module names that adapters go on.

    Raises:
        SwarmError: invalid-input; a name that a layer of this model does not have.
    """
    asked = config.model.lora.target_modules
    if asked is not None:
        for name in asked:
            if not facts.linear(name):
                names = ", ".join((*facts.attention_targets, *facts.mlp_targets))
                raise _refusal(
                    f"a {facts.model_type} layer has no module {name!r} to put an adapter on",
                    f"its modules are {names}",
                )
        return tuple(dict.fromkeys(asked))
    adapts_mlp = compression.adapts_mlp(config, num_stages)
    return facts.attention_targets + (facts.mlp_targets if adapts_mlp else ())


def number_format(config: JobConfig, facts: ModelFacts, cards: Sequence[Card]) -> Format:
    """The number format of the whole job from what every one of these cards can run."""
    if config.model.dtype != "auto":
        return Format(config.model.dtype, "set by you")
    # Activations of families with wide norms (Gemma) pass float16's range: bfloat16, or nothing.
    wide = facts.family.wide_norm
    narrow: tuple[Dtype, ...] = ("bfloat16",) if wide else ("bfloat16", "float16")
    common = [f for f in narrow if all(f in card.report.number_formats for card in cards)]
    if not common:
        return Format("float32", "the cards have no 16-bit format in common")
    candidates: list[Dtype] = [*common, "float32"]
    measured = {name: _slowness(cards, name) for name in candidates}
    known = {name: time for name, time in measured.items() if time is not None}
    if len(known) > 1 and "float32" in known:
        best = min(known, key=lambda name: (known[name], name == "float32"))
        return Format(best, f"the fastest by speed among {', '.join(known)}")
    if any(card.report.kind == "cpu" for card in cards):
        return Format("float32", "CPU cards whose speed in 16 bits is not measured")
    return Format(common[0], "every card runs it, at half the memory of float32")


def _slowness(cards: Sequence[Card], name: str) -> float | None:
    """Sum of 1 / TFLOPS over the cards; None when one was not measured."""
    total = 0.0
    for card in cards:
        found = [s.tflops for s in card.report.speeds if s.number_format == name]
        if not found:
            return None
        total += 1 / found[-1]
    return total


Quantization = Literal["none", "int8", "nf4"]
BITS: dict[int, Quantization] = {4: "nf4", 8: "int8"}


@dataclass(frozen=True)
class Saving:
    """What a job does to need less memory."""

    recompute: bool
    quantization: Quantization


def quantization_asked(config: JobConfig) -> Quantization | None:
    """The quantization that the caller set; None = the leader chooses."""
    asked = config.model.quantization
    if isinstance(asked, QuantizationConfig):
        return BITS[asked.bits]
    return None if asked == "auto" and config.method != "full" else "none"


def savings(
    config: JobConfig,
    quantization: Quantization,
    facts: ModelFacts,
    *,
    can_recompute: bool = True,
) -> list[Saving]:
    """In order of preference: recompute only when the job does not fit without it.

    Experts in 4 bits are always recomputed, unless the caller says no: each layer would keep them
    unpacked until its backward, and so hold more than it was to save.
    """
    asked = config.train.recompute
    choices = ([False, True] if can_recompute else [False]) if asked is None else [asked]
    if asked is None and can_recompute and _keeps_experts(facts, quantization):
        choices = [True]
    return [Saving(again, quantization) for again in choices]


def _keeps_experts(facts: ModelFacts, quantization: Quantization) -> bool:
    return facts.experts is not None and quantization == "nf4"


def batches(asked: Asked) -> list[int]:
    """Batch sizes to try, the largest first. Never more sequences than the data has."""
    train, parts = asked.config.train, asked.config.train.micro_batches
    if isinstance(train.batch_size, int):
        return [train.batch_size]
    most = asked.train_sequences or AUTO_BATCHES[0]
    fitting = [b for b in AUTO_BATCHES if b <= max(1, most) and b % (parts or 1) == 0]
    return fitting or [parts or 1]


def micro_batches(batch: int, num_stages: int) -> int:
    """The largest divisor of the batch up to twice the stages."""
    return max(n for n in range(1, min(batch, 2 * num_stages) + 1) if batch % n == 0)


def settings(asked: Asked, batch: int, saving: Saving) -> TrainSettings:
    """The answer to a job with this batch size."""
    config, train = asked.config, asked.config.train
    rate, shape, warm_up = learning_rate(config, asked.facts)
    lora = config.model.lora
    adapters = LoraSettings(
        rank=lora.rank,
        alpha=lora.alpha,
        dropout=lora.dropout,
        target_modules=list(lora_targets(config, asked.facts, asked.num_stages)),
    )
    made = TrainSettings.model_construct(
        method=config.method,
        lora=adapters if config.method == "lora" else None,
        dtype=asked.number_format,
        steps=train.steps,
        seq_len=train.seq_len,
        batch_size=batch,
        micro_batches=train.micro_batches or micro_batches(batch, asked.num_stages),
        schedule=train.schedule,
        learning_rate=rate,
        lr_schedule=shape,
        warmup_steps=warm_up,
        max_grad_norm=train.max_grad_norm,
        clip=train.clip,
        recompute=saving.recompute,
        quantization=saving.quantization,
        seed=train.seed,
        link_timeout_s=train.link_timeout_s,
        eval_every_steps=train.eval_every_steps,
        eval_sequences=train.eval_sequences,
        backend=train.backend,
        loss_chunk_tokens=loss_chunk_tokens(asked.facts.vocab),
        snapshot_every_steps=train.snapshot_every_steps,
        compression=compression.resolve(config, asked.facts, asked.num_stages),
        document_mask=train.document_mask,
    )
    changed: dict[str, object] = {}
    if asked.whole_logits:
        changed["loss_chunk_tokens"] = train.seq_len * (batch // made.micro_batches)
    if not runs_1f1b(made, asked.num_stages):
        changed["schedule"] = "gpipe"
    return made.model_copy(update=changed) if changed else made


def learning_rate(config: JobConfig, facts: ModelFacts) -> tuple[float, RateShape, int]:
    """(rate, schedule, warm-up steps)."""
    train = config.train
    automatic = train.learning_rate == "auto"
    rate = _auto_rate(config, facts) if train.learning_rate == "auto" else train.learning_rate
    shape: RateShape = train.lr_schedule or ("cosine" if automatic else "constant")
    warm_up = min(WARM_UP_MOST, round(WARM_UP_SHARE * train.steps)) if automatic else 0
    asked = train.warmup_steps
    return rate, shape, min(train.steps, warm_up if asked is None else asked)


def _auto_rate(config: JobConfig, facts: ModelFacts) -> float:
    if config.method == "lora":
        return LORA_RATE
    if config.method == "boundary":
        return BOUNDARY_RATE
    below = (rate for limit, rate in FULL_RATES if facts.total_params < limit)
    return next(below, FULL_RATE_BEYOND)


def explain(asked: Asked, made: TrainSettings, why_format: str) -> list[Chosen]:
    """Every setting that the caller left to the leader, with its reason."""
    config, train = asked.config, asked.config.train
    told: list[Chosen] = []

    def tell(chosen: bool, setting: str, value: object, reason: str) -> None:
        if chosen:
            told.append(Chosen(setting=setting, value=value, reason=reason))

    tell(config.model.dtype == "auto", "model.dtype", made.dtype, why_format)
    tell(
        config.model.quantization == "auto",
        "model.quantization",
        made.quantization,
        _why_quantization(asked, made),
    )
    tell(train.batch_size == "auto", "train.batch_size", made.batch_size, _why_batch(asked, made))
    tell(
        train.micro_batches is None,
        "train.micro_batches",
        made.micro_batches,
        f"the largest divisor of the batch up to twice the {count_of(asked.num_stages, 'stage')}",
    )
    tell(
        made.schedule != train.schedule,
        "train.schedule",
        made.schedule,
        f"1f1b needs at least as many micro-batches as stages: {made.micro_batches} for "
        f"{asked.num_stages}",
    )
    for choice in compression.chosen(config, made):
        tell(True, *choice)
    _explain_rate(asked, made, tell)
    tell(
        train.recompute is None,
        "train.recompute",
        made.recompute,
        _why_recompute(asked, made),
    )
    if made.lora is not None:
        asked_targets = config.model.lora.target_modules
        where = "attention only"
        if compression.adapts_mlp(config, asked.num_stages):
            where = "attention and feed-forward"
            if config.model.lora.mlp is None:
                where += (
                    ": the stages adapt to the learned bottleneck (lora.mlp false turns it off)"
                )
        tell(
            asked_targets is None,
            "model.lora.target_modules",
            list(made.lora.target_modules),
            where,
        )
    tell(
        True,
        "loss_chunk_tokens",
        made.loss_chunk_tokens,
        f"logits over {asked.facts.vocab} words exist for so many tokens at a time",
    )
    return told


def _why_quantization(asked: Asked, made: TrainSettings) -> str:
    if made.quantization == "nf4":
        return f"the job does not fit in {made.dtype}, with recompute neither; 4 bits fit"
    if asked.config.method == "full":
        return "a full fine-tune trains whole weights"
    return f"the job fits in {made.dtype}"


def _why_recompute(asked: Asked, made: TrainSettings) -> str:
    early = ""
    if made.early_recompute:
        most = made.early_recompute
        early = f"; up to {most} blocks of a stage early, while it waits for their gradient"
    if made.recompute and _keeps_experts(asked.facts, made.quantization):
        return f"experts in 4 bits would stay unpacked in every layer until its backward{early}"
    return f"the job fits only with it{early}" if made.recompute else "the job fits without it"


def _why_batch(asked: Asked, made: TrainSettings) -> str:
    most = asked.train_sequences
    if most is not None and made.batch_size <= most < 2 * made.batch_size:
        return f"the largest that fits every card and the {count_of(most, 'sequence')} of the data"
    return "the largest of 32, 16, 8, 4, 2, 1 that fits every card"


def _explain_rate(asked: Asked, made: TrainSettings, tell: object) -> None:
    assert callable(tell)
    train = asked.config.train
    automatic = train.learning_rate == "auto"
    size = f"{asked.facts.total_params / 1e9:.3g}B parameters"
    kinds = {"lora": "LoRA adapters", "boundary": "a bottleneck that starts calibrated"}
    what = kinds.get(made.method, f"a full fine-tune of {size}")
    tell(automatic, "train.learning_rate", made.learning_rate, f"for {what}")
    tell(
        train.lr_schedule is None,
        "train.lr_schedule",
        made.lr_schedule,
        "cosine down to a tenth, with an automatic learning rate"
        if automatic
        else "a learning rate that you set stays as it is",
    )
    tell(
        train.warmup_steps is None,
        "train.warmup_steps",
        made.warmup_steps,
        f"5 % of the steps, at most {WARM_UP_MOST}" if automatic else "none with your own rate",
    )


def _refusal(message: str, hint: str) -> SwarmError:
    return SwarmError("invalid-input", message, hint=hint)
