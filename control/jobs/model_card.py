"""The card (README.md) of a job's result: what it is made of, how, and how well it does.

Every value is a number, an enumeration or a name of a checked form: nothing of it can turn into
markup or YAML. Unknown is said, never guessed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from transport.api.jobs import Evaluation
from transport.orders import StageOrder


@dataclass(frozen=True)
class CardFacts:
    """What a card tells beside the order."""

    bucket: str | None
    """The data's name in its pool; None when the job names none."""
    evaluations: Sequence[Evaluation] = ()
    base_license: str | None = None
    """As the base's own card says; None: unknown here."""


def base_name(order: StageOrder) -> str:
    """The base model as peft shall name it: the hub id without its revision, or local:NAME."""
    return order.model.model_id if order.model.from_leader else order.model.repository


def result_card(order: StageOrder, facts: CardFacts) -> str:
    """The card of an adapter, or of the trained tensors of a full fine-tune."""
    if order.settings.method == "boundary":
        kind, use = "The projections of a learned bottleneck, trained alone on a frozen base", ""
    elif order.settings.lora:
        kind = "A LoRA adapter for plain peft"
        use = "Load it with `peft.PeftModel.from_pretrained(base, FOLDER)`."
    else:
        kind = "Fully trained tensors"
        use = (
            "model.safetensors holds every trained tensor under its name in the checkpoint; "
            "config and tokenizer are those of the base revision."
        )
    library = "peft" if order.settings.lora else "transformers"
    return _card(order, facts, library, f"{kind}, trained by Swarm. {use}".strip())


def merged_card(order: StageOrder, facts: CardFacts, dtype: str | None) -> str:
    """The card of a whole checkpoint."""
    form = "the base's own number formats" if dtype is None else dtype
    if order.settings.lora:
        words = (
            "A whole checkpoint: the base model with a LoRA adapter added to its own weights, "
            f"summed in float32 and rounded once, in {form}."
        )
    else:
        form = "float32, as trained" if dtype is None else dtype
        words = f"A whole checkpoint: every weight was trained. In {form}."
    use = " Load it with `transformers.AutoModelForCausalLM.from_pretrained(FOLDER)`."
    return _card(order, facts, "transformers", words + use)


def _card(order: StageOrder, facts: CardFacts, library: str, words: str) -> str:
    licence = f"license: {facts.base_license}\n" if facts.base_license else ""
    head = (
        f"---\nbase_model: {base_name(order)}\n{licence}library_name: {library}\n"
        "pipeline_tag: text-generation\ntags: [swarm]\n---\n"
    )
    lines = [*_made_of(order, facts), *_settings(order), *_boundaries(order), *_losses(facts)]
    return (
        f"{head}\n# {order.job_id}\n\n{words}\n\n" + "\n".join(f"- {one}" for one in lines) + "\n"
    )


def _made_of(order: StageOrder, facts: CardFacts) -> list[str]:
    data = f"bucket `{facts.bucket}`, " if facts.bucket else ""
    if facts.base_license:
        licence = f"`{facts.base_license}`, as the base's own card says; check what it asks of you"
    else:
        licence = "unknown here: look at the base's page before you pass this on"
    return [
        f"base: `{base_name(order)}`, revision `{order.model.revision}`",
        f"licence of the base: {licence}",
        f"data: {data}token file `{order.tokens.digest}`",
        f"plan: `{order.plan_id}`, {order.num_stages} stages",
    ]


def _settings(order: StageOrder) -> list[str]:
    settings, lora = order.settings, order.settings.lora
    size = f"{settings.batch_size} sequences of {settings.seq_len} tokens"
    rate = f"{settings.learning_rate:g} ({settings.lr_schedule})"
    told = [
        f"steps: {settings.steps}, each of {size}",
        f"learning rate: {rate}, seed {settings.seed}",
    ]
    if settings.method == "boundary":
        return [*told, f"method: boundary, on a base in {settings.dtype}"]
    if lora is None:
        return [*told, f"method: full fine-tune, computed in {settings.dtype}"]
    targets = ", ".join(f"`{name}`" for name in sorted(lora.target_modules))
    ranks = f"rank {lora.rank}, alpha {lora.alpha:g}, dropout {lora.dropout:g}"
    stored = "" if settings.quantization == "none" else f", stored as {settings.quantization}"
    return [
        *told,
        f"method: LoRA, {ranks}, on {targets}",
        f"number format of the frozen weights: {settings.dtype}{stored}",
    ]


def _boundaries(order: StageOrder) -> list[str]:
    """What stood between the stages while it was trained, and is not part of the weights."""
    kind = order.settings.compression.kind
    if order.num_stages == 1 or kind == "none":
        return []
    told = f"between its {order.num_stages} stages the run was compressed ({kind})"
    if kind != "learned":
        return [f"{told}; the weights are used without it"]
    return [f"{told}: these weights learnt with that bottleneck and lose something without it"]


def _losses(facts: CardFacts) -> list[str]:
    """Held-out loss before and after; what was not measured is said."""
    if not facts.evaluations:
        return ["held-out loss: not measured"]
    names = {"base": "before", "trained": "after"}
    return [
        f"held-out loss {names[one.moment]}: {one.loss:.4f} ({one.accuracy:.1%} of next tokens "
        f"right, {one.tokens} tokens of {one.sequences} sequences)"
        for one in facts.evaluations
        if one.moment in names
    ]
