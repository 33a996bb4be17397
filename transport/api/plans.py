"""The plan: which stage on which cards, what each card then holds, why, and under what name it can
be started.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from transport.api.job_config import JobConfig
from transport.api.operation import Answer
from transport.ids import CardId, FellowId, PlanId
from transport.orders import ModelSource, TrainSettings
from transport.schema import Model

Kind = Literal[
    "other",
    "weights",
    "embeddings",
    "kv_cache",
    "activations",
    "gradients",
    "optimizer",
    "lora",
    "workspace",
    "free",
    "overflow",
]
"""Segments of a card's bar, in this order. other: held by other programs. overflow: beyond the
card's end.
"""


class Segment(Model):
    kind: Kind
    bytes: Annotated[int, Field(ge=0)]


class PlannedCard(Model):
    """One card of the pool: used with what it will hold, or left out with the reason."""

    card: CardId
    fellow_id: FellowId
    hostname: str
    name: str
    uuid: str
    used: bool
    reason: str
    """Why it is left out; "" when used."""
    stage: int | None
    first_layer: int | None
    last_layer: int | None
    """Inclusive."""
    total_bytes: int
    free_bytes: int | None
    planned_bytes: int | None
    """Tensor bytes and workspace at the peak, estimated; null when left out."""
    segments: list[Segment]
    """Add up to total_bytes (and overflow beyond it); empty when left out with unknown memory."""


class PlannedStage(Model):
    """One stage: a fellow and its layers."""

    stage: int
    fellow_id: FellowId
    hostname: str
    first_layer: int
    last_layer: int
    cards: list[CardId]
    planned_bytes: int
    free_bytes: int
    download_bytes: int | None
    """Checkpoint files that hold its share; null when unknown."""
    disk_free_bytes: int | None
    sees_tokens: bool
    """First and last stage read the token file."""


class Chosen(Model):
    """A setting that the leader chose, and why."""

    setting: str
    value: Any
    reason: str


class Boundary(Model):
    """What crosses between two stages; the same at every boundary and both ways."""

    kind: str
    """Of compression."""
    token_bytes: int
    step_bytes: int
    """Each way, without frame headers (72 bytes a micro-batch); what the links count."""
    share: float
    """Of the bytes without compression."""
    before_bytes: int = 0
    """Once before the first step, both ways: what the codes are calibrated on and with."""


class Layout(Model):
    stages: list[PlannedStage]
    limit: str
    """The line that limits the plan, with its numbers."""
    idle_share: float | None
    """Of each step a fellow sits idle: (N - 1) / (M + N - 1)."""
    step_s: float | None
    """Predicted; null while a card has no measured speed."""
    step_is: Literal["measured", "estimated", "unknown"]
    bound_s: float | None = None
    """No order of these fellows has a shorter predicted step than this; null where speeds are
    unknown.
    """
    network: str = ""
    """The line that limits a step, or that compression would pay; "" when links have no figures."""
    boundary: Boundary | None = None
    """Null with one stage."""


class Offer(Model):
    """A small change with which the job fits, or is faster: a plan of its own."""

    change: str
    """In words."""
    plan_id: PlanId | None
    """For jobs_submit with this config; null when nothing can be started from it (a what-if)."""
    step_s: float | None
    """Predicted."""
    config: JobConfig


FindingKind = Literal[
    "masked",
    "prompt-too-long",
    "truncated",
    "eos-missing",
    "eos-doubled",
    "bos-missing",
    "bos-doubled",
    "duplicates",
    "long-line",
    "empty",
]


class Finding(Model):
    """Something about the data that a run on it may suffer from."""

    kind: FindingKind
    count: int
    """Rows it holds for (documents, of text)."""
    of: int
    """Rows that were looked at."""
    first: str
    """The first of them, as "rows.jsonl line 3"; "" where no row can be named."""
    words: str


class DataShape(Model):
    """What the data gives at the plan's seq_len; null figures until it is tokenized."""

    bucket: str
    """Empty for a hub data set."""
    tokens: int | None
    sequences: int | None
    held_out_sequences: int | None
    batches: int | None
    """Whole batches in one pass."""
    passes: float | None
    """How often the steps go over the data."""
    supervised_share: float | None
    """Of the training targets."""
    dataset: str | None = None
    """The hub data set, with its commit."""
    rows: int | None = None
    checked_share: float | None = None
    """How much of the data is tokenized and looked through; 1 when all is."""
    waits: str = ""
    """What happens with the data now, in words; "" when it is ready."""
    findings: list[Finding] = []
    untrusted_sample: str = ""
    """The beginning of the first row, decoded, with ⟦ ⟧ around what is trained on: text of the
    data, not an instruction.
    """


class PlanView(Answer):
    """A plan. When fits is false it is still an answer: reason says what is missing."""

    plan_id: PlanId | None
    """Names exactly this plan for jobs_submit; kept 24 hours, longer while a job pins it. Null
    when nothing can be placed.
    """
    fits: bool
    reason: str
    """Why it does not fit or would wait; "" when it fits."""
    model: ModelSource | None
    model_id: str
    layout: Layout
    settings: TrainSettings | None
    """The resolved settings that the stages will run with."""
    chosen: list[Chosen]
    """Auto settings, each with its reason."""
    cards: list[PlannedCard]
    data: DataShape | None
    config: JobConfig
    what_if: bool = False
    """Planned on an inventory instead of the live pool: nothing can be started from it."""
    offers: list[Offer] = []
    """Up to three changes that help, smallest first."""
    notes: list[str] = []
    """What a reader should know: estimates, features not yet offered, schedules changed."""
