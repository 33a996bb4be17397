"""Operations on served models: where one would be loaded. Loading itself comes later."""

from typing import Annotated, Any, Literal

from pydantic import Field

from transport.api.operation import Answer, Ask, Operation
from transport.api.plans import PlannedCard
from transport.ids import CardId, FellowId, ModelId, PlanId, PoolName
from transport.orders import ModelSource
from transport.schema import Model

KvStorage = Literal["float16", "int8"]


class ModelsPlan(Ask):
    """Show where a model would be served, and the context that it holds. Starts nothing.

    Default: the cut it was trained with, else the fewest fellows.
    """

    pool: PoolName | None = None
    model: ModelId
    context_tokens: Annotated[int, Field(ge=16, le=1_048_576)] | None = None
    """Unset: the leader's default."""
    stages: Annotated[int, Field(ge=1, le=16)] | None = None
    kv_storage: KvStorage = "float16"
    quantization: Literal["auto", "none", "int8", "nf4"] = "auto"
    maximize: Literal["context", "speed"] | None = None
    exclude_cards: Annotated[list[CardId], Field(max_length=256)] = []
    inventory: Annotated[dict[str, Any], Field(max_length=16)] | None = None
    """As in jobs_plan."""
    plan_id: PlanId | None = None
    """Show this plan again; 409 with each change when it no longer holds."""


class ServedStage(Model):
    """One stage of a served model."""

    stage: int
    fellow_id: FellowId
    hostname: str
    first_layer: int
    last_layer: int
    cards: list[CardId]
    planned_bytes: int
    free_bytes: int
    token_budget: int
    """Tokens of context that its cards hold with these layers."""


class ServePlanView(Answer):
    """A plan for serving. When fits is false it is still an answer."""

    plan_id: PlanId | None = None
    """Names exactly this plan; kept 24 hours. Null when it does not fit or is a what-if."""
    fits: bool
    reason: str = ""
    model: ModelSource | None = None
    model_id: str
    dtype: str | None = None
    quantization: str | None = None
    context_tokens: int
    kv_storage: KvStorage
    stages: list[ServedStage]
    limit: str = ""
    cut: str = ""
    """Why the layers lie as they do."""
    cards: list[PlannedCard]
    what_if: bool = False
    notes: list[str] = []


MODELS_PLAN = Operation(
    "models_plan",
    ModelsPlan,
    ServePlanView,
    "read",
    "read",
    "POST",
    "/models/plan",
    ("models", "plan"),
    ("model",),
)
ALL = (MODELS_PLAN,)
